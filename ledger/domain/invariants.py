"""What must hold at every position of a partition's log (docs/guarantees.md, I1 to I30), checked
while its effective entries are folded: in tests, and on a log in production by `ledger verify`.

Memory is bounded by what the partition itself holds: a trace for each open job.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice

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
)
from ledger.domain.flow_traces import FlowTrace
from ledger.domain.ids import NO_SESSION, SECOND, JobId, Micros, queue_of
from ledger.domain.partition import Partition
from ledger.domain.queue_traces import QueueTraces
from ledger.domain.ready import ascending
from ledger.domain.remembered import LATE_EVENTS, identity_of
from ledger.domain.retention import are_in_use
from ledger.domain.schedule_table import ScheduleEvent
from ledger.domain.traces import Trace

PATIENCE_US = 10 * SECOND
"""How late the owner may act on what the clock says, before it is a fault."""
PLACES_MIN = 1024
LOOKED_AT_MAX = 100
"""Jobs that a full limit holds back, passed over in looking for one that none does."""
_IN_ITS_QUEUE = (
    TemplatePut
    | QueuePut
    | QueuePaused
    | QueueResumed
    | ScheduleEvent
    | RuntimeStarted
    | RuntimeEnded
    | LeasesExtended
)
"""Facts of no single job that lie where their queue does, whoever asked."""
AnyTrace = Trace | FlowTrace


class Violation(Struct, frozen=True, gc=False):
    rule: str
    """Number of the invariant."""
    job_id: JobId | None
    position: int
    """Number of the entry."""
    detail: str


class Waiting:
    """Pending jobs of one type, best first: to see who was passed over."""

    __slots__ = ("_heap", "_later")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, JobId]] = []
        self._later: list[tuple[int, JobId]] = []

    def add(self, trace: AnyTrace) -> None:
        heappush(self._later, (trace.ready_at, trace.asked.job_id))

    def best(
        self, traces: dict[JobId, AnyTrace], ready_by: int, held_back: Callable[[JobId], bool]
    ) -> tuple[int, int, JobId] | None:
        """Of those that had been ready at `ready_by`, and that no limit holds back."""
        first = self._first(traces, ready_by)
        if first is None or not held_back(first[2]):
            return first
        for place in islice(ascending(self._heap), LOOKED_AT_MAX):
            if self._waits(place, traces, ready_by) and not held_back(place[2]):
                return place
        return None

    def _first(self, traces: dict[JobId, AnyTrace], ready_by: int) -> tuple[int, int, JobId] | None:
        while self._later and self._later[0][0] <= ready_by:
            ready_at, job_id = heappop(self._later)
            trace = traces.get(job_id)
            if trace is not None and trace.state == "pending" and trace.ready_at == ready_at:
                heappush(self._heap, (trace.asked.priority, trace.order, job_id))
        while self._heap:
            if self._waits(self._heap[0], traces, ready_by):
                return self._heap[0]
            heappop(self._heap)
        return None

    def _waits(
        self, place: tuple[int, int, JobId], traces: dict[JobId, AnyTrace], ready_by: int
    ) -> bool:
        trace = traces.get(place[2])
        if trace is None or trace.opaque:
            return False
        return (trace.state, trace.order) == ("pending", place[1]) and trace.ready_at <= ready_by

    def clean(self, traces: dict[JobId, AnyTrace]) -> None:
        self._later = [place for place in self._later if place[1] in traces]
        self._heap = [place for place in self._heap if place[2] in traces]
        heapify(self._later)
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap) + len(self._later)


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
        self._waiting: dict[tuple[str, str], Waiting] = {}
        self._graces: list[tuple[int, JobId]] = []
        self._found: list[Violation] = []
        self._position = 0

    def take_over(self, record: TakeOver) -> list[Violation]:
        # Its instant may lie before that of entries which landed while it was under way: the fold
        # takes the later one.
        self.partition.take_over(record)
        return self._drain()

    def check(self, entry: Entry) -> list[Violation]:
        """What the entry does wrong, given all before it. It is applied."""
        partition = self.partition
        self._position = entry.number
        self.entries += 1
        if entry.number != partition.entry + 1:
            self._say("I2", None, f"entry {entry.number} after {partition.entry}")
        if entry.at < partition.at:
            self._say("I24", None, f"{partition.at - entry.at} us back in time")
        at = Micros(max(entry.at, partition.at))
        touched: dict[JobId, AnyTrace] = {}
        self._check_outcome(entry)
        for event in entry.events:
            self._check_home(event)
            if isinstance(event, JobRequested) and event.job_id not in self._traces:
                self._check_request(event, at, touched)
            elif isinstance(event, JOB_EVENTS):
                self._check_job_event(event, at, touched)
            elif isinstance(event, LeasesExtended):
                self._check_extensions(event, touched)
            elif isinstance(event, Unknown) and (trace := self._traces.get(JobId(event.key))):
                trace.opaque = True
            for rule, job_id, detail in self._queues.follow(event, at):
                self._say(rule, job_id, detail)
        for rule, job_id, detail in self._queues.end_of_entry():
            self._say(rule, job_id, detail)
        self._fold(entry)
        for job_id, trace in touched.items():
            self._compare(job_id, trace)
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
                    self._say("I4", job_id, f"{command_id} had its outcome before")
                case LeaseGranted(job_id=job_id, session=session) if session == NO_SESSION:
                    self._say("I4", job_id, f"{command_id} had its outcome before")
                case _:
                    pass

    def _check_home(self, event: Event) -> None:
        """Every event lies in the partition of its queue."""
        if self._home is None:
            return
        if isinstance(event, JOB_EVENTS):
            queue = queue_of(event.job_id)
            if queue is None or self._home(queue) != self.partition.number:
                self._say("I3", event.job_id, f"{event.TYPE}: the job does not belong here")
        elif isinstance(event, _IN_ITS_QUEUE) and self._home(event.queue) != self.partition.number:
            self._say("I3", None, f"{event.TYPE}: {event.queue} does not belong here")

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
                self._say("I18", event.job_id, f"a rerun of {origin}, which has not ended")
        if event.order <= partition.order:
            self._say("I16", event.job_id, f"place {event.order} is not behind {partition.order}")
        if event.flow is not None:
            self._traces[event.job_id] = touched[event.job_id] = FlowTrace(event, event.flow)
            return
        trace = self._traces[event.job_id] = Trace(event)
        self._wait(trace)

    def _check_key(self, event: JobRequested, at: Micros) -> None:
        try:
            digest = bytes.fromhex(event.key_digest or "")
        except ValueError:
            self._say("I4", event.job_id, "a key's digest that is none")
            return
        held = self.partition.keys.find(digest, at, at)
        if held is not None:
            self._say("I4", event.job_id, f"its key already stands for {held.job_id}")

    def _check_job_event(self, event: JobEvent, at: Micros, touched: dict[JobId, AnyTrace]) -> None:
        trace = self._traces.get(event.job_id)
        if trace is None:
            if not isinstance(event, LATE_EVENTS):
                self._say("I10", event.job_id, f"{event.TYPE} on a job that is not open")
            elif isinstance(event, ObjectsDeleted):
                closed = self.partition.closed.get(event.job_id)
                if closed is not None and are_in_use(closed, event.keys):
                    self._say("I19", event.job_id, "objects deleted that were not withdrawn")
            return
        touched[event.job_id] = trace
        if trace.opaque:
            return
        if isinstance(event, LeaseGranted):
            self._check_assignment(event, trace, at)
        for rule, detail in trace.follow(event, at, self.partition.floor):
            self._say(rule, event.job_id, detail)
        if trace.state == "pending" and not trace.ended:
            self._wait(trace)
        if trace.cancel_by is not None and not trace.ended:
            heappush(self._graces, (trace.cancel_by, event.job_id))

    def _check_assignment(self, event: LeaseGranted, trace: AnyTrace, at: Micros) -> None:
        """Only of inbox runtimes: what an HTTP runtime had asked for is not in the log."""
        if event.session == NO_SESSION:
            return
        asked = trace.asked
        queue = self.partition.queues.get(asked.queue)
        session = queue.sessions.get(event.runtime_id) if queue else None
        if session is None or session.session != event.session:
            self._say("I6", event.job_id, f"leased to {event.session}, which is no session")
            return
        place = (asked.priority, trace.order, event.job_id)
        for job_type in session.types:
            waiting = self._waiting.get((asked.queue, job_type))
            best = (
                waiting.best(self._traces, at - self._patience_us, self._queues.held_back)
                if waiting
                else None
            )
            if best is not None and best < place:
                self._say("I16", event.job_id, f"leased while {best[2]} waited before it")

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
        self._compare_open(job_id, trace)
        if trace.ended:
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

    # --- Who waits -------------------------------------------------------------------------------
    def _wait(self, trace: AnyTrace) -> None:
        key = (trace.asked.queue, trace.asked.type)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = Waiting()
        waiting.add(trace)
        if len(waiting) > PLACES_MIN + 2 * len(self._traces):
            waiting.clean(self._traces)

    def _say(self, rule: str, job_id: JobId | None, detail: str) -> None:
        self._found.append(Violation(rule, job_id, self._position, detail))

    def _drain(self) -> list[Violation]:
        found, self._found = self._found, []
        return found
