SELECT j.id, j.state, e.request
FROM jobs j
JOIN job_events e ON e.job_id = j.id AND e.first_seq = 1
WHERE j.id = ANY(%(ids)s)
