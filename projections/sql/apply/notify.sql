SELECT pg_notify(%(channel)s, position) FROM unnest(%(positions)s::text[]) AS position
