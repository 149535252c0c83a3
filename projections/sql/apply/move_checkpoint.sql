UPDATE checkpoints
SET notification_id = %(new)s,
    cursor = %(cursor)s,
    nonces = coalesce(%(nonces)s, nonces)
WHERE application_name = %(application)s AND notification_id = %(old)s
