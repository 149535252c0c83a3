UPDATE schedules
SET enabled = true, next_at = %(next_at)s, stopped = NULL, position = %(position)s
WHERE queue = %(queue)s AND name = %(name)s
