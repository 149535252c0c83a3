UPDATE runtimes
SET ended_at = %(ended_at)s, why = %(why)s, position = %(position)s
WHERE queue = %(queue)s AND runtime_id = %(runtime_id)s AND session = %(session)s
    AND ended_at IS NULL
