INSERT INTO runtimes AS r (
    queue, runtime_id, partition, session, types, period, started_at, ended_at, why, position
) VALUES (
    %(queue)s, %(runtime_id)s, %(partition)s, %(session)s, %(types)s,
    %(period)s, %(started_at)s, %(ended_at)s, %(why)s, %(position)s
)
ON CONFLICT (queue, runtime_id) DO UPDATE
SET partition = excluded.partition,
    session = excluded.session,
    types = excluded.types,
    period = excluded.period,
    started_at = CASE
        WHEN r.session = excluded.session THEN least(r.started_at, excluded.started_at)
        ELSE excluded.started_at
    END,
    ended_at = excluded.ended_at,
    why = excluded.why,
    position = excluded.position
