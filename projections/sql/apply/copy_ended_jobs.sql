COPY ended_jobs (
    partition, priority, created_at, finished_at, born, version, ended_badly, erased,
    id, queue, type, status, state, scope, labels, error_code, retried_from, schedule, started_at,
    removable_at, output, objects, newest
) FROM STDIN (FORMAT BINARY)
