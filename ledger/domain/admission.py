"""Whether a request becomes a job: its key, its template, and the room there is."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from ledger.domain import bulk, models
from ledger.domain.cancel import cancel
from ledger.domain.commands import Asked, RequestJob, RerunJob
from ledger.domain.concurrency import POLICIES, Alone, Shared
from ledger.domain.creation import NO_TEMPLATE, Key, Pinned, key_of, rerun, resolve
from ledger.domain.decisions import Decided, Decision
from ledger.domain.events import (
    CommandDuplicated,
    Event,
    JobCancelled,
    JobEvent,
    JobRequested,
    decoded,
)
from ledger.domain.evolve import begin
from ledger.domain.flows import carry, follow, stored_outputs
from ledger.domain.ids import SECOND, JobId, Micros, QueueName, new_job_id
from ledger.domain.job import Job, status
from ledger.domain.leases import refuse_other_version
from ledger.domain.object_keys import carried_key, is_payload_of
from ledger.domain.partition import Partition
from ledger.domain.rejections import Rejected, Rejection, not_found
from ledger.domain.strict_json import UnsafeInteger, escaped

SKEW_US = 60 * SECOND
"""A sender's clock may be this far ahead or behind before it matters."""


def admit(
    partition: Partition,
    request: RequestJob,
    asked: Asked,
    at: Micros,
    *,
    born: Micros | None = None,
    schedule: str | None = None,
) -> Decision:
    """A key that came before answers first, whatever has become of the template since. `born`: the
    instant in the job's id, if it is another one."""
    request = models.with_tenant(request)
    queue = partition.queues.get(request.queue)
    newest = queue.template(request.type) if queue is not None else None
    version = request.template_version
    pinned = newest
    if version is not None:
        pinned = queue.template(request.type, version) if queue is not None else None
    governing = pinned or newest
    if refused := _moved_wrongly(request, newest, asked):
        return refused
    key = None
    window = partition.bounds.commands_us
    if request.idempotency_key is not None:
        try:
            key = key_of(request, NO_TEMPLATE if governing is None else governing.template)
        except UnsafeInteger as error:
            return _invalid(f"/payload{error.pointer}", str(error))
        assert key is not None
        window = key.window_us
        if (answer := _answered(partition, key, asked, at)) is not None:
            return answer
        if governing is not None and asked.sent_at is not None and asked.sent_at < governing.put_at:
            # Under the template before it another key may have answered: by its id alone is it
            # known whether it is a copy.
            window = min(window, partition.bounds.commands_us)
    if too_old := expired(asked, window):
        return too_old
    if version is not None and pinned is None:
        return Rejected(
            Rejection.TEMPLATE_NOT_FOUND,
            f"no version {version} of template {request.type} is held",
            pointer="/template_version",
        )
    unknown = models.refuse_unknown(partition, request.queue, request.type)
    if refused := unknown or _closed(newest):
        return refused
    event = resolve(
        request,
        pinned,
        key,
        seed=asked.command_id,
        at=at,
        order=partition.next_order(at),
        born=at if born is None else born,
        schedule=schedule,
    )
    if type(event) is Rejected:
        return event
    if key is not None and partition.job(event.job_id) is not None:
        # The same key within its millisecond, yet past its window: told apart by the commands.
        event = replace(event, job_id=new_job_id(event.queue, at, asked.command_id.encode()))
    withdrawn = _withdrawn(partition, event, asked.offset)
    return _beside_its_equals(partition, event, newest, asked, at, withdrawn=withdrawn)


def run_again(partition: Partition, command: RerunJob, asked: Asked, at: Micros) -> Decision:
    """A new job that asks for what an ended one did. That one may be forgotten here: then the
    command brings it along, and as all open jobs are known, it has ended."""
    job = partition.job(command.job_id)
    if job is not None and job.erased:
        return not_found(command.job_id)
    if job is not None:
        if refused := refuse_other_version(job, command.if_version):
            return refused
        if job.end is None:
            return Rejected(
                Rejection.JOB_NOT_CLOSED, "only an ended job can be rerun", job.id, status(job)
            )
        original = job.request
    elif command.original is not UNSET:
        brought = decoded(command.original, JobRequested)
        if brought is None or brought.job_id != command.job_id:
            return _invalid("/original", "not the request of that job")
        original = brought
    else:
        return not_found(command.job_id)
    if too_old := expired(asked, partition.bounds.commands_us):
        return too_old
    queue = partition.queues.get(original.queue)
    newest = queue.template(original.type) if queue is not None else None
    unknown = models.refuse_unknown(partition, original.queue, original.type)
    if refused := unknown or _closed(newest):
        return refused
    version = original.template_version
    pinned = queue.template(original.type, version) if queue is not None and version else None
    order = partition.next_order(at)
    event = rerun(original, command, pinned or newest, seed=asked.command_id, at=at, order=order)
    if isinstance(event, Rejected):
        return event
    if refused := _copied_wrongly(job, original, command, event, asked):
        return refused
    if command.output_refs is not UNSET and not command.from_failed:
        return _invalid("/output_refs", "goes with from_failed only")
    carried: tuple[JobEvent, ...] = ()
    if command.from_failed and original.flow is not None:
        if job is None:
            return Rejected(
                Rejection.VIEW_BEHIND, "the owner has forgotten what its steps gave", command.job_id
            )
        if refused := _carried_wrongly(job, command, event, asked):
            return refused
        copies = {} if command.output_refs is UNSET else command.output_refs
        carried = carry(job, event.job_id, copies)
    return _beside_its_equals(partition, event, newest, asked, at, carried=carried)


