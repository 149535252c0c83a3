-- The newest part of a job's history lies in the job's own row: a row of history a flush took 420
-- bytes of journal, with its entries of two indexes, beside the job's row, which is written anyway.
--
-- Rows of before this migration are not carried over: all of their history would be written anew.
DO $$
BEGIN
    IF EXISTS (SELECT FROM partitions) THEN
        RAISE EXCEPTION 'the read models are of an older version'
            USING HINT = 'ledger projection rebuild makes them anew, beside the old ones';
    END IF;
END
$$;

-- The last column, and what is new stands first in it: of a row that moves within its page the
-- journal holds what lies between the first byte that changed and the last.
ALTER TABLE open_jobs ADD COLUMN newest bytea NOT NULL;
ALTER TABLE ended_jobs ADD COLUMN newest bytea NOT NULL;
COMMENT ON COLUMN open_jobs.newest IS
    'the newest part of its history, up to the event `version`; what is older lies in job_events';
COMMENT ON COLUMN open_jobs.state IS
    'all of the job that changes, packed; NULL: its history tells it';

-- The first row of a job holds what was asked and its first events. It gets another one whenever
-- what has gathered in the job's own row has grown long.
ALTER TABLE job_events ALTER COLUMN job_id DROP NOT NULL;
COMMENT ON COLUMN job_events.job_id IS 'in the first row';
DROP INDEX job_events_changes;

-- Which jobs moved in a flush, for those that follow the views live. Whole flushes are read, so that
-- within a partition events are told in the log's own order.
CREATE TABLE flushes (
    position bigint NOT NULL,
    partition integer NOT NULL,
    jobs integer NOT NULL,
    born bigint[] NOT NULL
);
COMMENT ON TABLE flushes IS 'a few rows a flush: of jobs that began, that moved, that ended';
COMMENT ON COLUMN flushes.position IS 'offset of the last record of the flush';
COMMENT ON COLUMN flushes.born IS 'where the jobs began';
-- To compress them took 1 us of each.
ALTER TABLE flushes ALTER COLUMN born SET STORAGE EXTERNAL;
CREATE INDEX flushes_position ON flushes (partition, position);

CREATE OR REPLACE VIEW jobs AS
SELECT id, partition, born, queue, type, status, priority, scope, labels, error_code, retried_from,
    schedule, created_at, started_at, NULL::timestamptz AS finished_at,
    NULL::timestamptz AS removable_at, version, false AS ended_badly, false AS erased, state,
    NULL::bytea AS output, objects, newest
FROM open_jobs
UNION ALL
SELECT id, partition, born, queue, type, status, priority, scope, labels, error_code, retried_from,
    schedule, created_at, started_at, finished_at, removable_at, version, ended_badly, erased, state,
    output, objects, newest
FROM ended_jobs;
