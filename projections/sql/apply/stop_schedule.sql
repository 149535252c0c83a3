UPDATE schedules
SET next_at = NULL, stopped = %(reason)s, position = %(position)s
WHERE queue = %(queue)s AND name = %(name)s
