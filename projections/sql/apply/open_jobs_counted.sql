SELECT reltuples::bigint FROM pg_class WHERE oid = 'open_jobs'::regclass
