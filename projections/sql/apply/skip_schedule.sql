UPDATE schedules
SET next_at = %(next_at)s, last_nominal_at = %(nominal_at)s, position = %(position)s
WHERE queue = %(queue)s AND name = %(name)s
