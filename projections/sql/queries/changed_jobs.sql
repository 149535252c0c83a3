-- Of the jobs named, those that went on beyond the version named, with their history from there.
-- After a rebuild one row may hold events on both sides of that version.
SELECT j.id, j.partition, j.state, j.output, f.request, f.payload,
    array_agg(e.first_seq ORDER BY e.first_seq), array_agg(e.packed ORDER BY e.first_seq)
FROM unnest(%(ids)s::text[], %(versions)s::integer[]) AS known (id, version)
JOIN jobs j ON j.id = known.id AND j.version > known.version
JOIN job_events f ON f.job_id = j.id AND f.first_seq = 1
JOIN job_events e ON e.job_id = j.id AND e.first_seq >= (
    SELECT max(b.first_seq)
    FROM job_events b
    WHERE b.job_id = j.id AND b.first_seq <= known.version + 1
)
GROUP BY j.id, f.job_id, f.first_seq
