SELECT j.id, j.state, j.output, e.request, e.payload
FROM open_jobs o
JOIN jobs j ON j.id = o.id
JOIN job_events e ON e.job_id = o.id AND e.first_seq = 1
WHERE o.queue = %(queue)s AND o.status = ANY(%(statuses)s::text[])
LIMIT %(many)s
