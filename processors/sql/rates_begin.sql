-- The first checkpoint of a partition; no row comes back where somebody was faster.
INSERT INTO job_rates_checkpoints (partition, topic, next_offset, cursor, quarantined)
VALUES (%(partition)s, %(topic)s, %(after)s, %(cursor)s, %(quarantined)s)
ON CONFLICT (partition) DO NOTHING
RETURNING next_offset
