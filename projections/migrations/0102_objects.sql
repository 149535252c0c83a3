-- What a job refers to in the object store, less what was deleted; NULL: nothing. For a job that
-- refers to nothing no index changes on its way, so its updates stay HOT.
ALTER TABLE jobs ADD COLUMN objects text[];
COMMENT ON COLUMN jobs.objects IS 'keys in the object store';
CREATE INDEX jobs_objects ON jobs USING gin (objects) WHERE objects IS NOT NULL;
