SELECT DISTINCT referred.key
FROM jobs j
CROSS JOIN LATERAL unnest(j.objects) AS referred (key)
WHERE j.objects && %(keys)s::text[] AND referred.key = ANY(%(keys)s::text[])
