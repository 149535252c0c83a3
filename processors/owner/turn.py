"""One turn of an owner: records and due timers decided in memory, in order, into entries and the
effects that may be released once those are proven. No await, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Raw, Struct
from msgspec.structs import replace

from ledger.domain import bulk, runtimes, schedules
from ledger.domain.cancel import cancel
from ledger.domain.commands import (
    Asked,
    Beat,
    CancelPart,
    Claim,
    ConfirmPart,
    DeclareInputLost,
    GatewayBeat,
    Heartbeat,
    Report,
    ReportProgress,
    RerunJob,
)
from ledger.domain.deadlines import NEVER
from ledger.domain.decide import Decided, decide, decided_before, defer, due
from ledger.domain.entries import GRANT, TIMER, Entry, cause_of
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    CancelRequested,
    CommandDuplicated,
    CommandRejected,
    CommandsConsumed,
    Event,
    InputQuarantined,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    RequestForwarded,
    StepCarried,
    StepExpanded,
    StepSucceeded,
    TemplatePut,
)
from ledger.domain.failures import LEASE_EXPIRED
from ledger.domain.ids import LEDGER_QUEUE, SECOND, Fence, JobId, Micros, QueueName, queue_of
from ledger.domain.intakes import Missing, declare_lost
from ledger.domain.job import Job
from ledger.domain.leases import LEFT_BEFORE, NOT_CONFIRMED, take_back
from ledger.domain.partition import KEYED, Partition, refusal_key
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.schedules import Edit
from ledger.domain.steps import held_lease
from ledger.log.command_codec import Misshapen
from ledger.log.replies import Reply
from processors.owner import answers
from processors.owner.credit import Credit, Offers, leased_under

OWNER = "owner"
REFUSAL_PERIOD_US = 60 * SECOND
"""Equal refusals are recorded once, then at most once in this time with their count."""
WORDS_MAX = 250
"""Of a report in one entry; a longer one is recorded in several, its offset by the last."""
OCCURRENCES_MAX = 10_000
"""Of one schedule that are fired before an edit of it, at most: it gives up the others."""
UNRECORDED = (Beat, Heartbeat, ReportProgress, Claim)
"""Commands that may change nothing and leave no entry of their own, unless they are keyed."""


class Waiting(Struct):
    """A reply that leaves when the entry that it speaks of is proven (0: no entry of its own)."""

    reply_to: str
    reply: Reply
    entry: int


class Heard(Struct):
    beat: Beat
    refused: tuple[Rejected, ...]
    """Words of the same report."""
    settled: frozenset[JobId]
    """Jobs that the same report spoke of: held no more, and known to be."""


@dataclass(slots=True)
class Effects:
    """What a turn wants done. Each may be done twice."""

    replies: list[Waiting] = field(default_factory=list)
    beats: list[Heard] = field(default_factory=list)
    """To be answered from the state at the end of the turn."""
    cancels: list[JobId] = field(default_factory=list)
    """Their runtimes are told at once, not with their next beat's answer."""
    assignments: dict[tuple[QueueName, str], list[LeaseGranted]] = field(default_factory=dict)
    resend: list[tuple[QueueName, Credit]] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)
    """Bulk operations of which other partitions are to be told, or told again."""
    confirmations: dict[str, int] = field(default_factory=dict)
    """Parts that ended here: operation and number of matching jobs."""

    def any(self) -> bool:
        return bool(self.beats) or self._others()

    def are_answers_to_the_idle(self) -> bool:
        """To beats of runtimes that hold nothing, and nothing else."""
        return (
            bool(self.beats)
            and not self._others()
            and all(heard.beat.slots and not heard.beat.leases for heard in self.beats)
        )

    def _others(self) -> bool:
        return bool(
            self.replies
            or self.cancels
            or self.assignments
            or self.resend
            or self.parts
            or self.confirmations
        )


