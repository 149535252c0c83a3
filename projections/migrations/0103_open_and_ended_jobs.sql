-- Jobs that have ended lie apart from open ones. An open job's row is small and moves by HOT updates;
-- once the job has ended, it is written to its place and changes no more, or hardly ever: no room is
-- left free there, and whatever is filtered by may have an index.
--
-- Rows of before this migration cannot be carried over: they lack the place at which a job began.
DO $$
BEGIN
    IF EXISTS (SELECT FROM partitions) THEN
        RAISE EXCEPTION 'the read models are of an older version'
            USING HINT = 'ledger projection rebuild makes them anew, beside the old ones';
    END IF;
END
$$;

DROP TABLE jobs, open_jobs, job_events;

-- What changes stands last: the journal then holds little more than that of an update. No index holds
-- a column that changes on the way of a job that goes well, and two thirds of each page are left free:
-- rows that came together move together, and have their state from then on. So updates are HOT.
CREATE TABLE open_jobs (
    born bigint NOT NULL,
    created_at timestamptz NOT NULL,
    partition integer NOT NULL,
    priority smallint NOT NULL,
    id text COLLATE "C" PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    scope text COLLATE "C",
    labels jsonb,
    retried_from text COLLATE "C",
    schedule text COLLATE "C",
    queue_order bigint NOT NULL,
    ready_at timestamptz NOT NULL,
    started_at timestamptz,
    version integer NOT NULL,
    status text COLLATE "C" NOT NULL,
    state bytea,
    error_code text COLLATE "C",
    objects text[],
    wanted text[]
) WITH (
    fillfactor = 35,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);
COMMENT ON COLUMN open_jobs.born IS 'offset of its first event; its history lies under it';
COMMENT ON COLUMN open_jobs.state IS
    'all of the job that changes, packed; NULL: the first row of its history tells it';
COMMENT ON COLUMN open_jobs.wanted IS
    'of flows: worker types of the steps that wait to be leased; NULL: a plain job, its type''s';
COMMENT ON COLUMN open_jobs.objects IS 'keys in the object store';

CREATE INDEX open_jobs_poll ON open_jobs (queue, type, priority, queue_order);
CREATE INDEX open_jobs_queue ON open_jobs (queue, created_at);
-- By labels open jobs are looked through, the newest first: an index of them would cost each job as
-- much as all of its history.
CREATE INDEX open_jobs_created ON open_jobs (created_at);
CREATE INDEX open_jobs_scope ON open_jobs (scope, created_at) WHERE scope IS NOT NULL;
CREATE INDEX open_jobs_error ON open_jobs (error_code, created_at) WHERE error_code IS NOT NULL;
CREATE INDEX open_jobs_retried_from ON open_jobs (retried_from, created_at)
    WHERE retried_from IS NOT NULL;
CREATE INDEX open_jobs_schedule ON open_jobs (schedule, created_at) WHERE schedule IS NOT NULL;
CREATE INDEX open_jobs_objects ON open_jobs USING gin (objects) WHERE objects IS NOT NULL;
CREATE INDEX open_jobs_wanted ON open_jobs (queue, priority, queue_order) WHERE wanted IS NOT NULL;

CREATE TABLE ended_jobs (
    born bigint NOT NULL,
    created_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    partition integer NOT NULL,
    version integer NOT NULL,
    priority smallint NOT NULL,
    ended_badly boolean NOT NULL,
    erased boolean NOT NULL,
    id text COLLATE "C" PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    scope text COLLATE "C",
    labels jsonb,
    error_code text COLLATE "C",
    retried_from text COLLATE "C",
    schedule text COLLATE "C",
    started_at timestamptz,
    removable_at timestamptz,
    state bytea,
    output bytea,
    objects text[],
    -- By which the planner knows where not to look.
    CONSTRAINT ended CHECK (finished_at IS NOT NULL)
);
COMMENT ON COLUMN ended_jobs.ended_badly IS 'failed, cancelled or expired';
COMMENT ON COLUMN ended_jobs.erased IS
    'failed for good, and its time to be seen is over; its row stays, so that the fold goes on';
COMMENT ON COLUMN ended_jobs.removable_at IS
    'when its result or, failed, the job itself may be removed';
COMMENT ON COLUMN ended_jobs.output IS 'JSON as submitted';

CREATE INDEX ended_jobs_created ON ended_jobs (created_at);
CREATE INDEX ended_jobs_queue ON ended_jobs (queue, created_at);
CREATE INDEX ended_jobs_type ON ended_jobs (type, created_at);
CREATE INDEX ended_jobs_priority ON ended_jobs (queue, priority, created_at);
CREATE INDEX ended_jobs_labels ON ended_jobs USING gin (labels jsonb_path_ops)
    WHERE labels IS NOT NULL;
CREATE INDEX ended_jobs_scope ON ended_jobs (scope, created_at) WHERE scope IS NOT NULL;
CREATE INDEX ended_jobs_error ON ended_jobs (error_code, created_at) WHERE error_code IS NOT NULL;
CREATE INDEX ended_jobs_retried_from ON ended_jobs (retried_from, created_at)
    WHERE retried_from IS NOT NULL;
CREATE INDEX ended_jobs_schedule ON ended_jobs (schedule, created_at) WHERE schedule IS NOT NULL;
CREATE INDEX ended_jobs_badly ON ended_jobs (created_at) WHERE ended_badly;
CREATE INDEX ended_jobs_removable ON ended_jobs (removable_at) WHERE removable_at IS NOT NULL;
CREATE INDEX ended_jobs_objects ON ended_jobs USING gin (objects) WHERE objects IS NOT NULL;

-- One row a job and flush; `packed` holds the events first_seq … last_seq. The first row of a job
-- also holds what was asked, which never changes. Rows lie under the place at which their job began:
-- an entry of that index is a third of one with the job's id.
CREATE TABLE job_events (
    born bigint NOT NULL,
    position bigint NOT NULL,
    partition integer NOT NULL,
    first_seq integer NOT NULL,
    last_seq integer NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    packed bytea NOT NULL,
    request bytea,
    payload bytea,
    PRIMARY KEY (partition, born, first_seq)
);
COMMENT ON COLUMN job_events.born IS 'offset of the first event of the job';
COMMENT ON COLUMN job_events.position IS 'offset of the last record of the flush that wrote the row';
COMMENT ON COLUMN job_events.payload IS 'JSON as submitted';
-- What was written since a position, for those that follow the views live: entries of equal position
-- are folded together, and whole flushes are read.
CREATE INDEX job_events_changes ON job_events (partition, position);

-- All jobs, for readers.
CREATE VIEW jobs AS
SELECT id, partition, born, queue, type, status, priority, scope, labels, error_code, retried_from,
    schedule, created_at, started_at, NULL::timestamptz AS finished_at,
    NULL::timestamptz AS removable_at, version, false AS ended_badly, false AS erased, state,
    NULL::bytea AS output, objects
FROM open_jobs
UNION ALL
SELECT id, partition, born, queue, type, status, priority, scope, labels, error_code, retried_from,
    schedule, created_at, started_at, finished_at, removable_at, version, ended_badly, erased, state,
    output, objects
FROM ended_jobs;
