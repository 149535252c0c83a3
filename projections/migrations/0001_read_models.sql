-- The read models of one ledger, in the schema that the search path names.
--
-- Instants are timestamps with time zone: a microsecond of theirs is one of ours. Texts are compared
-- by their bytes (COLLATE "C"), so that keysets and indexes are the same on every server.

-- The tracking table of the library `eventsourcing`, with what a reader needs to resume.
CREATE TABLE checkpoints (
    application_name text COLLATE "C" PRIMARY KEY,
    notification_id bigint,
    cursor bytea,
    nonces bytea
) WITH (fillfactor = 20);
-- How the library knows a table of one row an application.
INSERT INTO checkpoints (application_name, notification_id) VALUES ('__migration__', 1);
COMMENT ON COLUMN checkpoints.application_name IS 'topic-partition';
COMMENT ON COLUMN checkpoints.notification_id IS 'the next offset to read';
COMMENT ON COLUMN checkpoints.nonces IS 'of all take-overs; apart, because it changes with them only';

-- That a partition was begun, so that a checkpoint that is gone is not taken for a beginning.
CREATE TABLE partitions (
    partition integer PRIMARY KEY,
    application_name text COLLATE "C" NOT NULL,
    entry bigint NOT NULL DEFAULT 0,
    at timestamptz NOT NULL DEFAULT 'epoch',
    commands bigint NOT NULL DEFAULT 0,
    requests bigint NOT NULL DEFAULT 0,
    misfits bigint NOT NULL DEFAULT 0,
    unknown bigint NOT NULL DEFAULT 0,
    layout integer NOT NULL
) WITH (fillfactor = 20);
COMMENT ON COLUMN partitions.commands IS 'the next offset of the intake that its owner had to read';
COMMENT ON COLUMN partitions.misfits IS 'events that no rule writes; they changed nothing';
COMMENT ON COLUMN partitions.layout IS 'of the packed columns';

-- Half of each page is left free and no index holds a column that changes on the way of a job that
-- goes well: its updates are then HOT. Measured on batches of 3,000: 16-25 us an update instead of
-- 32-39, and 1.9 kB of WAL a job instead of 3.0.
CREATE TABLE jobs (
    id text COLLATE "C" PRIMARY KEY,
    partition integer NOT NULL,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    queue_order bigint NOT NULL,
    scope text COLLATE "C",
    labels jsonb,
    error_code text COLLATE "C",
    retried_from text COLLATE "C",
    schedule text COLLATE "C",
    idempotency_key text,
    created_at timestamptz NOT NULL,
    ready_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    lease_until timestamptz,
    removable_at timestamptz,
    version integer NOT NULL,
    position bigint NOT NULL,
    ended_badly boolean NOT NULL,
    state bytea NOT NULL,
    output bytea
) WITH (fillfactor = 50);
COMMENT ON COLUMN jobs.position IS 'offset of its last event';
COMMENT ON COLUMN jobs.ended_badly IS 'failed, cancelled or expired';
COMMENT ON COLUMN jobs.removable_at IS 'when its result or, failed, the job itself may be removed';
COMMENT ON COLUMN jobs.state IS 'all of the job that changes, packed';
COMMENT ON COLUMN jobs.output IS 'JSON as submitted';

CREATE INDEX jobs_created ON jobs (created_at);
CREATE INDEX jobs_queue ON jobs (queue, created_at);
CREATE INDEX jobs_type ON jobs (type, created_at);
CREATE INDEX jobs_priority ON jobs (queue, priority, created_at);
CREATE INDEX jobs_labels ON jobs USING gin (labels jsonb_path_ops) WHERE labels IS NOT NULL;
CREATE INDEX jobs_scope ON jobs (scope, created_at) WHERE scope IS NOT NULL;
CREATE INDEX jobs_error ON jobs (error_code, created_at) WHERE error_code IS NOT NULL;
CREATE INDEX jobs_retried_from ON jobs (retried_from, created_at) WHERE retried_from IS NOT NULL;
CREATE INDEX jobs_schedule ON jobs (schedule, created_at) WHERE schedule IS NOT NULL;
CREATE INDEX jobs_ended_badly ON jobs (created_at) WHERE ended_badly;
CREATE INDEX jobs_removable ON jobs (removable_at) WHERE removable_at IS NOT NULL;

-- Jobs that have not ended, apart: what changes often and must be found fast is in few small rows.
CREATE TABLE open_jobs (
    id text COLLATE "C" PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    queue_order bigint NOT NULL,
    created_at timestamptz NOT NULL,
    ready_at timestamptz NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);
CREATE INDEX open_jobs_poll ON open_jobs (queue, type, priority, queue_order);
CREATE INDEX open_jobs_oldest ON open_jobs (queue, created_at);

-- One row a job and flush; `packed` holds the events first_seq … last_seq. The first row of a job
-- also holds what was asked, which never changes: were it in `jobs`, every update would write it
-- again, and its half-empty pages would hold it twice.
CREATE TABLE job_events (
    job_id text COLLATE "C" NOT NULL,
    first_seq integer NOT NULL,
    last_seq integer NOT NULL,
    packed bytea NOT NULL,
    request bytea,
    payload bytea,
    PRIMARY KEY (job_id, first_seq)
);

COMMENT ON COLUMN job_events.payload IS 'JSON as submitted';

-- Kept by what changes, never counted anew.
CREATE TABLE queues (
    name text COLLATE "C" PRIMARY KEY,
    partition integer NOT NULL,
    pending bigint NOT NULL DEFAULT 0,
    leased bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    waiting bigint NOT NULL DEFAULT 0,
    cancelling bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    expired bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);

-- The latest session of each runtime in each queue.
CREATE TABLE runtimes (
    queue text COLLATE "C" NOT NULL,
    runtime_id text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    session text COLLATE "C" NOT NULL,
    types text[] NOT NULL,
    period interval NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    why text,
    position bigint NOT NULL,
    PRIMARY KEY (queue, runtime_id)
);

-- Kept for an hour; the only table that is no fold of the whole log.
CREATE TABLE commands (
    id text COLLATE "C" PRIMARY KEY,
    partition integer NOT NULL,
    outcome text NOT NULL,
    code text,
    detail text NOT NULL,
    job_id text COLLATE "C",
    operation_id text COLLATE "C",
    position bigint NOT NULL,
    at timestamptz NOT NULL
);
CREATE INDEX commands_at ON commands (at);

CREATE TABLE templates (
    queue text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    partition integer NOT NULL,
    template bytea NOT NULL,
    put_at timestamptz NOT NULL,
    put_by text NOT NULL,
    PRIMARY KEY (queue, type, version)
);

-- Bulk operations, as the partition of the queue `_ledger` tells them …
CREATE TABLE operations (
    id text COLLATE "C" PRIMARY KEY,
    kind text NOT NULL,
    asked bytea NOT NULL,
    reason text NOT NULL,
    asked_by text NOT NULL,
    partitions integer NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    matched bigint NOT NULL DEFAULT 0,
    confirmed integer NOT NULL DEFAULT 0
);

-- … and as each partition does its own.
CREATE TABLE operation_parts (
    operation_id text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    requests_end bigint NOT NULL,
    matched bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    PRIMARY KEY (operation_id, partition)
);
