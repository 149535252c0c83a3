-- A refusal gives way to whatever comes of the same command later; an acceptance stays.
INSERT INTO commands AS c (
    id, partition, outcome, code, detail, job_id, operation_id, position, at
)
SELECT id, partition, outcome, code, detail, job_id, operation_id, position, at
FROM staged_commands
ORDER BY id
ON CONFLICT (id) DO UPDATE
SET partition = excluded.partition,
    outcome = excluded.outcome,
    code = excluded.code,
    detail = excluded.detail,
    job_id = excluded.job_id,
    operation_id = excluded.operation_id,
    position = excluded.position,
    at = excluded.at
WHERE c.outcome = 'rejected'
    OR excluded.outcome = 'accepted'
    OR c.at < excluded.at - interval '1 hour'
