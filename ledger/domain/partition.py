"""All that a partition's owner knows: the fold of its entries. Values are immutable, the tables
that hold them are not: `apply` moves them by one entry, in place, and never raises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from heapq import merge

from ledger.domain import deadlines
from ledger.domain.commands import Limit, ProgressSaid, RequestJob, RerunJob, RunSchedule
from ledger.domain.dedupe import Dedupe
from ledger.domain.entries import Entry, TakeOver, command_of
from ledger.domain.events import (
    JOB_EVENTS,
    AttemptStarted,
    BulkEnded,
    BulkPartAdvanced,
    BulkPartConfirmed,
    BulkPartEnded,
    BulkPartStarted,
    BulkStarted,
    CommandDuplicated,
    CommandRejected,
    CommandsConsumed,
    Event,
    InputLost,
    InputQuarantined,
    JobEvent,
    JobProgressed,
    JobRequested,
    LeaseGranted,
    LeasesExtended,
    ModelDeleted,
    ModelPut,
    QueuePaused,
    QueuePut,
    QueueResumed,
    RequestForwarded,
    RuntimeEnded,
    RuntimeStarted,
    ScheduleDeleted,
    ScheduleDisabled,
    ScheduleEnabled,
    ScheduleFired,
    SchedulePut,
    ScheduleSkipped,
    ScheduleStopped,
    TemplatePut,
    Unknown,
)
from ledger.domain.evolve import begin, evolve, extend
from ledger.domain.ids import MAIN, SECOND, Fence, JobId, Micros, QueueName, StepName
from ledger.domain.job import Job, quoted_step, status, worker_type_of
from ledger.domain.limits import Limits
from ledger.domain.open_jobs import Alike, OpenJobs, Packed, job_of
from ledger.domain.operations import Bulk as Bulk
from ledger.domain.operations import BulkPart as BulkPart
from ledger.domain.operations import Operations
from ledger.domain.progress import PERIOD_US, merged, recorded
from ledger.domain.queues import Queue as Queue
from ledger.domain.queues import RuntimeSession as RuntimeSession
from ledger.domain.ready import Place, Ready
from ledger.domain.remembered import KEYED as KEYED
from ledger.domain.remembered import (
    LATE_EVENTS,
    ClosedJobs,
    KeyHolder,
    Keys,
    Late,
    LateEvent,
    Outcomes,
)
from ledger.domain.remembered import Bounds as Bounds
from ledger.domain.remembered import Outcome as Outcome
from ledger.domain.remembered import identity_of as identity_of
from ledger.domain.sizes import size_of, size_of_said
from ledger.domain.step_changes import Misfit
from ledger.domain.steps import Pending, Status, Step, current_lease
from ledger.domain.timers import Timers

_JOB_KINDS = frozenset(JOB_EVENTS)
_MAKE_JOBS = frozenset({RequestJob.TYPE, RerunJob.TYPE, RunSchedule.TYPE})
PASSED_MAX = 1_000
"""Steps that are passed over in one search for the leases just about to be given, at most."""
ADMITTED_MAX = 10_000
"""Delayed jobs whose time has come, at one look."""
FORGET_EVERY = 8
"""Entries between two looks at what is past its time."""


class Partition:
    """See the module. One owner's, or one reader's; never shared."""

    def __init__(self, number: int, bounds: Bounds = Bounds()) -> None:  # noqa: B008 (frozen)
        self.number = number
        self.partitions = 1
        """Of the whole ledger, as the take-overs say."""
        self.bounds = bounds
        self.entry = 0
        self.at = Micros(0)
        self.now = Micros(0)
        """The latest instant that anybody asked about: what is ready is ready at it."""
        self.floor = Micros(0)
        """The instant of the last take-over: no silence that began before it counts as one."""
        self.commands = 0
        self.requests = 0
        self.order = 0
        self.jobs = OpenJobs()
        self.open_bytes = 0
        self.closed = ClosedJobs(bounds)
        self.queues: dict[QueueName, Queue] = {}
        self.keys = Keys()
        self.dedupe = Dedupe()
        self.schedule_timers: Timers[tuple[QueueName, str]] = Timers()
        self.outcomes = Outcomes(bounds)
        self.refused_at: dict[tuple[str, ...], Micros] = {}
        self.operations = Operations()
        self.bulk_parts = self.operations.parts
        self.bulk_done = self.operations.done
        """How many jobs matched in parts that have ended here, for a question asked again."""
        self.bulks = self.operations.all
        self.timers: Timers[JobId] = Timers()
        self.delayed: Timers[JobId] = Timers()
        """Pending jobs that no lane holds yet: their time had not come when they began to wait."""
        self.deferred: dict[JobId, dict[Fence, ProgressSaid]] = {}
        """Progress that came within a second of the last; not in the log."""
        self.touched: dict[JobId, Job] = {}
        """Jobs as the entries since the last `drain_touched` left them."""
        self.late: dict[JobId, Late] = {}
        """What became of jobs that were forgotten before it."""
        self.taken: set[tuple[JobId, StepName]] = set()
        """Steps granted in the entry that is being decided."""
        self.misfits = 0
        self.unknown = 0

    # --- Reading ---------------------------------------------------------------------------------
    def job(self, job_id: JobId) -> Job | None:
        return self.jobs.get(job_id) or self.closed.get(job_id)

    def queue(self, name: QueueName) -> Queue:
        """Begins it if there is none: for what is told or kept, not for what is only asked."""
        queue = self.queues.get(name)
        if queue is None:
            limits = Limits(self._could_be_leased)
            ready = Ready(partial(self._is_ready, limits))
            queue = self.queues[name] = Queue(name, ready, limits)
        return queue

    def next_ready(self, queue: QueueName, types: tuple[str, ...]) -> Job | None:
        """The job of that queue that a runtime of these types is to get now."""
        found = self.best(queue, types, 1, self.now)
        return found[0][0] if found else None

    def may_give(self, queue: QueueName, at: Micros) -> bool:
        """False: no step of that queue can be leased now. For who would else ask for each of many
        runtimes."""
        known = self._giving(queue, at)
        return known is not None and (bool(known.limits) or known.ready.any())

    def best(
        self, queue: QueueName, types: tuple[str, ...], many: int, at: Micros
    ) -> list[tuple[Job, Step]]:
        """Up to `many` steps that may be leased now, best first, less those taken already. None of
        a queue that is paused."""
        known = self._giving(queue, at)
        found: list[tuple[Job, Step]] = []
        if known is None or many < 1:
            return found
        if known.limits:
            return self._best_under_limits(known, types, many)
        taken = self.taken
        for place in known.ready.best(types):
            _, job_id, name = place
            if (job_id, name) in taken:
                continue
            job = self.jobs.unpack(job_id)
            step = job.steps[0] if job.request.flow is None else _step(job, name)
            assert step is not None  # It is ready, so it is there.
            found.append((job, step))
            if len(found) == many:
                break
        return found

    def _giving(self, queue: QueueName, at: Micros) -> Queue | None:
        """The queue, unless it is unknown or paused; jobs whose time has come have their places."""
        self.now = max(at, self.now)
        self._admit(at)
        known = self.queues.get(queue)
        return known if known is not None and known.paused is None else None

    def _best_under_limits(
        self, queue: Queue, types: tuple[str, ...], many: int
    ) -> list[tuple[Job, Step]]:
        """Who cannot be leased is parked at first sight."""
        limits, jobs = queue.limits, self.jobs
        found: list[tuple[Job, Step]] = []
        more = Counter(
            key for job_id, _ in self.taken if job_id in jobs for key in limits.keys(jobs[job_id])
        )
        passed = 0
        with closing(limits.waiting(types, more)) as parked:
            for place in merge(queue.ready.best(types), parked, key=self._rank):
                _, job_id, name = place
                job = jobs[job_id]
                step = _step(job, name)
                if step is None or (job_id, name) in self.taken:
                    continue
                full = limits.full(job, more)
                if full is None:
                    more.update(limits.keys(job))
                    found.append((job, step))
                elif limits.is_recorded(full):
                    limits.park(full, job, worker_type_of(job, step), place)
                else:
                    passed += 1
                if len(found) == many or (found and passed >= PASSED_MAX):
                    break
        limits.clean()
        return found

    def _rank(self, place: Place) -> tuple[int, Place]:
        return self.jobs.terms(place[1]).priority, place

    def deferred_word(self, job_id: JobId, fence: Fence) -> ProgressSaid | None:
        kept = self.deferred.get(job_id)
        return kept.get(fence) if kept is not None else None

    def next_order(self, at: Micros) -> int:
        """Behind all that wait now. Grows with time, so that it compares across partitions."""
        return max(self.order + 1, at)

    def drain_touched(self) -> dict[JobId, Job]:
        touched, self.touched = self.touched, {}
        return touched

    # --- The clock -------------------------------------------------------------------------------
    def due(self, at: Micros, many: int) -> list[Job]:
        """Open jobs of which the clock may have something to say; the others are armed anew.

        Those named are armed no more: by what is recorded of them, or else by `rearm`.
        """
        self.now = max(at, self.now)
        fallen = []
        for job_id in self.timers.pop(at, many):
            job = self.jobs.get(job_id)
            if job is None:
                continue
            if job_id in self.delayed:
                self._wait(job, at)
            when = self._due(job, at)
            if when is not None and when > at:
                self.timers.arm(job_id, when)
            elif when is not None:
                fallen.append(job)
        return fallen

    def rearm(self, job: Job, at: Micros) -> None:
        """`due` named the job, and nothing came of it: look again a little later."""
        when = self._due(job, at)
        if when is not None:
            self.timers.arm(job.id, Micros(max(when, at + SECOND)))

    def defer(self, job_id: JobId, fence: Fence, said: ProgressSaid | None, at: Micros) -> None:
        """Keep a word of progress that was said, where it was too soon to record it: `due` names
        the job when its time has come. Called once what was decided of it is applied."""
        job = self.jobs.get(job_id)
        step = quoted_step(job, fence) if job is not None else None
        if job is None or step is None or step.progress is None or said is None:
            return
        kept = self.deferred_word(job_id, fence)
        word = merged(step.progress, merged(kept, said) if kept else said)
        if word == recorded(step.progress):
            self.drop_word(job_id, fence)
            return
        self.deferred.setdefault(job_id, {})[fence] = word
        self.timers.arm(job_id, Micros(max(at, step.progress.at + PERIOD_US)))

    def drop_word(self, job_id: JobId, fence: Fence) -> None:
        kept = self.deferred.get(job_id)
        if kept is not None:
            kept.pop(fence, None)
            if not kept:
                del self.deferred[job_id]

    # --- The fold --------------------------------------------------------------------------------
    def apply(self, entry: Entry) -> None:
        """Hot: with `evolve` and the tables, 4.1-4.9 us an event of a log of mostly plain jobs."""
        self.entry = entry.number
        self.at = at = entry.at if entry.at > self.at else self.at
        self.now = at if at > self.now else self.now
        self.taken.clear()
        self.commands = entry.commands
        self.requests = entry.requests
        created = False
        for event in entry.events:
            if type(event) in _JOB_KINDS:
                self._apply_to_job(event, at)  # type: ignore[arg-type]
            else:
                created = self._is_new(event) or created
                self._apply_to_queue(event, at)
        command_id = command_of(entry.cause)
        if command_id is not None:
            self.outcomes.note(command_id, entry, at, created=created)
        if entry.number % FORGET_EVERY == 0:
            self.closed.forget(at)
            self.outcomes.forget(at)
            self.keys.forget(at)

    def take_over(self, record: TakeOver) -> None:
        """Nobody is silent to an owner who has only begun to listen.

        It moves deadlines to later only, so every armed timer still comes soon enough.
        """
        self.at = self.floor = max(record.at, self.at)
        self.partitions = record.partitions

    def _apply_to_job(self, event: JobEvent, at: Micros) -> None:
        before = self.jobs.peek(event.job_id)
        if before is None:
            self._apply_to_absent(event, at)
            return
        if type(before) is Packed:
            before = job_of(event.job_id, before)
        after = evolve(before, event, at)
        if type(after) is Misfit:
            self.misfits += 1
            return
        kind = type(event)
        if kind is AttemptStarted and self.timers.comes_by(event.job_id, event.deadline):  # type: ignore[union-attr]
            self._replace(before, after, at, rearm=False)  # A start brings no other deadline.
            return
        if kind is LeaseGranted:
            if event.number:  # type: ignore[union-attr]
                self.queues[before.request.queue].count_assignment(event)  # type: ignore[arg-type]
        elif kind is JobProgressed:
            self.drop_word(event.job_id, event.fence)  # type: ignore[union-attr]
        self._replace(before, after, at)

    def _apply_to_absent(self, event: JobEvent, at: Micros) -> None:
        before = self.closed.get(event.job_id)
        if before is None and isinstance(event, JobRequested):
            self._open(event, at)
            return
        if before is None and isinstance(event, LATE_EVENTS):
            self._note_late(event, at)
            return
        after = None if before is None else evolve(before, event, at)
        if before is None or after is None or isinstance(after, Misfit):
            self.misfits += 1
            return
        self.closed.replace(before, after)
        self.touched[after.id] = after

    def _note_late(self, event: LateEvent, at: Micros) -> None:
        """The first one collected it; what is withdrawn stays so."""
        late = self.late.pop(event.job_id, None) or Late()
        self.late[event.job_id] = late.after(event, at)
        if len(self.late) > self.bounds.closed_max:
            del self.late[next(iter(self.late))]

    def _is_new(self, event: Event) -> bool:
        """Whether it puts something of which there was none."""
        kind = type(event)
        if kind is not SchedulePut and kind is not ModelPut:
            return False
        queue = self.queues.get(event.queue)  # type: ignore[union-attr]
        if queue is None:
            return True
        held = queue.schedules if kind is SchedulePut else queue.models
        return held.get(event.name) is None  # type: ignore[union-attr]

    def _apply_to_queue(self, event: Event, at: Micros) -> None:
        fits = True
        match event:
            case LeasesExtended():
                for extension in event.leases:
                    job = self.jobs.get(extension.job_id)
                    after = extend(job, extension) if job else None
                    if job is None or after is None or isinstance(after, Misfit):
                        self.misfits += 1
                    else:
                        self.jobs[job.id] = self.touched[job.id] = after
            case RuntimeStarted():
                self.queue(event.queue).start_session(event, at)
            case RuntimeEnded():
                self.queue(event.queue).end_session(event)
            case TemplatePut():
                queue = self.queue(event.queue)
                fits = queue.put_template(event, at)
                newest = queue.template(event.type)
                if fits and newest is not None:
                    self._declare(queue, event.type, newest.template.limits)
            case QueuePut():
                queue = self.queue(event.queue)
                fits = queue.put_settings(event)
                self._declare(queue, "", queue.settings.limits)
            case QueuePaused() | QueueResumed():
                self.queue(event.queue).pause(event, at)
            case (
                SchedulePut()
                | ScheduleDeleted()
                | ScheduleEnabled()
                | ScheduleDisabled()
                | ScheduleFired()
                | ScheduleSkipped()
                | ScheduleStopped()
            ):
                fits = self.queue(event.queue).schedules.apply(event, at)
                self.arm_schedule(event.queue, event.name)
            case ModelPut() | ModelDeleted():
                fits = self.queue(event.queue).apply_model(event)
            case CommandRejected():
                self._note_refusal(event, at)
            case (
                BulkStarted()
                | BulkPartStarted()
                | BulkPartAdvanced()
                | BulkPartEnded()
                | BulkPartConfirmed()
                | BulkEnded()
            ):
                fits = self.operations.apply(event)
            case Unknown():
                self._keep_unknown(event)
            case CommandDuplicated():
                if event.key_digest is not None and event.job_id is not None:
                    self._hold_key(event, event.job_id, at)
            case RequestForwarded() | CommandsConsumed() | InputQuarantined() | InputLost():
                pass  # Of what the intakes held, not of what the partition holds.
            case _:
                fits = False
        if not fits:
            self.misfits += 1

    # --- Jobs in and out -------------------------------------------------------------------------
    def _open(self, event: JobRequested, at: Micros) -> None:
        job = begin(event, at)
        job_id = event.job_id
        self.jobs.add(job)
        self.touched[job_id] = job
        if event.order > self.order:
            self.order = event.order
        self.open_bytes += size_of(job)
        if event.key_digest is not None:
            self._hold_key(event, job_id, at)
        queue = self.queue(event.queue)
        if event.template_version is not None:
            queue.pin(event.type, event.template_version)
        if event.dedupe_digest is not None:
            self.dedupe.open(event)
        queue.pending += 1
        self._take_places(job, job.steps, at)
        if event.ready_at > at or event.start_timeout_us is not None:
            self._arm(job, at)

    def put_back(self, job: Job) -> None:
        """One that is open, as it stood. Its queue is there, `at` is."""
        asked = job.request
        self.jobs.add(job)
        self.open_bytes += size_of(job)
        queue = self.queue(asked.queue)
        if asked.template_version is not None:
            queue.pin(asked.type, asked.template_version)
        if asked.dedupe_digest is not None:
            self.dedupe.open(asked)
        queue.pending += _is_pending(job)
        if queue.limits:
            queue.limits.hold(job)
        self._wait(job, self.at)
        self._arm(job, self.at)

    def put_back_waiting(self, alike: Alike, size: int) -> None:
        """Many that wait for a runtime and nothing else, and hold no dedupe key. `size`: of all."""
        terms, many = alike.terms, len(alike.ids)
        self.jobs.put_back(alike)
        self.open_bytes += size
        queue = self.queue(terms.queue)
        if terms.template_version is not None:
            queue.pin(terms.type, terms.template_version, many)
        queue.pending += many
        queue.ready.extend(terms.type, terms.priority, alike.orders, alike.ids, MAIN)

    def _replace(self, before: Job, after: Job, at: Micros, *, rearm: bool = True) -> None:
        asked = after.request
        job_id = asked.job_id
        self.touched[job_id] = after
        queue = self.queues[asked.queue]
        if after.end is None:
            self.jobs[job_id] = after
        else:
            self._close(job_id, before, after)
        if asked.flow is not None:
            queue.pending += _is_pending(after) - _is_pending(before)
            if after.end is None:
                self._replace_steps(before, after, at)
        else:
            was, step = before.steps[0], after.steps[0]
            waited, waits = type(was.phase) is Pending, type(step.phase) is Pending
            if waited or waits:
                queue.pending += _is_pending(after) - _is_pending(before)
            if after.end is None:
                if step.failure is not was.failure or step.progress is not was.progress:
                    self.open_bytes += size_of_said(step) - size_of_said(was)
                if waits and not waited:
                    self._wait_again(after, at)
        if rearm and after.end is None:
            self._arm(after, at)
        if queue.limits:
            queue.limits.moved(before, after)

    def _wait_again(self, job: Job, at: Micros) -> None:
        """A plain one, after an attempt."""
        self.order = max(self.order, job.order)
        self.deferred.pop(job.id, None)
        self._wait(job, at)

    def _replace_steps(self, before: Job, after: Job, at: Micros) -> None:
        self.open_bytes += size_of(after) - size_of(before)
        live = {lease.fence for step in after.steps if (lease := current_lease(step))}
        for fence in self.deferred.get(after.id, {}).keys() - live:
            self.drop_word(after.id, fence)
        known = set() if after.order != before.order else {id(step) for step in before.steps}
        fresh = [
            step for step in after.steps if type(step.phase) is Pending and id(step) not in known
        ]
        if fresh:
            self.order = max(self.order, after.order)
            self._take_places(after, fresh, at)

    def _close(self, job_id: JobId, before: Job, after: Job) -> None:
        del self.jobs[job_id]
        self.delayed.disarm(job_id)
        self.deferred.pop(job_id, None)
        self.timers.disarm(job_id)
        self.open_bytes -= size_of(before)
        self.closed.add(after)
        asked = after.request
        if asked.dedupe_digest is not None:
            self.dedupe.close(asked, succeeded=after.end is Status.SUCCEEDED)
        if asked.template_version is not None:
            self.queue(asked.queue).unpin(asked.type, asked.template_version)

    def _hold_key(self, event: JobRequested | CommandDuplicated, job_id: JobId, at: Micros) -> None:
        try:
            digest = bytes.fromhex(event.key_digest or "")
            content = bytes.fromhex(event.content_digest or "")
        except ValueError:
            self.misfits += 1  # No rule of this version writes such digests.
            return
        until = at if event.key_until is None else event.key_until
        self.keys.add(KeyHolder(digest, job_id, content, until), at)

    def _note_refusal(self, event: CommandRejected, at: Micros) -> None:
        refused = self.refused_at
        key = refusal_key(event)
        refused.pop(key, None)
        refused[key] = at
        if len(refused) > self.bounds.refusals_max:
            del refused[next(iter(refused))]

    def _keep_unknown(self, event: Unknown) -> None:
        self.unknown += 1
        job = self.job(JobId(event.key))
        if job is None:
            return
        later = job.with_opaque()
        self.touched[job.id] = later
        if job.end is None:
            self.jobs[job.id] = later
        else:
            self.closed.replace(job, later)

    # --- Lanes and timers, derived ---------------------------------------------------------------
    def _wait(self, job: Job, at: Micros) -> None:
        """A pending job takes its place in its lane, or waits for the time to do so."""
        if not self._take_places(job, job.steps, at):
            self.delayed.disarm(job.id)

    def _admit(self, at: Micros) -> None:
        """Jobs whose time has come take their places. Unlike other timers this one need not wait
        for words that are not read yet: none of them could take that time back."""
        for job_id in self.delayed.pop(at, ADMITTED_MAX):
            self._wait(self.jobs[job_id], at)

    def _take_places(self, job: Job, steps: Iterable[Step], at: Micros) -> bool:
        """Whether any of them waits for its time."""
        asked = job.request
        job_id = asked.job_id
        is_delayed = False
        for step in steps:
            phase = step.phase
            if type(phase) is not Pending:
                continue
            if phase.ready_at > at:
                self.delayed.arm(job_id, phase.ready_at)
                is_delayed = True
            elif job.cancel is None:
                # One that stands there already stands there twice, until its turn has come.
                place = (job.order, job_id, step.name)
                worker_type = asked.type if asked.flow is None else worker_type_of(job, step)
                self.queue(asked.queue).ready.add(worker_type, asked.priority, place)
        return is_delayed

    def _could_be_leased(self, place: Place) -> bool:
        """But for limits."""
        order, job_id, name = place
        job = self.jobs.peek(job_id)
        if job is None or job.order != order:
            return False
        if type(job) is Packed:
            return job.ready_at <= self.now
        step = job.steps[0] if job.request.flow is None else _step(job, name)
        phase = step.phase if step is not None else None
        return type(phase) is Pending and phase.ready_at <= self.now and job.cancel is None

    def _is_ready(self, limits: Limits, place: Place) -> bool:
        return self._could_be_leased(place) and not limits.is_parked(place)

    def _declare(self, queue: Queue, job_type: str, limits: tuple[Limit, ...]) -> None:
        """Limits are always the newest ones: a change is of effect on all that wait, at once."""
        if not queue.limits.declare(job_type, limits):
            return
        for worker_type, priority, place in queue.limits.reset():
            queue.ready.add(worker_type, priority, place)
        for job in self.jobs.begun():
            if job.request.queue == queue.name:
                queue.limits.hold(job)

    def declare_all(self, queue: Queue) -> None:
        """The limits of its settings and of its newest templates."""
        self._declare(queue, "", queue.settings.limits)
        for job_type in queue.templates:
            newest = queue.template(job_type)
            if newest is not None:
                self._declare(queue, job_type, newest.template.limits)

    def arm_schedule(self, queue: QueueName, name: str) -> None:
        """For its next occurrence, if there is one."""
        schedule = self.queue(queue).schedules.get(name)
        key = (queue, name)
        self.schedule_timers.disarm(key)
        if schedule is not None and schedule.next_at is not None:
            self.schedule_timers.arm(key, schedule.next_at)

    def _arm(self, job: Job, at: Micros) -> None:
        when = self._due(job, at)
        if when is not None:
            self.timers.arm(job.request.job_id, when)

    def _due(self, job: Job, at: Micros) -> Micros | None:
        when = deadlines.due(job, self.floor, at)
        if not self.deferred:
            return when
        for fence in self.deferred.get(job.request.job_id, ()):
            step = quoted_step(job, fence)
            if step is not None and step.progress is not None:
                again = Micros(step.progress.at + PERIOD_US)
                when = again if when is None else min(when, again)
        return when


def _step(job: Job, name: StepName) -> Step | None:
    return next((step for step in job.steps if step.name == name), None)


def _is_pending(job: Job) -> bool:
    if job.end is not None or job.cancel is not None:
        return False
    if job.request.flow is None:
        return type(job.steps[0].phase) is Pending
    return status(job) is Status.PENDING


def refusal_key(event: CommandRejected) -> tuple[str, ...]:
    """Equal refusals have equal keys: of one command type, on one job or by one runtime, for one
    reason. A refusal that names neither is its command's own; so is that of a command which would
    make a job if a copy of it were accepted later, and one under an Idempotency-Key: these have to
    be found again by their ids."""
    named = event.job_id is not None or event.runtime_id is not None
    if not named or event.command_type in _MAKE_JOBS or event.command_id.startswith(KEYED):
        return (event.command_type, event.code, event.command_id)
    return (event.command_type, event.code, event.job_id or "", event.runtime_id or "")
