UPDATE schedules
SET enabled = false, next_at = NULL, position = %(position)s
WHERE queue = %(queue)s AND name = %(name)s
