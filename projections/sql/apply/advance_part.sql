UPDATE operation_parts
SET matched = matched + %(matched)s
WHERE operation_id = %(id)s AND partition = %(partition)s
