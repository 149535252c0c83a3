INSERT INTO queues AS q (
    name, partition, pending, leased, running, waiting, cancelling,
    succeeded, failed, cancelled, expired
) VALUES (
    %(name)s, %(partition)s, %(pending)s, %(leased)s, %(running)s, %(waiting)s, %(cancelling)s,
    %(succeeded)s, %(failed)s, %(cancelled)s, %(expired)s
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
