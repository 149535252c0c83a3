COPY staged_jobs (
    events, queue_order, ready_at, version, position, ended_badly, id, status, state,
    error_code, started_at, finished_at, lease_until, removable_at, output
) FROM STDIN (FORMAT BINARY)
