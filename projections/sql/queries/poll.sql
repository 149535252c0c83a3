-- Each pair of queue and type has its own order in the index; the best of each are merged.
SELECT j.id, j.state, NULL::bytea, e.request, e.payload,
    CASE WHEN j.state IS NULL THEN j.newest || e.packed END AS history,
    j.priority, (extract(epoch FROM j.created_at) * 1000000)::bigint
FROM (
    SELECT best.id, best.priority, best.queue_order
    FROM unnest(%(queues)s::text[]) AS queue
    CROSS JOIN unnest(%(types)s::text[]) AS type
    CROSS JOIN LATERAL (
        SELECT o.id, o.priority, o.queue_order
        FROM open_jobs o
        WHERE o.queue = queue.queue AND o.type = type.type AND o.wanted IS NULL
            AND o.status = 'pending' AND o.ready_at <= now()
        ORDER BY o.priority, o.queue_order
        LIMIT %(many)s
    ) best
    UNION ALL
    (
        -- Flows: by what their steps want that wait, whatever the others do.
        SELECT o.id, o.priority, o.queue_order
        FROM open_jobs o
        WHERE o.queue = ANY(%(queues)s::text[]) AND o.wanted && %(types)s::text[]
            AND o.ready_at <= now()
        ORDER BY o.priority, o.queue_order
        LIMIT %(many)s
    )
    ORDER BY 2, 3
    LIMIT %(many)s
) best
JOIN open_jobs j ON j.id = best.id
JOIN job_events e ON e.partition = j.partition AND e.born = j.born AND e.first_seq = 1
ORDER BY best.priority, best.queue_order
