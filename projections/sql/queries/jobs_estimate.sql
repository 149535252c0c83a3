EXPLAIN (FORMAT JSON)
SELECT
FROM jobs j
WHERE
        -- include: queries/matching
