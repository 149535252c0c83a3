SELECT h.last_seq, h.packed
FROM (
    SELECT e.first_seq, e.last_seq, e.packed
    FROM jobs j
    JOIN job_events e ON e.partition = j.partition AND e.born = j.born
    WHERE j.id = %(id)s AND e.last_seq > %(after)s
    UNION ALL
    SELECT j.version, j.version, j.newest
    FROM jobs j
    WHERE j.id = %(id)s AND j.version > %(after)s AND j.newest <> ''
) h
ORDER BY h.first_seq
LIMIT %(many)s
