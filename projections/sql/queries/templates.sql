SELECT DISTINCT ON (t.queue, t.type)
    t.queue, t.type, t.version, t.template, (extract(epoch FROM t.put_at) * 1000000)::bigint,
    t.put_by, t.partition, c.notification_id - 1
FROM templates t
JOIN partitions p ON p.partition = t.partition
JOIN checkpoints c ON c.application_name = p.application_name
WHERE (%(queues)s::text[] IS NULL OR t.queue = ANY(%(queues)s::text[]))
    AND (%(types)s::text[] IS NULL OR t.type = ANY(%(types)s::text[]))
ORDER BY t.queue, t.type, t.version DESC
