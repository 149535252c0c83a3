-- What happens to a job that has ended: its result is withdrawn, it is erased.
WITH changed AS (
    UPDATE ended_jobs j
    SET status = s.status,
        error_code = s.error_code,
        started_at = s.started_at,
        finished_at = s.finished_at,
        removable_at = s.removable_at,
        version = s.version,
        ended_badly = s.ended_badly,
        state = s.state,
        output = CASE WHEN s.withdrawn OR s.erased THEN NULL ELSE coalesce(s.output, j.output) END,
        erased = s.erased,
        objects = s.objects
    FROM staged_jobs s
    JOIN ended_jobs before ON before.id = s.id
    WHERE j.id = before.id AND s.finished_at IS NOT NULL AND j.version = s.version - s.events
    RETURNING j.born, j.id, j.queue, before.status AS old, s.status AS new, s.version, s.events,
        s.packed
),
told AS (
    INSERT INTO job_events (born, position, partition, first_seq, last_seq, job_id, packed)
    SELECT born, %(position)s, %(partition)s, version - events + 1, version, id, packed
    FROM changed
)
SELECT queue, old, new, count(*) FROM changed GROUP BY queue, old, new
