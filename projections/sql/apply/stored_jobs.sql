SELECT id, state FROM jobs WHERE id = ANY(%(ids)s)
