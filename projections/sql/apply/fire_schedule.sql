UPDATE schedules
SET next_at = %(next_at)s, last_run_at = %(at)s,
    last_job_id = coalesce(%(job_id)s, last_job_id),
    last_nominal_at = coalesce(%(nominal_at)s, last_nominal_at),
    position = %(position)s
WHERE queue = %(queue)s AND name = %(name)s
