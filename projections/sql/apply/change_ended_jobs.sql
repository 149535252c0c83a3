-- What happens to a job that has ended: its result is withdrawn, it is erased.
WITH moved AS (
    UPDATE ended_jobs o
    SET status = s.status,
        error_code = s.error_code,
        started_at = s.started_at,
        finished_at = s.finished_at,
        removable_at = s.removable_at,
        version = s.version,
        ended_badly = s.ended_badly,
        state = s.state,
        output = CASE WHEN s.withdrawn OR s.erased THEN NULL ELSE coalesce(s.output, o.output) END,
        erased = s.erased,
        objects = s.objects,
        newest =
            -- include: apply/newest
    FROM staged_jobs s
    CROSS JOIN LATERAL (
        SELECT b.status, b.newest FROM ended_jobs b WHERE b.id = s.id OFFSET 0
    ) AS before
    WHERE o.id = s.id AND s.finished_at IS NOT NULL AND o.version = s.version - s.events
    RETURNING o.partition, o.born, o.queue, before.status AS old, s.status AS new, s.version, s.packed,
        o.newest, before.newest AS older
),
-- include: apply/told
SELECT partition, queue, old, new, count(*) FROM moved GROUP BY partition, queue, old, new
