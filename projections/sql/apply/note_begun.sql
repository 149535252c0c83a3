-- Notes the jobs that begin, for those that follow. Says whether one whose row was put among the
-- open ones has one among the ended, or the other way.
WITH noted AS (
    INSERT INTO flushes (position, partition, jobs, born)
    VALUES (
        %(position)s, %(partition)s, cardinality(%(born)s::bigint[]), %(born)s::bigint[]
    )
)
SELECT EXISTS (SELECT FROM ended_jobs WHERE id = ANY(%(opened)s::text[]))
    OR EXISTS (SELECT FROM open_jobs WHERE id = ANY(%(ended)s::text[]))
