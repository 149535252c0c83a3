INSERT INTO queues AS q (
    name, partition, pending, leased, running, waiting, cancelling,
    succeeded, failed, cancelled, expired
)
SELECT *
FROM unnest(
    %(name)s::text[], %(partition)s::integer[],
    %(pending)s::bigint[], %(leased)s::bigint[], %(running)s::bigint[], %(waiting)s::bigint[],
    %(cancelling)s::bigint[], %(succeeded)s::bigint[], %(failed)s::bigint[],
    %(cancelled)s::bigint[], %(expired)s::bigint[]
)
ON CONFLICT (name) DO UPDATE
SET pending = q.pending + excluded.pending,
    leased = q.leased + excluded.leased,
    running = q.running + excluded.running,
    waiting = q.waiting + excluded.waiting,
    cancelling = q.cancelling + excluded.cancelling,
    succeeded = q.succeeded + excluded.succeeded,
    failed = q.failed + excluded.failed,
    cancelled = q.cancelled + excluded.cancelled,
    expired = q.expired + excluded.expired
