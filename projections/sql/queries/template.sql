SELECT queue, type, version, template, (extract(epoch FROM put_at) * 1000000)::bigint, put_by
FROM templates
WHERE queue = %(queue)s AND type = %(type)s
    AND (%(version)s::bigint IS NULL OR version = %(version)s)
ORDER BY version DESC
LIMIT 1
