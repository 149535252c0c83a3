INSERT INTO queue_settings (queue, partition, settings, put_at, put_by, position)
VALUES (%(queue)s, %(partition)s, %(settings)s, %(at)s, %(by)s, %(position)s)
ON CONFLICT (queue) DO UPDATE
SET settings = excluded.settings, put_at = excluded.put_at, put_by = excluded.put_by,
    position = excluded.position
