SELECT id, asked, (extract(epoch FROM started_at) * 1000000)::bigint
FROM operations
WHERE kind = 'remove_objects' AND ended_at IS NULL
ORDER BY started_at, id
LIMIT %(many)s
