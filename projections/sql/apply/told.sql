-- Of jobs that moved: what has grown long gets a row of its own, and all are noted for those that
-- follow.
flush AS (
    SELECT * FROM unnest(%(partitions)s::integer[], %(positions)s::bigint[]) AS f(partition, position)
),
laid_down AS (
    INSERT INTO job_events (born, position, partition, first_seq, last_seq, packed)
    SELECT m.born, (SELECT f.position FROM flush f WHERE f.partition = m.partition), m.partition,
        1 + (
            SELECT e.last_seq
            FROM job_events e
            WHERE e.partition = m.partition AND e.born = m.born
            ORDER BY e.first_seq DESC
            LIMIT 1
        ),
        m.version, m.packed || m.older
    FROM moved m
    WHERE m.newest = ''
),
noted AS (
    INSERT INTO flushes (position, partition, jobs, born)
    SELECT (SELECT f.position FROM flush f WHERE f.partition = m.partition), m.partition,
        count(*), array_agg(m.born)
    FROM moved m
    GROUP BY m.partition
)
