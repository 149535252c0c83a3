COPY open_jobs (priority, queue_order, created_at, ready_at, id, queue, type, status, wanted)
FROM STDIN (FORMAT BINARY)
