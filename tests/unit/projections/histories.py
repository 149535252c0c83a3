"""Histories of a partition, made by the real rules: commands decided, entries applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from random import Random

from msgspec import Raw

from ledger.domain import bulk, runtimes
from ledger.domain.commands import (
    AcknowledgeCancel,
    Asked,
    Beat,
    CancelJob,
    CancelJobs,
    CancelPart,
    Claim,
    Command,
    ConfirmPart,
    FailAttempt,
    Heartbeat,
    HeldLease,
    LockJob,
    PutTemplate,
    ReleaseLease,
    Report,
    ReportedFailure,
    ReportedResult,
    ReportProgress,
    RequestJob,
    RerunJob,
    RetryAsk,
    StartAttempt,
    SubmitResult,
    Template,
    WaitForCompletion,
    Where,
)
from ledger.domain.decide import Decided, decide, due
from ledger.domain.entries import GRANT, TIMER, Entry, Proven, TakeOver, cause_of
from ledger.domain.events import (
    CommandDuplicated,
    CommandRejected,
    Event,
    JobProgressed,
    LeaseGranted,
    RetryScheduled,
    Unknown,
)
from ledger.domain.ids import CommandId, Fence, JobId, Micros, QueueName, RuntimeId, Session
from ledger.domain.job import Job
from ledger.domain.partition import Partition
from ledger.log.effective import Effective, TakenOver
from projections.batches import Batch, end_of

SECOND = 1_000_000
NOON = Micros(1_790_000_000 * SECOND)
QUEUES = (QueueName("default"), QueueName("mail"))
TYPES = ("send", "resize")


@dataclass
class Script:
    """Decides commands one after another and keeps what a log would hold."""

    number: int = 0
    at: Micros = NOON
    partition: Partition = field(init=False)
    items: list[Effective] = field(default_factory=list)
    touched: list[dict[JobId, Job]] = field(default_factory=list)
    """Per item: the jobs as it left them."""
    offset: int = 0
    hash: bytes = b""
    commands: int = 0

    def __post_init__(self) -> None:
        self.partition = Partition(self.number)
        self.take_over()

    def take_over(self) -> None:
        record = TakeOver(f"nonce{self.offset}", self.at, "ledger-1", 16)
        self.partition.take_over(record)
        self._put(TakenOver(record, self.offset), 1)

    def do(self, command: Command, *, seconds: float = 0.001, awaited: bool = False) -> Decided:
        """Refusals become the events that an owner makes of them."""
        self.at = Micros(self.at + round(seconds * SECOND))
        self.commands += 1
        command_id = CommandId(f"command-{self.number}-{self.commands}")
        asked = Asked(command, command_id, "tester", offset=self.commands)
        decision = decide(self.partition, asked, self.at)
        queue = getattr(command, "queue", QUEUES[0])
        if isinstance(decision, Decided):
            events: tuple[Event, ...] = decision.events
            if not events and not isinstance(command, Beat):
                events = (CommandDuplicated(queue, command_id, command.TYPE, decision.job_id),)
            self.append(events, cause_of(command_id, awaited=awaited))
            return decision
        refusal = CommandRejected(
            queue,
            command_id,
            command.TYPE,
            decision.code,
            decision.detail,
            decision.job_id,
            getattr(command, "runtime_id", None),
        )
        self.append((refusal,), cause_of(command_id, awaited=awaited))
        return Decided()

    def append(self, events: Sequence[Event], cause: str = TIMER, correlation: str = "") -> None:
        if not events:
            return
        entry = Entry(
            number=self.partition.entry + 1,
            at=self.at,
            commands=self.commands,
            requests=0,
            events=tuple(events),
            actor="tester",
            cause=cause,
            correlation=correlation or getattr(events[0], "job_id", None) or "",
        )
        self.partition.apply(entry)
        self.hash = sha256(self.hash + str(entry.number).encode()).digest()
        last = self.offset + len(events) - 1
        self._put(Proven(entry, self.offset, last, self.hash), len(events))

    def submit(self, **words: object) -> JobId:
        decision = self.do(RequestJob(**{"type": "send", **words}))  # type: ignore[arg-type]
        assert decision.job_id is not None
        return decision.job_id

    def grant(
        self, queue: QueueName = QUEUES[0], many: int = 1, session: str = ""
    ) -> list[LeaseGranted]:
        self.at = Micros(self.at + 1000)
        given = runtimes.grants(
            self.partition,
            queue,
            TYPES,
            RuntimeId("runtime-1"),
            many,
            self.at,
            session=Session(session),
        )
        self.append(given, GRANT)
        return given

    def tick(self, seconds: float) -> None:
        self.at = Micros(self.at + round(seconds * SECOND))
        for job in self.partition.due(self.at, 1000):
            self.append(due(self.partition, job, self.at))

    def batches(self, cuts: Sequence[int] = (), *, fed: bool = True) -> list[Batch]:
        """The history cut before these items."""
        edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(self.items)}), len(self.items)]
        found = []
        for first, end in pairwise(edges):
            jobs: dict[JobId, Job] = {}
            for touched in self.touched[first:end]:
                jobs |= touched
            before = end_of(self.items[first - 1]) if first else 0
            items = self.items[first:end]
            found.append(Batch(self.number, before, items, jobs if fed else None))
        return found

    def _put(self, item: Effective, records: int) -> None:
        self.items.append(item)
        self.touched.append(self.partition.drain_touched())
        self.offset += records


def plain_job(script: Script) -> JobId:
    """Requested, granted, started and succeeded: the four events of a plain job."""
    job_id = script.submit(payload=Raw(b'{"to":"x"}'), labels={"user": "7"})
    [granted] = script.grant()
    result = ReportedResult(job_id, granted.fence, output=Raw(b'{"sent":true}'))
    script.do(Report(granted.runtime_id, Session("s1"), QUEUES[0], (result,)))
    return job_id


def long_job(script: Script, many: int) -> JobId:
    """That reports its progress so often, each time worth an event."""
    job_id = script.submit()
    [granted] = script.grant()
    for number in range(many):
        progress = ReportProgress(job_id, granted.fence, percent=number % 100, phase="x" * 30)
        script.do(progress, seconds=1.0)
    return job_id


def random_history(random: Random, steps: int) -> Script:
    """A walk through the rules; now and then something that no rule writes."""
    script = Script()
    jobs: list[JobId] = []
    operations: list[str] = []
    for _ in range(steps):
        _random_step(script, random, jobs, operations)
    return script


def _random_step(script: Script, random: Random, jobs: list[JobId], operations: list[str]) -> None:
    partition = script.partition
    job_id = random.choice(jobs) if jobs else JobId("default.none")
    job = partition.job(job_id)
    fence = job.fence if job and random.random() < 0.9 else Fence(random.randrange(3))
    runtime = RuntimeId(random.choice(("runtime-1", "runtime-2")))
    queue = random.choice(QUEUES)
    seconds = random.choice((0.0, 0.001, 0.7, 2.0))
    awaited = random.random() < 0.3
    commands: list[Command] = [
        StartAttempt(job_id, fence),
        Heartbeat(job_id, fence, start=random.random() < 0.5),
        ReportProgress(job_id, fence, percent=random.randrange(100), phase="x"),
        SubmitResult(job_id, fence, output=Raw(random.choice((b"1", b'{"a":2}', b"null")))),
        FailAttempt(job_id, fence, "NETWORK_ERROR", "no\x00net", details=Raw(b'{"n":1}')),
        FailAttempt(job_id, fence, "INVALID_SCHEMA", retryable=False),
        ReleaseLease(job_id, fence, "drain"),
        WaitForCompletion(job_id, fence, 30.0),
        CancelJob(job_id, "why"),
        AcknowledgeCancel(job_id, fence),
        LockJob(job_id, runtime),
        RerunJob(job_id, labels={"again": "1"}),
        Claim(runtime, QUEUES, TYPES, limit=3),
        Beat(
            runtime,
            Session(random.choice(("s1", "s2"))),
            queue,
            1,
            TYPES,
            leases=(HeldLease(job_id, fence),),
            leaving=random.random() < 0.1,
        ),
        Report(
            runtime,
            Session("s1"),
            queue,
            (ReportedResult(job_id, fence), ReportedFailure(job_id, fence, "X")),
        ),
        PutTemplate(queue, "send", Template(title=str(random.randrange(2)))),
        CancelJobs(Where(types=("resize",)), "all"),
    ]
    chance = random.random()
    if chance < 0.25:
        request = RequestJob(
            random.choice(TYPES),
            queue,
            payload=Raw(b'{"n":%d}' % random.randrange(100)),
            labels={"user": str(random.randrange(3)), "odd": "\x00"},
            scope=random.choice((None, "project:1")),
            priority=random.randrange(10),
            idempotency_key=random.choice((None, "k1", "k2")),
            delay_seconds=random.choice((None, 5.0)),
            start_timeout_seconds=random.choice((None, 60.0)),
            failed_ttl_seconds=random.choice((None, 60.0)),
            retry=RetryAsk(max_attempts=2, backoff_seconds=(1.0,), position="tail"),
        )
        decision = script.do(request, seconds=seconds, awaited=awaited)
        if decision.job_id and decision.job_id not in jobs:
            jobs.append(decision.job_id)
    elif chance < 0.35:
        script.grant(queue, random.randrange(1, 4), random.choice(("", "s1")))
    elif chance < 0.42:
        script.tick(random.choice((1.0, 40.0, 130.0)))
    elif chance < 0.45:
        script.take_over()
    elif chance < 0.48:
        odd: list[Event] = [
            Unknown("ledger.job.dreamt.v7", job_id, b'{"x":1}'),
            Unknown("ledger.queue.dreamt.v7", queue, b"\xff"),
            RetryScheduled(JobId("default.nobody"), job_id and "main", NOON, 1),  # type: ignore[arg-type]
            JobProgressed(job_id, "nowhere", fence),  # type: ignore[arg-type]
        ]
        script.append((random.choice(odd), random.choice(odd)))
    elif chance < 0.52 and operations:
        operation = random.choice(operations)
        if operation in partition.bulk_parts:
            script.append(bulk.end_part(partition, operation))
        else:
            part = CancelPart(operation, 0, Where(types=("resize",)))
            script.append(bulk.start_part(partition, part, script.commands + 20))
        script.do(ConfirmPart(operation, random.randrange(3), 2))
    else:
        command = random.choice(commands)
        decision = script.do(command, seconds=seconds, awaited=awaited)
        if isinstance(command, RerunJob) and decision.job_id:
            jobs.append(decision.job_id)
        if decision.operation_id:
            operations.append(decision.operation_id)
