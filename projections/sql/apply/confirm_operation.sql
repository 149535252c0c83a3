UPDATE operations
SET confirmed = confirmed + 1, matched = matched + %(matched)s
WHERE id = %(id)s
