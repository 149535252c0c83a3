SELECT pg_notify(%(channel)s, %(position)s)
