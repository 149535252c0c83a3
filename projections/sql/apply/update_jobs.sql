-- A row moves only if it stands where the staged one begins. What the counts of queues change by
-- is read from the rows as they were: both stand in one snapshot.
WITH moved AS (
    UPDATE jobs j
    SET status = s.status,
        queue_order = s.queue_order,
        error_code = s.error_code,
        ready_at = s.ready_at,
        started_at = s.started_at,
        finished_at = s.finished_at,
        lease_until = s.lease_until,
        removable_at = s.removable_at,
        version = s.version,
        position = s.position,
        ended_badly = s.ended_badly,
        state = s.state,
        output = CASE WHEN s.withdrawn OR s.erased THEN NULL ELSE coalesce(s.output, j.output) END,
        erased = s.erased,
        objects = s.objects
    FROM staged_jobs s
    JOIN jobs before ON before.id = s.id
    WHERE j.id = before.id AND j.version = s.version - s.events
    RETURNING j.queue, before.status AS old, s.status AS new
)
SELECT queue, old, new, count(*) FROM moved GROUP BY queue, old, new
