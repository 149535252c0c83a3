-- Where a batch had no entry (`entry` is 0), its partition's time alone moves.
UPDATE partitions p
SET entry = CASE WHEN m.entry = 0 THEN p.entry ELSE m.entry END,
    at = m.at,
    commands = CASE WHEN m.entry = 0 THEN p.commands ELSE m.commands END,
    requests = CASE WHEN m.entry = 0 THEN p.requests ELSE m.requests END,
    misfits = p.misfits + m.misfits,
    unknown = p.unknown + m.unknown
FROM unnest(
    %(partitions)s::integer[], %(entries)s::bigint[], %(at)s::timestamptz[], %(commands)s::bigint[],
    %(requests)s::bigint[], %(misfits)s::bigint[], %(unknown)s::bigint[]
) AS m(partition, entry, at, commands, requests, misfits, unknown)
WHERE p.partition = m.partition
