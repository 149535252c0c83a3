INSERT INTO job_rates AS known (minute, queue, outcome, count)
VALUES (to_timestamp(%(minute)s), %(queue)s, %(outcome)s, %(count)s)
ON CONFLICT (queue, minute, outcome) DO UPDATE
SET count = known.count + EXCLUDED.count
