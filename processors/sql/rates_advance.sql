-- Compare and set; no row comes back where the checkpoint is another than `before`.
UPDATE job_rates_checkpoints
SET next_offset = %(after)s,
    cursor = %(cursor)s,
    quarantined = quarantined + %(quarantined)s
WHERE partition = %(partition)s
  AND topic = %(topic)s
  AND next_offset = %(before)s
RETURNING next_offset
