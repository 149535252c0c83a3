INSERT INTO models (name, partition, model, put_at, put_by, position)
VALUES (%(name)s, %(partition)s, %(model)s, %(at)s, %(by)s, %(position)s)
ON CONFLICT (name) DO UPDATE
SET model = excluded.model, put_at = excluded.put_at, put_by = excluded.put_by,
    position = excluded.position
