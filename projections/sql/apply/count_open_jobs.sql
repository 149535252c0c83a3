-- For its number of rows alone: of one column, by a small sample.
ANALYZE (SKIP_LOCKED) open_jobs (id)
