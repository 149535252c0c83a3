-- From the open jobs to those that have ended, where the row stands where the staged one begins.
WITH moved AS (
    DELETE FROM open_jobs o
    USING staged_jobs s
    WHERE o.id = s.id AND s.finished_at IS NOT NULL AND o.version = s.version - s.events
    RETURNING o.partition, o.born, o.created_at, o.priority, o.id, o.queue, o.type, o.scope, o.labels,
        o.retried_from, o.schedule, o.status AS old, s.status AS new, s.version, s.packed,
        s.state, s.error_code, s.started_at, s.finished_at, s.removable_at, s.ended_badly, s.erased,
        CASE WHEN s.withdrawn OR s.erased THEN NULL ELSE s.output END AS output, s.objects,
        o.newest AS older,
            -- include: apply/newest
        AS newest
),
ended AS (
    INSERT INTO ended_jobs (
        partition, priority, created_at, finished_at, born, version, ended_badly, erased,
        id, queue, type, status, state, scope, labels, error_code, retried_from, schedule,
        started_at, removable_at, output, objects, newest
    )
    SELECT partition, priority, created_at, finished_at, born, version, ended_badly, erased,
        id, queue, type, new, state, scope, labels, error_code, retried_from, schedule,
        started_at, removable_at, output, objects, newest
    FROM moved
),
-- include: apply/told
SELECT partition, queue, old, new, count(*) FROM moved GROUP BY partition, queue, old, new
