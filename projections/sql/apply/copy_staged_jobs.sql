COPY staged_jobs (
    events, queue_order, ready_at, version, position, ended_badly, withdrawn, erased, id, status,
    state, error_code, started_at, finished_at, lease_until, removable_at, output, wanted, objects
) FROM STDIN (FORMAT BINARY)
