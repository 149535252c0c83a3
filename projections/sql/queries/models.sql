SELECT m.name, m.model, m.partition, c.notification_id - 1
FROM models m
JOIN partitions p ON p.partition = m.partition
JOIN checkpoints c ON c.application_name = p.application_name
WHERE %(name)s::text IS NULL OR m.name = %(name)s
ORDER BY m.name
