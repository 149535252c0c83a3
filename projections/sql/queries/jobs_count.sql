SELECT count(*)
FROM (
    SELECT
    FROM jobs j
    WHERE
        -- include: queries/matching
    LIMIT %(many)s
) j
