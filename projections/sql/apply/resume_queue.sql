UPDATE queue_settings
SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, position = %(position)s
WHERE queue = %(queue)s
