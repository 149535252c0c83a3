SELECT p.application_name, p.entry, p.layout, c.notification_id, c.cursor, c.nonces
FROM partitions p
LEFT JOIN checkpoints c ON c.application_name = p.application_name
WHERE p.partition = %(partition)s
