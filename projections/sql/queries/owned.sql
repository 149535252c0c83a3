SELECT j.id, j.state, NULL::bytea, e.request, NULL::bytea,
    CASE WHEN j.state IS NULL THEN j.newest || e.packed END AS history
FROM jobs j
JOIN job_events e ON e.partition = j.partition AND e.born = j.born AND e.first_seq = 1
WHERE j.labels @> %(labels)s::jsonb AND j.objects IS NOT NULL
    AND j.created_at <= %(until)s AND j.id > %(after)s
ORDER BY j.id
LIMIT %(many)s
