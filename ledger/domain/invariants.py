"""What must hold at every position of a partition's log (docs/guarantees.md, I1 to I30), checked
while its effective entries are folded: in tests, and on a log in production by `ledger verify`.

Memory is bounded by what the partition itself holds: a trace for each open job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct

from ledger.domain.entries import Entry, TakeOver, command_of
from ledger.domain.events import (
    JOB_EVENTS,
    Event,
    JobEvent,
    JobRequested,
    LeaseGranted,
    LeasesExtended,
    ObjectsDeleted,
    QueuePaused,
    QueuePut,
    QueueResumed,
    RuntimeEnded,
    RuntimeStarted,
    TemplatePut,
    Unknown,
    type_of,
)
from ledger.domain.flow_traces import FlowTrace
from ledger.domain.ids import NO_SESSION, SECOND, JobId, Micros, queue_of
from ledger.domain.partition import Partition
from ledger.domain.queue_traces import QueueTraces
from ledger.domain.remembered import LATE_EVENTS, identity_of
from ledger.domain.retention import are_in_use
from ledger.domain.schedule_table import ScheduleEvent
from ledger.domain.traces import NOWHERE, Place, Trace
from ledger.domain.waiting_traces import AnyTrace, WaitingTraces

PATIENCE_US = 10 * SECOND
"""How late the owner may act on what the clock says, before it is a fault."""
_JOB_KINDS = frozenset(JOB_EVENTS)
_IN_ITS_QUEUE = frozenset(
    {
        TemplatePut,
        QueuePut,
        QueuePaused,
        QueueResumed,
        RuntimeStarted,
        RuntimeEnded,
        *ScheduleEvent.__args__,
    }
)
"""Facts of no single job that lie where their queue does, whoever asked."""


class Violation(Struct, frozen=True, gc=False):
    rule: str
    """Number of the invariant."""
    job_id: JobId | None
    position: int
    """Number of the entry."""
    detail: str
    offset: int = -1
    """Of the entry's first record, where whoever reads said so."""
    before: Place = NOWHERE
    """Of the entry that it does not go with: the last before it that told something of the job, or
    of the one that was passed over."""


