UPDATE operation_parts
SET matched = %(matched)s, ended_at = %(at)s
WHERE operation_id = %(id)s AND partition = %(partition)s
