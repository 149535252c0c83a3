SELECT t.queue, t.type, t.version, t.template, (extract(epoch FROM t.put_at) * 1000000)::bigint,
    t.put_by, t.partition, c.notification_id - 1
FROM templates t
JOIN partitions p ON p.partition = t.partition
JOIN checkpoints c ON c.application_name = p.application_name
WHERE t.queue = %(queue)s AND t.type = %(type)s
    AND (%(version)s::bigint IS NULL OR t.version = %(version)s)
ORDER BY t.version DESC
LIMIT 1
