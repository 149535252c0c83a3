-- Of the jobs named, those that went on beyond the version named, with what holds their history from
-- there; it may hold events on both sides of that version.
SELECT j.id, j.partition, told.last_seqs, told.packed, j.state, j.output, f.request, f.payload,
    CASE WHEN j.state IS NULL THEN j.newest || f.packed END AS history
FROM unnest(%(ids)s::text[], %(versions)s::integer[]) AS known (id, version)
JOIN jobs j ON j.id = known.id AND j.version > known.version
JOIN job_events f ON f.partition = j.partition AND f.born = j.born AND f.first_seq = 1
CROSS JOIN LATERAL (
    SELECT array_agg(h.last_seq) AS last_seqs, array_agg(h.packed) AS packed
    FROM (
        SELECT e.last_seq, e.packed
        FROM job_events e
        WHERE e.partition = j.partition AND e.born = j.born AND e.last_seq > known.version
        UNION ALL
        SELECT j.version, j.newest
        ORDER BY 1
    ) h
) told
