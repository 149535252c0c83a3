SELECT id, outcome, code, detail, job_id, operation_id, partition, position,
    (extract(epoch FROM at) * 1000000)::bigint
FROM commands
WHERE id = %(id)s
