COPY jobs (
    partition, priority, queue_order, created_at, ready_at, version, position, ended_badly,
    erased,
    id, queue, type, status, state, scope, labels, error_code, retried_from, schedule,
    idempotency_key, started_at, finished_at, lease_until, removable_at, output, objects
) FROM STDIN (FORMAT BINARY)
