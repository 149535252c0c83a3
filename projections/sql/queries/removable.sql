SELECT id
FROM jobs
WHERE removable_at <= %(before)s
ORDER BY removable_at, id
LIMIT %(many)s
