SELECT DISTINCT ON (queue, type)
    queue, type, version, template, (extract(epoch FROM put_at) * 1000000)::bigint, put_by
FROM templates
WHERE %(queues)s::text[] IS NULL OR queue = ANY(%(queues)s::text[])
ORDER BY queue, type, version DESC
