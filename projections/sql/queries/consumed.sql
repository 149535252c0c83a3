SELECT p.commands, p.requests, c.notification_id - 1
FROM partitions p
JOIN checkpoints c ON c.application_name = p.application_name
WHERE p.partition = %(partition)s
