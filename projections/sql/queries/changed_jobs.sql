-- Of the jobs named, those that went on beyond the version named, with their history from there.
-- After a rebuild one row may hold events on both sides of that version.
SELECT j.id, j.partition, told.first_seqs, told.packed, j.state, j.output, f.request, f.payload,
    CASE WHEN j.state IS NULL THEN f.packed END AS begun
FROM unnest(%(ids)s::text[], %(versions)s::integer[]) AS known (id, version)
JOIN jobs j ON j.id = known.id AND j.version > known.version
JOIN job_events f ON f.partition = j.partition AND f.born = j.born AND f.first_seq = 1
CROSS JOIN LATERAL (
    SELECT array_agg(e.first_seq ORDER BY e.first_seq) AS first_seqs,
        array_agg(e.packed ORDER BY e.first_seq) AS packed
    FROM job_events e
    WHERE e.partition = j.partition AND e.born = j.born AND e.first_seq >= (
        SELECT max(b.first_seq)
        FROM job_events b
        WHERE b.partition = j.partition AND b.born = j.born AND b.first_seq <= known.version + 1
    )
) told
