COPY staged_jobs (
    events, version, queue_order, ready_at, ended_badly, withdrawn, erased, id, status, state, packed,
    error_code, started_at, finished_at, removable_at, output, wanted, objects
) FROM STDIN (FORMAT BINARY)
