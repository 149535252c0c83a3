UPDATE operations SET ended_at = %(at)s, matched = %(matched)s WHERE id = %(id)s
