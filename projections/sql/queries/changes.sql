-- Whole flushes: the last of them is the one that row number `many` is of.
SELECT e.job_id, e.first_seq, e.packed, e.position, j.schedule, j.state, j.output, f.request, f.payload,
    CASE WHEN j.state IS NULL THEN f.packed END AS begun
FROM job_events e
JOIN jobs j ON j.id = e.job_id
JOIN job_events f ON f.partition = e.partition AND f.born = e.born AND f.first_seq = 1
WHERE e.partition = %(partition)s AND e.position > %(after)s
    AND e.position <= (
        SELECT max(few.position)
        FROM (
            SELECT position
            FROM job_events
            WHERE partition = %(partition)s AND position > %(after)s AND position <= %(until)s
            ORDER BY position
            LIMIT %(many)s
        ) few
    )
