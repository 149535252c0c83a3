-- Where the counting of a partition goes on.
SELECT topic, cursor
FROM job_rates_checkpoints
WHERE partition = %(partition)s
