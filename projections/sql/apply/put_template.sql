INSERT INTO templates (queue, type, version, partition, template, put_at, put_by)
VALUES (
    %(queue)s, %(type)s, %(version)s, %(partition)s, %(template)s, %(put_at)s, %(put_by)s
)
ON CONFLICT (queue, type, version) DO UPDATE
SET partition = excluded.partition,
    template = excluded.template,
    put_at = excluded.put_at,
    put_by = excluded.put_by
