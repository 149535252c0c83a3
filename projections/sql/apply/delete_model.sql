DELETE FROM models WHERE name = %(name)s
