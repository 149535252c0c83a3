-- Of jobs that moved: what has grown long gets a row of its own, and all are noted for those that
-- follow.
laid_down AS (
    INSERT INTO job_events (born, position, partition, first_seq, last_seq, packed)
    SELECT m.born, %(position)s, %(partition)s,
        1 + (
            SELECT e.last_seq
            FROM job_events e
            WHERE e.partition = %(partition)s AND e.born = m.born
            ORDER BY e.first_seq DESC
            LIMIT 1
        ),
        m.version, m.packed || m.older
    FROM moved m
    WHERE m.newest = ''
),
noted AS (
    INSERT INTO flushes (position, partition, jobs, born)
    SELECT %(position)s, %(partition)s, count(*), array_agg(born)
    FROM moved
    HAVING count(*) > 0
)
