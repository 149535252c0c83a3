COPY open_jobs (
    partition, priority, queue_order, created_at, ready_at, born, version,
    id, queue, type, status, state, scope, labels, error_code, retried_from, schedule, started_at,
    wanted, objects, newest
) FROM STDIN (FORMAT BINARY)
