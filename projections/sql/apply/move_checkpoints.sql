UPDATE checkpoints c
SET notification_id = m.new,
    cursor = m.cursor,
    nonces = coalesce(nullif(m.nonces, ''), c.nonces)
FROM unnest(
    %(applications)s::text[], %(old)s::bigint[], %(new)s::bigint[], %(cursors)b::bytea[],
    %(nonces)b::bytea[]
) AS m(application, old, new, cursor, nonces)
WHERE c.application_name = m.application AND c.notification_id = m.old
RETURNING c.application_name
