-- Jobs per minute, by queue and by what became of them. Written by the reaction `rates`, which has
-- a checkpoint of its own: nothing else depends on these tables.
CREATE TABLE job_rates (
    minute  timestamptz NOT NULL,
    queue   text        NOT NULL,
    outcome text        NOT NULL,
    count   bigint      NOT NULL,
    PRIMARY KEY (queue, minute, outcome)
);

CREATE INDEX job_rates_minute ON job_rates (minute);

CREATE TABLE job_rates_checkpoints (
    partition   integer PRIMARY KEY,
    topic       text    NOT NULL,
    -- The next offset to read; compared and set with every write.
    next_offset bigint  NOT NULL,
    -- Where a reader goes on: `ledger.log.effective.Cursor` as JSON.
    cursor      bytea   NOT NULL,
    -- Entries that could not be counted and were passed over.
    quarantined bigint  NOT NULL DEFAULT 0
);
