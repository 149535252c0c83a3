-- Erased ones too, as long as something of theirs is to be deleted.
SELECT j.id, j.state, NULL::bytea, e.request, NULL::bytea,
    CASE WHEN j.state IS NULL THEN j.newest || e.packed END AS history, (extract(epoch FROM j.removable_at) * 1000000)::bigint
FROM ended_jobs j
JOIN job_events e ON e.partition = j.partition AND e.born = j.born AND e.first_seq = 1
WHERE j.removable_at <= %(before)s AND j.partition = ANY(%(partitions)s)
    AND (j.removable_at, j.id) > (%(after_at)s, %(after_id)s)
ORDER BY j.removable_at, j.id
LIMIT %(many)s
