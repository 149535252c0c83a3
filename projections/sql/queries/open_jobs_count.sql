SELECT count(*)
FROM (
    SELECT
    FROM open_jobs o JOIN jobs j ON j.id = o.id
    WHERE
        o.status = ANY(%(statuses)s::text[])
        AND
        -- include: queries/matching
    LIMIT %(many)s
) j
