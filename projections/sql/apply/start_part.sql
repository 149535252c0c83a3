INSERT INTO operation_parts (operation_id, partition, requests_end, started_at)
VALUES (%(id)s, %(partition)s, %(requests_end)s, %(at)s)
ON CONFLICT (operation_id, partition) DO NOTHING