class Turn:
    """Decides on `partition`, which runs ahead of the log: if the append fails, drop it."""

    def __init__(
        self,
        partition: Partition,
        offers: Offers,
        at: Micros,
        *,
        ahead: int = 0,
        fits: Callable[[Entry], bool],
        suppressed: Counter[tuple[str, ...]],
        bulk_todo: dict[str, list[JobId]],
    ) -> None:
        """`ahead`: of `at`, of the brokers' clock, in microseconds."""
        self.partition = partition
        self.offers = offers
        self.at = at
        self._ahead = ahead
        self.entries: list[Entry] = []
        self.effects = Effects()
        self.unrecorded = 0
        """Commands read in this turn that left no entry."""
        self.lapses_at = NEVER
        """When the first of those heard in this turn will have been silent too long."""
        self.schedules_fired = 0
        self.input_lost = False
        """An intake is to be read from another offset than the next."""
        self._fits = fits
        self._suppressed = suppressed
        self._bulk_todo = bulk_todo
        self._commands = partition.commands
        self._requests = partition.requests

    # --- What was read ---------------------------------------------------------------------------
    def read_command(self, asked: Asked) -> None:
        command = asked.command
        if isinstance(command, Edit):
            self._before_edit(command, min(asked.appended_at, self.at))
        self._commands = asked.offset + 1
        match command:
            case Report() if len(command.reports) > WORDS_MAX:
                self._long_report(asked, command)
            case Beat():
                self._decide(asked)
                self._beat(command, asked, ())
            case Claim():
                self._claim(asked, command)
            case GatewayBeat():
                self.offers.hear_gateway(command, asked.reply_to, self.at, self._heard_at(asked))
                self.unrecorded += 1
            case _:
                self._decide(asked)

    def read_request(self, asked: Asked) -> None:
        self._requests = asked.offset + 1
        self._decide(asked)

    def read_part(self, asked: Asked, command: CancelPart, requests_end: int) -> None:
        self._commands = asked.offset + 1
        events = bulk.start_part(self.partition, command, requests_end)
        done = self.partition.bulk_done.get(command.operation_id)
        if done is not None:
            self.effects.confirmations[command.operation_id] = done
        self._record(events or (self._duplicate(asked, None),), asked)

    def read_lost(
        self, asked: Asked, command: DeclareInputLost, missing: Missing | None, *, ahead: bool
    ) -> None:
        """`ahead`: read before its turn, behind a gap in the commands; its offset is not consumed,
        so once the gap is closed it comes again, and so does whatever was left out here."""
        if ahead and self.input_lost:
            return
        if not ahead:
            self._commands = asked.offset + 1
        missing = None if self.input_lost else missing
        decided = decided_before(self.partition, asked) or declare_lost(command, missing)
        if isinstance(decided, Rejected):
            self._refuse(asked, decided)
            return
        if decided.events:
            self.input_lost = True
            if command.topic == "commands":
                self._commands = command.end
            else:
                self._requests = command.end
        self._accept(asked, decided)

    def forwarded(self, asked: Asked, queue: QueueName, partition: int) -> None:
        """The request was sent on, and that is acknowledged."""
        self._requests = asked.offset + 1
        self._record((RequestForwarded(queue, asked.command_id, partition),), asked)

    def misplaced(self, asked: Asked, detail: str, *, commands: int, requests: int) -> None:
        self._commands, self._requests = commands, requests
        self._refuse(asked, Rejected(Rejection.WRONG_PARTITION, detail))

    def misshapen(self, found: Misshapen, *, commands: int, requests: int) -> None:
        self._commands, self._requests = commands, requests
        refused = Rejected(
            Rejection.VALIDATION_FAILED, found.message, found.job_id, pointer=found.pointer or None
        )
        event = CommandRejected(
            queue=found.queue or LEDGER_QUEUE,
            command_id=found.command_id,
            command_type=found.type,
            code=refused.code,
            detail=refused.detail[:2048],
            job_id=found.job_id,
            pointer=refused.pointer,
        )
        awaited = bool(found.reply_to)
        cause = cause_of(found.command_id, awaited=awaited)
        if self._note(event):
            self._append((event,), cause, found.actor)
        if awaited:
            reply = Reply(
                command_id=found.command_id,
                outcome="rejected",
                position="",
                code=refused.code,
                detail=refused.detail,
                pointer=refused.pointer,
                job_id=refused.job_id,
            )
            self._wait(found.reply_to, reply)

    def quarantined(self, event: InputQuarantined, *, commands: int, requests: int) -> None:
        """The dead letter is acknowledged."""
        self._commands, self._requests = commands, requests
        self._append((event,), OWNER, OWNER)

    # --- What the clock says ---------------------------------------------------------------------
    def timers(self, asked_at: Micros, many: int) -> int:
        """Fire what had fallen due at `asked_at`: the commands are read up to an end that was
        asked for after it. How many jobs were looked at."""
        fallen = self.partition.due(asked_at, many)
        for job in fallen:
            events = due(self.partition, job, asked_at, self.at)
            if events:
                self._doubt_the_silent(job, events)
                self._append(events, TIMER, OWNER)
            else:
                self.partition.rearm(job, asked_at)
        self._take_back(asked_at, many)
        return len(fallen)

    def _doubt_the_silent(self, job: Job, events: tuple[Event, ...]) -> None:
        """Who let a lease lapse is likely dead: the next try, and others' jobs, go elsewhere."""
        for event in events:
            if isinstance(event, AttemptExpired) and event.code == LEASE_EXPIRED:
                [lease] = [held_lease(step) for step in job.steps if step.name == event.step]
                if lease is not None:
                    self.offers.doubt(job.request.queue, lease.runtime_id, lease.session)

    def schedules(self, at: Micros, many: int) -> int:
        """Fire the occurrences that are due at `at`. How many schedules were looked at."""
        timers = self.partition.schedule_timers
        fired = 0
        while fired < many and (due := timers.next_due()) is not None and due <= at:
            for queue, name in timers.pop(at, many - fired):
                events = schedules.fire(self.partition, queue, name, at, self.at)
                if events:
                    self._append(events, TIMER, OWNER)
                self.partition.arm_schedule(queue, name)
                fired += 1
        self.schedules_fired = fired
        return fired

    def _before_edit(self, edit: Edit, until: Micros) -> None:
        """So that it neither loses an occurrence nor invents one."""
        for _ in range(OCCURRENCES_MAX):
            events = schedules.fire(self.partition, edit.queue, edit.name, until, self.at)
            if not events:
                return
            self._append(events, TIMER, OWNER)

    def _take_back(self, asked_at: Micros, many: int) -> None:
        """Release what claims were granted and no gateway confirmed."""
        for granted in self.offers.unconfirmed_over(asked_at, many):
            self._take_back_grant(granted.job_id, granted.fence, granted.until, NOT_CONFIRMED)

    def _take_back_grant(self, job_id: JobId, fence: Fence, until: Micros, why: str) -> None:
        job = self.partition.jobs.get(job_id)
        if job is None:
            return
        order = self.partition.next_order(self.at)
        events = take_back(job, fence, until, self.at, order, why)
        if events and not isinstance(events, Rejected):
            self._append(events, TIMER, OWNER)

    def silences(self) -> Micros:
        """End the sessions of runtimes that were not heard for too long. When the next may be."""
        next_at = NEVER
        for queue in list(self.partition.queues.values()):
            for runtime_id, session in list(queue.sessions.items()):
                credit = self.offers.heard(queue.name, runtime_id)
                mine = credit is not None and credit.session == session.session
                heard_at = credit.heard_at if credit is not None and mine else self.partition.floor
                heard_at = max(heard_at, session.started_at, self.partition.floor)
                events = runtimes.silent(queue.name, runtime_id, session, heard_at, self.at)
                if events:
                    self._append(events, TIMER, OWNER)
                    self.offers.drop(queue.name, runtime_id)
                else:
                    next_at = min(next_at, runtimes.silent_at(heard_at, session.period_us))
        return next_at

    def claims_over(self) -> None:
        for parked in self.offers.over(self.at):
            self._accept(parked.asked, Decided())

    def bulks(self) -> None:
        """Go on with each bulk cancel at work here, by one bounded entry."""
        for operation_id in list(self.partition.bulk_parts):
            todo = self._bulk_todo.get(operation_id)
            if todo is None:
                todo = self._bulk_todo[operation_id] = bulk.selected(self.partition, operation_id)
            part = self.partition.bulk_parts[operation_id]
            events: list[Event] = []
            matched = 0
            now, todo[:] = todo[: bulk.JOBS_MAX], todo[bulk.JOBS_MAX :]
            for job_id in now:
                job = self.partition.jobs.get(job_id)
                said = cancel(job, part.reason, part.by, self.at) if job else ()
                if isinstance(said, Rejected) or not said:
                    continue
                events.extend(said)
                matched += 1
            if events:
                events.append(bulk.advanced(operation_id, matched))
            elif not todo:
                events.extend(bulk.end_part(self.partition, operation_id))
            if events:
                self._append(tuple(events), TIMER, OWNER)
            if operation_id in self.partition.bulk_done:
                del self._bulk_todo[operation_id]
                self.effects.confirmations[operation_id] = self.partition.bulk_done[operation_id]

    # --- Assigning -------------------------------------------------------------------------------
    def assign(self) -> None:
        """Give ready jobs to free slots: first to claims that wait, then to the emptiest runtime,
        a part of its room at a time so that few jobs spread over many runtimes."""
        for name in list(self.partition.queues):
            if not self.partition.may_give(name, self.at):
                continue
            for parked in self.offers.waiting(name, self.at):
                if self.partition.next_ready(name, parked.claim.types) is not None:
                    self._fill(parked.asked, parked.claim)
            takers = self.offers.takers(name, self.at)
            exhausted: set[tuple[str, ...]] = set()
            while takers:
                takers = [taker for taker in takers if self._give(name, taker, exhausted)]

    def _give(self, queue: QueueName, taker: Credit, exhausted: set[tuple[str, ...]]) -> bool:
        """Whether it would take more. `exhausted`: types of which nothing is left for anybody."""
        session = self.partition.queue(queue).sessions.get(taker.runtime_id)
        if session is None or session.session != taker.session or taker.types in exhausted:
            return False
        many = max(1, taker.free // 2)
        grants = runtimes.grants(
            self.partition,
            queue,
            taker.types,
            taker.runtime_id,
            many,
            self.at,
            session=taker.session,
            after=max(session.number, taker.given),
        )
        if not grants:
            exhausted.add(taker.types)
            return False
        self._append(tuple(grants), GRANT, OWNER)
        for grant in grants:
            taker.outstanding[grant.number] = grant.job_id
        taker.given = grants[-1].number
        self.effects.assignments.setdefault((queue, taker.runtime_id), []).extend(grants)
        return taker.free > 0

    def _claim(self, asked: Asked, command: Claim) -> None:
        decided = decide(self.partition, asked, self.at)
        if isinstance(decided, Rejected):
            self._refuse(asked, decided)
        elif decided.grants or decided.replayed or not self._park(asked, command):
            self._accept(asked, decided)
        else:
            self.unrecorded += 1
            self._wait(asked.reply_to, answers.parked(asked))

    def _park(self, asked: Asked, command: Claim) -> bool:
        waits = command.wait_seconds > 0
        return waits and self.offers.park(asked, command, self.at, self._heard_at(asked))

    def _fill(self, asked: Asked, command: Claim) -> None:
        decided = decide(self.partition, asked, self.at)
        if isinstance(decided, Decided) and decided.grants:
            del self.offers.parked[asked.command_id]
            self._accept(asked, decided)

    # --- From decision to entry ------------------------------------------------------------------
    def _decide(self, asked: Asked) -> None:
        decided = decide(self.partition, asked, self.at)
        if isinstance(decided, Rejected):
            self._refuse(asked, decided)
        else:
            self._accept(asked, decided)

    def _accept(self, asked: Asked, decided: Decided) -> None:
        command = asked.command
        events = decided.events + self._refusals(asked, decided.refused)
        events = events or self._no_news(asked, decided)
        if not events:
            self.unrecorded += 1
        elif not self._record(events, asked):
            return
        if not decided.replayed:
            defer(self.partition, command, self.at)
        if asked.reply_to:
            self._wait(asked.reply_to, answers.acceptance(self.partition, asked, decided))
        if isinstance(command, Report) and command.beat is not None:
            self._beat(command.beat, asked, decided.refused)
        elif isinstance(command, Claim):
            self.offers.granted(asked, () if decided.replayed else decided.grants, self.at)
        elif isinstance(command, ConfirmPart):
            pass
        elif decided.operation_id is not None:
            self.effects.parts.add(decided.operation_id)

    def _no_news(self, asked: Asked, decided: Decided) -> tuple[Event, ...]:
        """How a command that changed nothing is recorded."""
        if decided.replayed or not isinstance(asked.command, UNRECORDED):
            return (self._duplicate(asked, decided.job_id),)
        if not asked.command_id.startswith(KEYED):
            return ()
        if isinstance(asked.command, Claim):
            # Whoever repeats it, anywhere, is to be told again that there was nothing.
            return (CommandsConsumed(LEDGER_QUEUE, 1),)
        # Whoever repeats it is answered so, and another body under the key is refused.
        return (self._duplicate(asked, decided.job_id),)

    def _refuse(self, asked: Asked, refused: Rejected) -> None:
        event = self._rejection(asked, refused)
        if self._note(event):
            self._append((event,), self._cause(asked), asked.actor)
        if asked.reply_to:
            self._wait(asked.reply_to, answers.refusal(self.partition, asked, refused))

    def _long_report(self, asked: Asked, report: Report) -> None:
        """Its words are idempotent, so that those of a first part may be read again: the offset
        moves with the last part only."""
        before = self._commands - 1
        for first in range(0, len(report.reports), WORDS_MAX):
            last = first + WORDS_MAX >= len(report.reports)
            self._commands = before + 1 if last else max(before, self.partition.commands)
            part = replace(
                report,
                reports=report.reports[first : first + WORDS_MAX],
                beat=report.beat if last else None,
            )
            self._decide(replace(asked, command=part, reply_to=asked.reply_to if last else ""))

    def _beat(self, beat: Beat, asked: Asked, refused: tuple[Rejected, ...]) -> None:
        heard_at = self._heard_at(asked)
        session = self.partition.queue(beat.queue).sessions.get(beat.runtime_id)
        current = session is not None and session.session == beat.session
        if beat.leaving:
            self._take_back_from(beat)
            self.offers.drop(beat.queue, beat.runtime_id)
        elif session is not None and current:
            # A session that was ended as silent and goes on counts on from what it received.
            given = max(session.number, beat.received)
            credit = self.offers.hear(beat, heard_at, given)
            if credit is not None:
                self.lapses_at = min(self.lapses_at, credit.lapses_at())
                if credit.received < credit.given:
                    self.effects.resend.append((beat.queue, credit))
        report = asked.command
        words = report.reports if isinstance(report, Report) else ()
        settled = frozenset(word.job_id for word in words)
        self.effects.beats.append(Heard(beat, refused, settled))

    def _take_back_from(self, beat: Beat) -> None:
        """What was given to one who leaves, and had not come to it: given before its last word was
        heard, and nobody else's until the lease lapses."""
        credit = self.offers.heard(beat.queue, beat.runtime_id)
        if credit is None or credit.session != beat.session:
            return
        for number, job_id in credit.outstanding.items():
            job = self.partition.jobs.get(job_id)
            found = leased_under(job, credit, number) if job is not None else None
            if found is not None and number > beat.received:
                _, lease = found
                self._take_back_grant(job_id, lease.fence, lease.until, LEFT_BEFORE)

    def _heard_at(self, asked: Asked) -> Micros:
        """When the broker took it: a beat read late is no sign of life now."""
        if not asked.appended_at:
            return self.at
        return min(self.at, Micros(asked.appended_at + self._ahead))

    def _record(self, events: tuple[Event, ...], asked: Asked) -> bool:
        """False: what the command would record does not fit; it was refused instead."""
        correlation = ""
        if isinstance(asked.command, RerunJob) and isinstance(events[0], JobRequested):
            correlation = events[0].retried_from or ""
        entry = self._entry(events, self._cause(asked), asked.actor, correlation)
        if _is_large(events) and not self._fits(entry):
            self.partition.taken.clear()
            self._refuse(
                asked, Rejected(Rejection.ENTRY_TOO_LARGE, "the command would record too much")
            )
            return False
        self._apply(entry)
        return True

    def _append(self, events: tuple[Event, ...], cause: str, actor: str) -> None:
        self._apply(self._entry(events, cause, actor, ""))

    def consumed(self, count: int) -> None:
        """Record how far the intakes are read, where no other entry says so."""
        self._append((CommandsConsumed(LEDGER_QUEUE, count),), TIMER, OWNER)

    def _entry(self, events: tuple[Event, ...], cause: str, actor: str, correlation: str) -> Entry:
        return Entry(
            number=self.partition.entry + 1,
            at=self.at,
            commands=self._commands,
            requests=self._requests,
            events=events,
            actor=actor,
            cause=cause,
            correlation=correlation,
        )

    def _apply(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.effects.cancels += [e.job_id for e in entry.events if type(e) is CancelRequested]
        self.partition.apply(entry)

    def finish(self) -> None:
        """The offsets of commands that left no entry are known to the partition, too."""
        self.partition.commands = self._commands
        self.partition.requests = self._requests

    def _wait(self, reply_to: str, reply: Reply) -> None:
        if reply_to:
            entry = self.entries[-1].number if self.entries else 0
            self.effects.replies.append(Waiting(reply_to, reply, entry))

    # --- Refusals --------------------------------------------------------------------------------
    def _refusals(self, asked: Asked, refused: tuple[Rejected, ...]) -> tuple[Event, ...]:
        return tuple(event for one in refused if self._note(event := self._rejection(asked, one)))

    def _note(self, event: CommandRejected) -> bool:
        """Whether this refusal is to be recorded, or only counted."""
        if not self._is_recent(event):
            return True
        self._suppressed[refusal_key(event)] += 1
        self.unrecorded += 1
        return False

    def _rejection(self, asked: Asked, refused: Rejected) -> CommandRejected:
        command = asked.command
        job_id = refused.job_id or getattr(command, "job_id", None)
        event = CommandRejected(
            queue=_queue_of(asked, job_id),
            command_id=asked.command_id,
            command_type=command.TYPE,
            code=refused.code,
            detail=refused.detail[:2048],
            job_status=refused.job_status,
            pointer=refused.pointer,
            job_id=job_id,
            runtime_id=getattr(command, "runtime_id", None),
        )
        again = self._suppressed.pop(refusal_key(event), 0) if not self._is_recent(event) else 0
        return replace(event, count=1 + again) if again else event

    def _is_recent(self, event: CommandRejected) -> bool:
        last = self.partition.refused_at.get(refusal_key(event))
        return last is not None and self.at < last + REFUSAL_PERIOD_US

    def _duplicate(self, asked: Asked, job_id: JobId | None) -> CommandDuplicated:
        return CommandDuplicated(
            _queue_of(asked, job_id), asked.command_id, asked.command.TYPE, job_id
        )

    def _cause(self, asked: Asked) -> str:
        return cause_of(asked.command_id, awaited=bool(asked.reply_to))


def _queue_of(asked: Asked, job_id: JobId | None) -> QueueName:
    command = asked.command
    named = getattr(command, "queue", None) or (queue_of(job_id) if job_id else None)
    return named or LEDGER_QUEUE


LARGE_BYTES = 400_000
EVENT_BYTES = 600
"""What an event's record takes beside its payload or output, at most as a rule."""
_TEXTS: dict[type, str] = {
    JobRequested: "payload",
    JobSucceeded: "output",
    AttemptFailed: "details",
    TemplatePut: "template",
    StepSucceeded: "output",
    StepCarried: "output",
    StepExpanded: "items",
}


def _is_large(events: tuple[Event, ...]) -> bool:
    """Whether it is worth asking if the entry fits: a cheap estimate, twice on the safe side."""
    size = len(events) * EVENT_BYTES
    for event in events:
        name = _TEXTS.get(type(event))
        if name is not None and isinstance(raw := getattr(event, name), Raw):
            size += len(memoryview(raw))
    return size > LARGE_BYTES
