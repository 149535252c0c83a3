-- What was written since a position, for those that follow the views live. A row carries the position
-- of its flush, the same for all of them: entries of the index are folded together, and whole
-- flushes are read, so that within a partition events are told in the log's own order.
--
-- Rows of before this migration have none and are told by no live stream; their jobs' histories are
-- whole. A rebuild gives every row its position.
ALTER TABLE job_events
    ADD COLUMN position bigint,
    ADD COLUMN partition integer;
COMMENT ON COLUMN job_events.position IS 'offset of the last record of the flush that wrote the row';
CREATE INDEX job_events_changes ON job_events (partition, position);
