SELECT j.id, j.state, NULL::bytea, e.request, e.payload,
    CASE WHEN j.state IS NULL THEN j.newest || e.packed END AS history
FROM open_jobs j
JOIN job_events e ON e.partition = j.partition AND e.born = j.born AND e.first_seq = 1
WHERE j.queue = %(queue)s AND j.status = ANY(%(statuses)s::text[])
LIMIT %(many)s
