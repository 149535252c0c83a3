DELETE FROM schedules WHERE queue = %(queue)s AND name = %(name)s
