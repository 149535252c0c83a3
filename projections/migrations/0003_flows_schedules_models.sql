-- Flows: which worker types the steps want that wait to be leased. NULL: a plain job, its type's.
ALTER TABLE open_jobs ADD COLUMN wanted text[];
CREATE INDEX open_jobs_wanted ON open_jobs (queue, priority, queue_order) WHERE wanted IS NOT NULL;

-- Failed for good, and its time to be seen is over. Its row stays, so that the fold goes on.
ALTER TABLE jobs ADD COLUMN erased boolean NOT NULL DEFAULT false;

-- What operators say of queues; a queue of which nobody said anything has no row.
CREATE TABLE queue_settings (
    queue text COLLATE "C" PRIMARY KEY,
    partition integer NOT NULL,
    settings bytea,
    put_at timestamptz,
    put_by text,
    paused_at timestamptz,
    paused_by text,
    pause_reason text,
    position bigint NOT NULL
);

CREATE TABLE schedules (
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    schedule bytea NOT NULL,
    enabled boolean NOT NULL,
    command_id text NOT NULL,
    next_at timestamptz,
    last_run_at timestamptz,
    last_job_id text COLLATE "C",
    last_nominal_at timestamptz,
    stopped text,
    position bigint NOT NULL,
    PRIMARY KEY (queue, name)
);
COMMENT ON COLUMN schedules.schedule IS 'JSON as put; whether it is enabled stands apart';
COMMENT ON COLUMN schedules.stopped IS 'why it is parked';

CREATE TABLE models (
    name text COLLATE "C" PRIMARY KEY,
    partition integer NOT NULL,
    model bytea NOT NULL,
    put_at timestamptz NOT NULL,
    put_by text NOT NULL,
    position bigint NOT NULL
);
COMMENT ON COLUMN models.model IS 'JSON as put, its key sealed';
