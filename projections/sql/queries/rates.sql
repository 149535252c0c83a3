-- Of the last minutes that anything is known of, by the log's own time.
SELECT (extract(epoch FROM r.minute) * 1000000)::bigint, r.outcome, sum(r.count)::bigint
FROM job_rates r
WHERE r.minute > (SELECT max(minute) FROM job_rates) - make_interval(mins => %(minutes)s)
    AND (%(queue)s::text IS NULL OR r.queue = %(queue)s)
GROUP BY r.minute, r.outcome
ORDER BY r.minute, r.outcome
