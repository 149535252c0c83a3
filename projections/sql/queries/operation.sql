SELECT o.id, o.kind, o.asked, o.reason, o.asked_by, o.partitions, o.confirmed,
    CASE
        WHEN o.ended_at IS NOT NULL THEN o.matched
        ELSE coalesce(
            (SELECT sum(part.matched) FROM operation_parts part WHERE part.operation_id = o.id), 0
        )::bigint
    END,
    (extract(epoch FROM o.started_at) * 1000000)::bigint,
    (extract(epoch FROM o.ended_at) * 1000000)::bigint
FROM operations o
WHERE o.id = %(id)s
