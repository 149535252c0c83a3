SELECT e.first_seq, e.packed
FROM jobs j
JOIN job_events e ON e.partition = j.partition AND e.born = j.born
WHERE j.id = %(id)s AND e.last_seq > %(after)s
ORDER BY e.first_seq
LIMIT %(many)s
