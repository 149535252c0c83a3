EXPLAIN (FORMAT JSON)
SELECT
FROM open_jobs o JOIN jobs j ON j.id = o.id
WHERE
        -- include: queries/matching
