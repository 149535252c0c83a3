SELECT j.id, j.state, j.output, e.request, e.payload,
    CASE WHEN j.state IS NULL THEN j.newest || e.packed END AS history, j.partition, c.notification_id - 1
FROM jobs j
JOIN job_events e ON e.partition = j.partition AND e.born = j.born AND e.first_seq = 1
JOIN partitions p ON p.partition = j.partition
JOIN checkpoints c ON c.application_name = p.application_name
WHERE j.id = ANY(%(ids)s) AND (%(even_erased)s OR NOT j.erased)