def _moved_wrongly(request: RequestJob, newest: Pinned | None, asked: Asked) -> Rejected | None:
    """Of a payload in the object store: whose it is, and by which template it was looked at."""
    ref = request.payload_ref
    if ref is None:
        return None
    if request.payload is not UNSET:
        return _invalid("/payload_ref", "payload and payload_ref exclude each other")
    labels = {} if request.labels is UNSET else request.labels
    if not is_payload_of(ref.key, request.queue, labels, asked.command_id):
        return _invalid("/payload_ref/key", NOT_ITS_OBJECT)
    version = 0 if newest is None else newest.version
    if request.checked_against not in (None, version):
        return Rejected(
            Rejection.VIEW_BEHIND,
            f"the payload was checked against version {request.checked_against} of the template,"
            f" the newest is {version}: send it again",
        )
    return None


NOT_ITS_OBJECT = "not an object that belongs to this command, see docs/objects.md"


def _copied_wrongly(
    job: Job | None, original: JobRequested, command: RerunJob, event: JobRequested, asked: Asked
) -> Rejected | None:
    """A payload in the object store belongs to one job: a rerun brings a copy of its own."""
    ref = command.payload_ref
    if ref is None:
        if original.payload_ref is None or command.payload is not UNSET:
            return None
        gone = job is not None and job.payload_withdrawn
        why = "was removed with its owner: give one" if gone else "is to be copied to this command"
        return _invalid("/payload", f"the job's payload lies in the object store and {why}")
    if command.payload is not UNSET:
        return _invalid("/payload_ref", "payload and payload_ref exclude each other")
    if not is_payload_of(ref.key, event.queue, event.labels, asked.command_id):
        return _invalid("/payload_ref/key", NOT_ITS_OBJECT)
    return None


def _carried_wrongly(
    job: Job, command: RerunJob, event: JobRequested, asked: Asked
) -> Rejected | None:
    """Outputs in the object store go along as copies of their own, too. Of a job whose objects are
    withdrawn there is nothing left to copy."""
    stored = stored_outputs(job)
    if command.output_refs is UNSET:
        if not stored or job.withdrawn:
            return None
        names = ", ".join(stored)
        return _invalid(
            "/output_refs",
            f"outputs lie in the object store and are to be copied to this command: {names}"[:2048],
        )
    for name, ref in command.output_refs.items():
        its, pointer = stored.get(name), f"/output_refs/{escaped(name)}"
        if its is None:
            return _invalid(pointer, "no step that succeeded with its output in the object store")
        if (ref.size, ref.sha256) != (its.size, its.sha256):
            return _invalid(pointer, "not a copy of that step's output")
        if ref.key != carried_key(event.queue, event.labels, asked.command_id, name):
            return _invalid(f"{pointer}/key", NOT_ITS_OBJECT)
    return None


def _beside_its_equals(
    partition: Partition,
    event: JobRequested,
    newest: Pinned | None,
    asked: Asked,
    at: Micros,
    *,
    carried: tuple[JobEvent, ...] = (),
    withdrawn: tuple[Event, ...] = (),
) -> Decision:
    """The job, first in its entry, with the cancels of those whose place it takes; or another one
    in its place. Whoever adds none needs no room for it. `withdrawn`: how it ends at once."""
    verdict = _verdict(partition, event, newest)
    if isinstance(verdict, Rejected):
        return verdict
    if isinstance(verdict, Shared):
        return _shared(partition, event, verdict.job_id, asked)
    replaced = _replaced(partition, verdict.replaces, event, asked.actor, at)
    if isinstance(replaced, Rejected):
        return replaced
    leaving = sum(isinstance(one, JobCancelled) for one in replaced)
    if full := _full(partition, event.queue, leaving):
        return full
    begun = withdrawn
    if event.flow is not None and not withdrawn:
        begun = follow(begin(event, at), carried, at, event.order)
    return Decided((event, *begun, *replaced), event.job_id)


