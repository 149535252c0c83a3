-- One look into the index a type, however many jobs there are.
WITH RECURSIVE types AS (
    (
        SELECT o.type
        FROM open_jobs o
        WHERE o.queue = %(queue)s
        ORDER BY o.type
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT o.type
        FROM open_jobs o
        WHERE o.queue = %(queue)s AND o.type > t.type
        ORDER BY o.type
        LIMIT 1
    )
    FROM types t
    WHERE t.type IS NOT NULL
)
SELECT type FROM types WHERE type IS NOT NULL
