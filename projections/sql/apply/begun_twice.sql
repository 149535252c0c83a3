-- Whether a job whose row was put among the open ones has one among the ended, or the other way.
SELECT EXISTS (SELECT FROM ended_jobs WHERE id = ANY(%(opened)s::text[]))
    OR EXISTS (SELECT FROM open_jobs WHERE id = ANY(%(ended)s::text[]))
