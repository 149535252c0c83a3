SELECT first_seq, packed
FROM job_events
WHERE job_id = %(id)s AND last_seq > %(after)s
ORDER BY first_seq
LIMIT %(many)s
