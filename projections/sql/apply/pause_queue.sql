INSERT INTO queue_settings (queue, partition, paused_at, paused_by, pause_reason, position)
VALUES (%(queue)s, %(partition)s, %(at)s, %(by)s, %(reason)s, %(position)s)
ON CONFLICT (queue) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by,
    pause_reason = excluded.pause_reason, position = excluded.position
