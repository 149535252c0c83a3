INSERT INTO operations (id, kind, asked, reason, asked_by, partitions, started_at)
VALUES (
    %(id)s, %(kind)s, %(asked)s, %(reason)s, %(asked_by)s, %(partitions)s, %(at)s
)
ON CONFLICT (id) DO NOTHING
