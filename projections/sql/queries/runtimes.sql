SELECT r.queue, r.runtime_id, r.session, r.types,
    (extract(epoch FROM r.period) * 1000000)::bigint,
    (extract(epoch FROM r.started_at) * 1000000)::bigint,
    (extract(epoch FROM r.ended_at) * 1000000)::bigint,
    r.why, r.partition, r.position
FROM runtimes r
JOIN partitions p ON p.partition = r.partition
WHERE (%(queues)s::text[] IS NULL OR r.queue = ANY(%(queues)s::text[]))
    AND (r.ended_at IS NULL OR r.ended_at > p.at - interval '1 day')
ORDER BY r.queue, r.runtime_id