class Invariants:
    """Folds entries into `partition`, which nobody else may move, and says what was wrong with
    each. Total: a log that breaks every rule only gets many violations."""

    def __init__(
        self,
        partition: Partition,
        *,
        patience_us: int = PATIENCE_US,
        home: Callable[[str], int] | None = None,
    ) -> None:
        """`home`: the number of the partition in which a queue lies, where that is known."""
        self.partition = partition
        self._home = home
        self._queues = QueueTraces()
        self.entries = 0
        self._patience_us = patience_us
        self._traces: dict[JobId, AnyTrace] = {}
        self._waiting = WaitingTraces(self._traces)
        self._graces: list[tuple[int, JobId]] = []
        self._found: list[Violation] = []
        self._place = NOWHERE
        self._claimed: set[str] = set()
        """Worker types that the entry's claim had asked for, as far as is known."""

    def take_over(self, record: TakeOver) -> list[Violation]:
        """Its instant may lie before the last entry's, whose writer it ousts: that landed while the
        take-over was on its way. The fold goes on from the later one."""
        self.partition.take_over(record)
        return self._drain()

    def check(self, entry: Entry, offset: int = -1) -> list[Violation]:
        """What the entry does wrong, given all before it. It is applied.

        Hot, so plain: measured 9.6-11 us an event with the fold, which is nearly half of it.
        """
        partition, traces = self.partition, self._traces
        place = self._place = (entry.number, offset)
        self.entries += 1
        if entry.number != partition.entry + 1:
            self._say("I2", None, f"entry {entry.number} after {partition.entry}")
        if entry.at < partition.at:
            self._say("I24", None, f"{partition.at - entry.at} us back in time")
        at = Micros(max(entry.at, partition.at))
        touched: dict[JobId, AnyTrace] = {}
        self._check_outcome(entry)
        self._claimed = self._types_claimed(entry)
        event: Any
        for event in entry.events:
            kind = type(event)
            if kind in _JOB_KINDS:
                trace = traces.get(event.job_id)
                if trace is not None:
                    self._check_job_event(event, trace, at, touched)
                else:
                    self._check_home(event, queue_of(event.job_id))
                    if kind is JobRequested:
                        self._check_request(event, at, touched)
                    else:
                        self._check_late(event)
            elif kind is LeasesExtended:
                self._check_home(event, event.queue)
                self._check_extensions(event, touched)
            elif kind is Unknown:
                if (trace := traces.get(JobId(event.key))) is not None:
                    trace.opaque = True
            elif kind in _IN_ITS_QUEUE:
                self._check_home(event, event.queue)
            for rule, job_id, detail in self._queues.follow(event, at):
                self._say(rule, job_id, detail)
        for rule, job_id, detail in self._queues.end_of_entry():
            self._say(rule, job_id, detail)
        self._fold(entry)
        for job_id, trace in touched.items():
            self._compare(job_id, trace)
            trace.place = place
        self._check_graces(at)
        return self._drain()

    def settle(self) -> list[Violation]:
        """What a look at the whole state says: the sums that are otherwise derived step by step."""
        for job_id, trace in self._traces.items():
            self._compare_open(job_id, trace)
        for job_id in self.partition.jobs.keys() - self._traces.keys():
            self._say("I1", job_id, "open in the fold only")
        return self._drain()

    # --- One entry -------------------------------------------------------------------------------
    def _check_outcome(self, entry: Entry) -> None:
        """One command makes one job, or takes one set of leases, while its id is remembered."""
        command_id = command_of(entry.cause)
        before = None
        if command_id is not None:
            before = self.partition.outcomes.get(identity_of(command_id)[0])
        if before is None or before.rejected is not None:
            return
        for event in entry.events:
            match event:
                case JobRequested(job_id=job_id) if job_id != before.job_id:
                    place = self._place_of(before.job_id)
                    self._say("I4", job_id, f"{command_id} had its outcome before", place)
                case LeaseGranted(job_id=job_id, session=session) if session == NO_SESSION:
                    self._say("I4", job_id, f"{command_id} had its outcome before")
                case _:
                    pass

    def _check_home(self, event: Event, queue: str | None) -> None:
        """Every event lies in the partition of its queue. Of a job's its request is looked at, and
        what comes where it is not open: the others lie where that lies."""
        home = self._home
        if home is not None and (queue is None or home(queue) != self.partition.number):
            job_id = getattr(event, "job_id", None)
            what = (
                f"{queue} does not belong here"
                if job_id is None
                else "the job does not belong here"
            )
            self._say("I3", job_id, f"{type_of(event)}: {what}")

    def _check_request(
        self, event: JobRequested, at: Micros, touched: dict[JobId, AnyTrace]
    ) -> None:
        partition = self.partition
        if partition.job(event.job_id) is not None:
            self._say("I10", event.job_id, "requested after its end")
            return
        if event.key_digest is not None:
            self._check_key(event, at)
        origin = event.retried_from
        if origin is not None:
            retried = partition.jobs.get(origin)
            if origin == event.job_id or (retried is not None and retried.end is None):
                what = f"a rerun of {origin}, which has not ended"
                self._say("I18", event.job_id, what, self._place_of(origin))
        if event.order <= partition.order:
            self._say("I16", event.job_id, f"place {event.order} is not behind {partition.order}")
        trace: AnyTrace
        if event.flow is None:
            trace = Trace(event)
        else:  # Its first steps are to begin in the same entry.
            trace = touched[event.job_id] = FlowTrace(event, event.flow)
        trace.place = self._place
        self._traces[event.job_id] = trace
        self._waiting.follow(trace)

    def _check_key(self, event: JobRequested, at: Micros) -> None:
        try:
            digest = bytes.fromhex(event.key_digest or "")
        except ValueError:
            self._say("I4", event.job_id, "a key's digest that is none")
            return
        held = self.partition.keys.find(digest, at, at)
        if held is not None:
            what = f"its key already stands for {held.job_id}"
            self._say("I4", event.job_id, what, self._place_of(held.job_id))

    def _check_late(self, event: JobEvent) -> None:
        """Of a job that is not open."""
        if not isinstance(event, LATE_EVENTS):
            self._say("I10", event.job_id, f"{event.TYPE} on a job that is not open")
        elif isinstance(event, ObjectsDeleted):
            closed = self.partition.closed.get(event.job_id)
            if closed is not None and are_in_use(closed, event.keys):
                self._say("I19", event.job_id, "objects deleted that were not withdrawn")

    def _check_job_event(
        self, event: JobEvent, trace: AnyTrace, at: Micros, touched: dict[JobId, AnyTrace]
    ) -> None:
        touched[event.job_id] = trace
        if trace.opaque:
            return
        if type(event) is LeaseGranted:
            self._check_assignment(event, trace, at)
        for rule, detail in trace.follow(event, at, self.partition.floor):
            self._say(rule, event.job_id, detail)
        self._waiting.follow(trace)
        if trace.cancel_by is not None and not trace.ended:
            heappush(self._graces, (trace.cancel_by, event.job_id))

    def _check_assignment(self, event: LeaseGranted, trace: AnyTrace, at: Micros) -> None:
        """Nobody who waits for such a runtime is better. What it had asked for is on record for one
        that reads an inbox; of one over HTTP see `_types_claimed`."""
        queue = trace.asked.queue
        if event.session == NO_SESSION:
            types: Iterable[str] = self._claimed
        else:
            known = self.partition.queues.get(queue)
            session = known.sessions.get(event.runtime_id) if known else None
            if session is None or session.session != event.session:
                self._say("I6", event.job_id, f"leased to {event.session}, which is no session")
                return
            types = session.types
        for better in self._waiting.passed_over(
            event,
            trace,
            types=types,
            ready_by=at - self._patience_us,
            held_back=self._queues.held_back,
        ):
            _, _, job_id, step = better
            detail = f"leased while {job_id} ({step}) waited before it"
            self._say("I16", event.job_id, detail, self._place_of(job_id))

    def _types_claimed(self, entry: Entry) -> set[str]:
        """Worker types that a runtime over HTTP had asked for in the claim that the entry answers.

        The log does not hold what a claim had named. Several leases in one entry are a claim's, and
        their types were among those it named: of these is shown that each lease went to the best
        who waited in its queue, so also that they are in order. Not shown: that nobody better of
        another type of the claim waited, nor anything of a single lease, which may as well be a
        lock's, whose job its caller chose. An entry alone does not tell one from the other.
        """
        if len(entry.events) < 2:
            return set()
        claimed = [
            event
            for event in entry.events
            if type(event) is LeaseGranted and event.session == NO_SESSION
        ]
        if len(claimed) < 2:
            return set()
        return {
            trace.worker_type(event.step)
            for event in claimed
            if (trace := self._traces.get(event.job_id)) is not None
        }

    def _check_extensions(self, event: LeasesExtended, touched: dict[JobId, AnyTrace]) -> None:
        for extension in event.leases:
            trace = self._traces.get(extension.job_id)
            if trace is None:
                self._say("I8", extension.job_id, "extended, and not open")
                continue
            touched[extension.job_id] = trace
            if trace.opaque:
                continue
            for rule, detail in trace.extend(extension, event.runtime_id):
                self._say(rule, extension.job_id, detail)

    def _fold(self, entry: Entry) -> None:
        misfits = self.partition.misfits
        try:
            self.partition.apply(entry)
        except Exception as error:
            self._say("I1", None, f"the fold raised {error!r}")
        if self.partition.misfits > misfits:
            count = self.partition.misfits - misfits
            self._say("I1", None, f"{count} events do not fit what was before them")
        self.partition.drain_touched()

    def _compare(self, job_id: JobId, trace: AnyTrace) -> None:
        if trace.opaque:
            trace.ended = job_id not in self.partition.jobs
        else:
            for rule, detail in trace.at_rest():
                self._say(rule, job_id, detail)
        if not trace.ended:
            return self._compare_open(job_id, trace)
        if job_id in self.partition.jobs:
            self._say("I10", job_id, "ended, yet open in the fold")
        self._traces.pop(job_id, None)

    def _compare_open(self, job_id: JobId, trace: AnyTrace) -> None:
        if trace.ended or trace.opaque:
            return
        for rule, detail in trace.differs(self.partition.jobs.get(job_id)):
            self._say(rule, job_id, detail)

    def _check_graces(self, at: Micros) -> None:
        graces, floor = self._graces, self.partition.floor
        while graces and graces[0][0] + self._patience_us < at:
            _, job_id = heappop(graces)
            trace = self._traces.get(job_id)
            end = trace.grace_end(floor) if trace is not None else None
            if end is None:
                continue
            if end + self._patience_us < at:
                self._say("I12", job_id, f"still cancelling {at - end} us after its grace")
            else:
                heappush(graces, (end, job_id))

    def _say(
        self, rule: str, job_id: JobId | None, detail: str, before: Place | None = None
    ) -> None:
        number, offset = self._place
        before = self._place_of(job_id) if before is None else before
        before = NOWHERE if before == self._place else before
        self._found.append(Violation(rule, job_id, number, detail, offset, before))

    def _place_of(self, job_id: JobId | None) -> Place:
        """Of what was told of it last; nowhere, if it is not open."""
        trace = None if job_id is None else self._traces.get(job_id)
        return NOWHERE if trace is None else trace.place

    def _drain(self) -> list[Violation]:
        found, self._found = self._found, []
        return found
