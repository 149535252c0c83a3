-- What holds the events between two offsets, job by job; it may hold events on both sides of them.
-- Whole flushes: the last of them is the one that job number `many` is of.
WITH taken AS (
    SELECT position, jobs, born
    FROM (
        SELECT position, jobs, born, sum(jobs) OVER before AS jobs_before,
            max(position) OVER before AS position_before
        FROM (
            SELECT position, jobs, born
            FROM flushes
            WHERE partition = %(partition)s AND position > %(after)s
            ORDER BY position
            FETCH FIRST (%(many)s) ROWS WITH TIES
        ) few
        WINDOW before AS (
            ORDER BY position GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    ) flush
    WHERE position_before IS NULL
        OR (jobs_before < %(many)s AND position_before < %(until)s)
),
reached AS (
    SELECT least(%(until)s, CASE WHEN sum(jobs) >= %(many)s THEN max(position) END) AS until
    FROM taken
)
SELECT j.id, j.schedule, reached.until, told.last_seqs, told.packed,
    j.state, j.output, f.request, f.payload,
    CASE WHEN j.state IS NULL THEN j.newest || f.packed END AS history
FROM (SELECT DISTINCT unnest(born) AS born FROM taken) touched
CROSS JOIN reached
JOIN job_events f
    ON f.partition = %(partition)s AND f.born = touched.born AND f.first_seq = 1
JOIN jobs j ON j.id = f.job_id
CROSS JOIN LATERAL (
    -- Of a long history: neither what ends before nor what begins behind.
    SELECT array_agg(h.last_seq) AS last_seqs, array_agg(h.packed) AS packed
    FROM (
        SELECT e.last_seq, e.packed
        FROM job_events e
        WHERE e.partition = %(partition)s AND e.born = touched.born AND e.position > %(after)s
            AND e.first_seq <= coalesce(
                (
                    SELECT min(b.first_seq)
                    FROM job_events b
                    WHERE b.partition = %(partition)s AND b.born = touched.born
                        AND b.position >= reached.until
                ),
                e.first_seq
            )
        UNION ALL
        SELECT j.version, j.newest
    ) h
) told
