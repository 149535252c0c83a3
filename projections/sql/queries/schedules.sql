SELECT s.queue, s.name, s.schedule, s.enabled, s.command_id,
    (extract(epoch FROM s.next_at) * 1000000)::bigint,
    (extract(epoch FROM s.last_run_at) * 1000000)::bigint,
    s.last_job_id,
    (extract(epoch FROM s.last_nominal_at) * 1000000)::bigint,
    s.stopped, s.partition, c.notification_id - 1
FROM schedules s
JOIN partitions p ON p.partition = s.partition
JOIN checkpoints c ON c.application_name = p.application_name
WHERE (%(queues)s::text[] IS NULL OR s.queue = ANY(%(queues)s::text[]))
    AND (%(enabled)s::boolean IS NULL OR s.enabled = %(enabled)s)
    AND (%(name)s::text IS NULL OR s.name = %(name)s)
ORDER BY s.queue, s.name
