SELECT count(*)
FROM jobs j
WHERE
        -- include: queries/matching
        AND j.status <> 'cancelling'
