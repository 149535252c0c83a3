SELECT p.partition, c.notification_id, p.entry, (extract(epoch FROM p.at) * 1000000)::bigint,
    p.misfits, p.unknown
FROM partitions p
JOIN checkpoints c ON c.application_name = p.application_name
ORDER BY p.partition
