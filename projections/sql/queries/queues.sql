SELECT q.name, q.partition, q.pending, q.leased, q.running, q.waiting, q.cancelling,
    q.succeeded, q.failed, q.cancelled, q.expired,
    (
        SELECT (extract(epoch FROM o.created_at) * 1000000)::bigint
        FROM open_jobs o
        WHERE o.queue = q.name AND o.status = 'pending'
        ORDER BY o.created_at
        LIMIT 1
    ),
    c.notification_id - 1
FROM queues q
JOIN partitions p ON p.partition = q.partition
JOIN checkpoints c ON c.application_name = p.application_name
WHERE %(names)s::text[] IS NULL OR q.name = ANY(%(names)s::text[])
ORDER BY q.name
