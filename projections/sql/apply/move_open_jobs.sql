UPDATE open_jobs o
SET status = s.status, queue_order = s.queue_order, ready_at = s.ready_at, wanted = s.wanted
FROM staged_jobs s
WHERE o.id = s.id AND s.finished_at IS NULL
