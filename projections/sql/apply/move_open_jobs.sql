-- A row moves only if it stands where the staged one begins. What the counts of queues change by
-- is read from the rows as they were: all stand in one snapshot. Looked up by OFFSET 0 for each staged
-- one: a join would be planned as all with all where open jobs are taken for few.
WITH moved AS (
    UPDATE open_jobs o
    SET queue_order = s.queue_order,
        ready_at = s.ready_at,
        started_at = s.started_at,
        version = s.version,
        status = s.status,
        state = s.state,
        error_code = s.error_code,
        objects = s.objects,
        wanted = s.wanted,
        newest =
            -- include: apply/newest
    FROM staged_jobs s
    CROSS JOIN LATERAL (
        SELECT b.status, b.newest FROM open_jobs b WHERE b.id = s.id OFFSET 0
    ) AS before
    WHERE o.id = s.id AND s.finished_at IS NULL AND o.version = s.version - s.events
    RETURNING o.partition, o.born, o.queue, before.status AS old, s.status AS new, s.version, s.packed,
        o.newest, before.newest AS older
),
-- include: apply/told
SELECT partition, queue, old, new, count(*) FROM moved GROUP BY partition, queue, old, new
