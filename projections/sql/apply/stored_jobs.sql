SELECT j.id, j.state, e.request
FROM jobs j
JOIN job_events e ON e.partition = j.partition AND e.born = j.born AND e.first_seq = 1
WHERE j.id = ANY(%(ids)s)
