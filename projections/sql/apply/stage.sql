-- Once a session. Every row is found by its key: a plan made while the tables were small, by
-- scanning them, would be kept when they are not.
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_seqscan = off;
SET enable_material = off;
SET jit = off;
SET default_statistics_target = 10;
CREATE TEMPORARY TABLE staged_jobs (
    events integer,
    version integer,
    queue_order bigint,
    ready_at timestamptz,
    ended_badly boolean,
    withdrawn boolean,
    erased boolean,
    id text COLLATE "C",
    status text COLLATE "C",
    state bytea,
    packed bytea,
    error_code text COLLATE "C",
    started_at timestamptz,
    finished_at timestamptz,
    removable_at timestamptz,
    output bytea,
    wanted text[],
    objects text[]
) ON COMMIT DELETE ROWS;
-- Whichever of the two is looked through first: open jobs are cleared up when few are left, and the
-- planner then takes them for few when they are many.
CREATE INDEX staged_jobs_id ON staged_jobs (id);
CREATE TEMPORARY TABLE staged_commands (
    partition integer,
    position bigint,
    at timestamptz,
    id text COLLATE "C",
    outcome text,
    detail text,
    code text,
    job_id text COLLATE "C",
    operation_id text COLLATE "C"
) ON COMMIT DELETE ROWS
