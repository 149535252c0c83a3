-- Notes the jobs that begin, for those that follow. Says whether one whose row was put among the
-- open ones has one among the ended, or the other way.
WITH noted AS (
    INSERT INTO flushes (position, partition, jobs, born)
    SELECT f.position, f.partition, f.last - f.first + 1, (%(born)s::bigint[])[f.first:f.last]
    FROM unnest(
        %(partitions)s::integer[], %(positions)s::bigint[], %(firsts)s::integer[],
        %(lasts)s::integer[]
    ) AS f(partition, position, first, last)
    WHERE f.first <= f.last
)
SELECT EXISTS (SELECT FROM ended_jobs WHERE id = ANY(%(opened)s::text[]))
    OR EXISTS (SELECT FROM open_jobs WHERE id = ANY(%(ended)s::text[]))
