-- What is not asked for is NULL: the planner sees the values and drops the condition.
SELECT j.id, j.state, j.output, e.request, e.payload,
    CASE WHEN j.state IS NULL THEN j.newest || e.packed END AS history,
    j.priority, (extract(epoch FROM j.created_at) * 1000000)::bigint
FROM (
    SELECT j.id, j.partition, j.born, j.state, j.newest, j.output, j.priority, j.created_at
    FROM jobs j
    WHERE
        -- include: queries/matching
        AND (%(after_at)s::timestamptz IS NULL OR (j.created_at, j.id) > (%(after_at)s, %(after_id)s))
    ORDER BY j.created_at, j.id
    LIMIT %(many)s OFFSET %(skip)s
) j
JOIN job_events e ON e.partition = j.partition AND e.born = j.born AND e.first_seq = 1
ORDER BY j.created_at, j.id
