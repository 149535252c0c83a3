DELETE FROM commands
WHERE id IN (
    SELECT id FROM commands WHERE at < %(before)s AND partition = %(partition)s
    ORDER BY at LIMIT %(many)s
)