def _verdict(
    partition: Partition, event: JobRequested, newest: Pinned | None
) -> Alone | Shared | Rejected:
    """The newest word on concurrency, on the keys of the version that the job holds."""
    digest = event.dedupe_digest
    if digest is None or newest is None:
        return Alone()
    table = partition.dedupe
    if event.once:
        done = table.done(digest)
        if done is not None:
            return Rejected(Rejection.NOT_REPEATABLE, "an equal job has succeeded", done)
        if table.done_of(event.queue, event.type) >= partition.bounds.once_max:
            return Rejected(Rejection.QUEUE_FULL, "as many jobs that are done once as are held")
    active = table.active(digest)
    policy = newest.template.concurrency_policy
    if policy == "share_in_flight":
        # One that is being cancelled comes to nothing: whoever asks anew does not want that.
        active = tuple(job_id for job_id in active if partition.jobs[job_id].cancel is None)
    return POLICIES[policy](active)


def _shared(partition: Partition, event: JobRequested, job_id: JobId, asked: Asked) -> Decision:
    """A key that comes again is answered by the same job, also once that has ended."""
    if event.key_digest is None:
        return Decided(job_id=job_id, deduplicated=True)
    if len(partition.keys) >= partition.bounds.keys_max:
        return _remembers_too_much()
    duplicated = CommandDuplicated(
        event.queue,
        asked.command_id,
        RequestJob.TYPE,
        job_id,
        event.key_digest,
        event.content_digest,
        event.key_until,
    )
    return Decided((duplicated,), job_id, deduplicated=True)


def _replaced(
    partition: Partition, replaces: tuple[JobId, ...], by: JobRequested, actor: str, at: Micros
) -> tuple[Event, ...] | Rejected:
    """The cancels of those that a new job takes the place of; or why one of them stays."""
    events: list[Event] = []
    for job_id in replaces:
        said = cancel(partition.jobs[job_id], REPLACED, actor, at)
        if isinstance(said, Rejected):
            return said
        events += [replace(event, replaced_by=by.job_id) for event in said]
    return tuple(events)


REPLACED = "replaced by a newer request"


def _answered(partition: Partition, key: Key, asked: Asked, at: Micros) -> Decision | None:
    said_at = asked.sent_at if asked.sent_at is not None else asked.appended_at
    held = partition.keys.find(bytes.fromhex(key.digest), at, said_at or at)
    if held is None:
        return None
    if held.content.hex() == key.content:
        return Decided(job_id=held.job_id, deduplicated=True, replayed=True)
    return Rejected(
        Rejection.IDEMPOTENCY_KEY_REUSED,
        "the same idempotency key came with other content",
        held.job_id,
        pointer="/idempotency_key",
    )


def expired(asked: Asked, window_us: int) -> Rejected | None:
    """What was forgotten cannot come back: the copy of a request that old is refused."""
    if asked.sent_at is None or asked.appended_at - asked.sent_at <= window_us + SKEW_US:
        return None
    return Rejected(
        Rejection.COMMAND_EXPIRED,
        "the command is older than the time for which its id or key is remembered",
    )


def _closed(newest: Pinned | None) -> Rejected | None:
    if newest is None or newest.template.enabled:
        return None
    return Rejected(Rejection.TEMPLATE_DISABLED, "the type's template is disabled")


def _full(partition: Partition, name: QueueName, leaving: int) -> Rejected | None:
    """`leaving`: pending jobs that end with the entry."""
    bounds = partition.bounds
    queue = partition.queues.get(name)
    depth_max = None if queue is None else queue.settings.depth_max
    if queue is not None and depth_max is not None and queue.pending - leaving >= depth_max:
        return Rejected(Rejection.QUEUE_FULL, f"{depth_max} jobs are pending: more may not be")
    if partition.open_bytes >= bounds.open_bytes_max:
        return Rejected(Rejection.QUEUE_FULL, "the partition's open jobs fill their memory")
    if len(partition.keys) >= bounds.keys_max or len(partition.outcomes) >= bounds.commands_max:
        return _remembers_too_much()
    return None


def _remembers_too_much() -> Rejected:
    return Rejected(Rejection.QUEUE_FULL, "the partition remembers as many keys as it may")


def _withdrawn(partition: Partition, job: JobRequested, offset: int) -> tuple[Event, ...]:
    """A bulk cancel covers requests that were acknowledged before it, though read after it."""
    if not job.cancel_supported:
        return ()
    for operation_id, part in partition.bulk_parts.items():
        if offset < part.requests_end and bulk.covers(part.where, job):
            cancelled = JobCancelled(job.job_id, "at_once", part.reason, part.by)
            return (cancelled, bulk.advanced(operation_id, 1))
    return ()


def _invalid(pointer: str, detail: str) -> Rejected:
    return Rejected(Rejection.VALIDATION_FAILED, detail, pointer=pointer)
