-- A queue is used by its jobs, and by what operators say of it.
SELECT n.name, n.partition,
    coalesce(q.pending, 0), coalesce(q.leased, 0), coalesce(q.running, 0), coalesce(q.waiting, 0),
    coalesce(q.cancelling, 0), coalesce(q.succeeded, 0), coalesce(q.failed, 0),
    coalesce(q.cancelled, 0), coalesce(q.expired, 0),
    (
        SELECT (extract(epoch FROM o.created_at) * 1000000)::bigint
        FROM open_jobs o
        WHERE o.queue = n.name AND o.status = 'pending'
        ORDER BY o.created_at
        LIMIT 1
    ),
    c.notification_id - 1,
    s.settings, (extract(epoch FROM s.paused_at) * 1000000)::bigint, s.pause_reason, s.paused_by
FROM (
    SELECT name, partition FROM queues
    UNION
    SELECT queue, partition FROM queue_settings
    UNION
    SELECT queue, partition FROM templates
    UNION
    SELECT queue, partition FROM schedules
) n
LEFT JOIN queues q ON q.name = n.name
LEFT JOIN queue_settings s ON s.queue = n.name
JOIN partitions p ON p.partition = n.partition
JOIN checkpoints c ON c.application_name = p.application_name
WHERE %(names)s::text[] IS NULL OR n.name = ANY(%(names)s::text[])
ORDER BY n.name
