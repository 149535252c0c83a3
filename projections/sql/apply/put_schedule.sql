INSERT INTO schedules (queue, name, partition, schedule, enabled, command_id, next_at, position)
VALUES (
    %(queue)s, %(name)s, %(partition)s, %(schedule)s, %(enabled)s, %(command_id)s, %(next_at)s, %(position)s
)
ON CONFLICT (queue, name) DO UPDATE
SET schedule = excluded.schedule, enabled = excluded.enabled, command_id = excluded.command_id,
    next_at = excluded.next_at, stopped = NULL, position = excluded.position
