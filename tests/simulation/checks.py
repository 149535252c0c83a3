"""What must hold of a run once it is quiet: of the log, of the read models, of what was told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct

from ledger.domain.entries import Proven, command_of
from ledger.domain.events import (
    CommandDuplicated,
    CommandRejected,
    Event,
    JobRequested,
    JobSucceeded,
    LeasesExtended,
)
from ledger.domain.ids import JobId, Micros, QueueName
from ledger.domain.invariants import Invariants, Violation
from ledger.domain.job import status
from ledger.domain.partition import Partition
from ledger.log.effective import Effective, EffectiveEntries, TakenOver
from ledger.log.errors import ChainBroken, LogUnavailable, ReaderStuck
from ledger.log.headers import text_header
from ledger.log.partitions import partition_of
from ledger.log.topics import Topics
from projections.gathering import gather
from tests.simulation.broker import Broker, Log, Stored
from tests.simulation.views import Standing, Views

FOUND_MAX = 20
PASSING = (LogUnavailable, ReaderStuck)
"""What a process may end with while brokers cannot be reached; it is started again."""
Causes = dict[str, list[Proven]]
"""Entries by the command that they answer, or speak of."""


class Found(Struct, frozen=True):
    rule: str
    detail: str
    job_id: JobId | None = None

    def __str__(self) -> str:
        of = f" of {self.job_id}" if self.job_id else ""
        return f"{self.rule}{of}: {self.detail}"


class Acknowledged(Struct, frozen=True):
    command_id: str
    position: str
    job_id: JobId | None


class Evidence:
    """What was told to whom, what ran, and the effective history so far."""

    def __init__(self, topics: Topics, partitions: int) -> None:
        self.topics = topics
        self.readers = [EffectiveEntries(topics.events, number) for number in range(partitions)]
        self.items: list[list[Effective]] = [[] for _ in range(partitions)]
        self.folds = [Partition(number) for number in range(partitions)]
        self.acknowledged: list[Acknowledged] = []
        self.refusals: dict[str, str] = {}
        self.unknown: set[str] = set()
        self.runs: Counter[tuple[JobId, int]] = Counter()
        self.deaths: list[tuple[str, BaseException]] = []
        self.requests: dict[str, tuple[int, int]] = {}
        """Command ids of the requests intake: where the first record of each lies."""
        self.broken: list[Found] = []

    def appended(self, log: Log, stored: Iterable[Stored]) -> None:
        if log.topic == self.topics.requests:
            for record in stored:
                command_id = text_header(record.headers, "ce_id")
                self.requests.setdefault(command_id, (record.partition, record.offset))
        elif log.topic == self.topics.events:
            number = log.partition
            for record in stored:
                try:
                    item = self.readers[number].feed(record)
                except ChainBroken as error:
                    self.broken.append(Found("I23", str(error)))
                    continue
                if isinstance(item, TakenOver):
                    self.folds[number].take_over(item.take_over)
                elif item is not None:
                    self.folds[number].apply(item.entry)
                if item is not None:
                    self.items[number].append(item)

    def ran(self, job_id: JobId, fence: int, by: str) -> None:
        self.runs[job_id, fence] += 1

    def accepted(self, command_id: str, position: str, job_id: JobId | None) -> None:
        self.acknowledged.append(Acknowledged(command_id, position, job_id))

    def refused(self, command_id: str, code: str) -> None:
        self.refusals[command_id] = code

    def undecided(self, command_id: str) -> None:
        self.unknown.add(command_id)

    def events(self) -> Iterator[tuple[Proven, Event]]:
        """All that count, partition by partition."""
        for items in self.items:
            for item in items:
                if not isinstance(item, TakenOver):
                    for event in item.entry.events:
                        yield item, event

    def causes(self) -> Causes:
        found: Causes = defaultdict(list)
        for entry, event in self.events():
            command_id = command_of(entry.entry.cause)
            if command_id is not None:
                found[command_id].append(entry)
            if isinstance(event, CommandRejected):
                found[event.command_id].append(entry)
        return found

    def witness(self, job_id: JobId) -> list[str]:
        """What the log says of a job."""
        return [
            f"entry {item.entry.number} @{item.first_offset} {item.entry.cause}: {event}"
            for item, event in self.events()
            if getattr(event, "job_id", None) == job_id
        ]

    def died(self, process: str, error: BaseException) -> None:
        self.deaths.append((process, error))


def quiet(evidence: Evidence, broker: Broker, views: Views) -> bool:
    """Nothing is open, all that was asked is decided, and the views stand where the log does."""
    for fold in evidence.folds:
        if fold.jobs:
            return False
        log = broker.log(evidence.topics.requests, fold.number)
        if fold.requests < log.end:
            return False
    return all(
        number in views.standing
        and views.standing[number].cursor.offset == evidence.readers[number].cursor.offset
        for number in range(len(evidence.folds))
    )


def fatal(evidence: Evidence) -> list[Found]:
    """Processes that ended with what no start can mend."""
    return [
        Found("death", f"{process} died of {error!r}")
        for process, error in evidence.deaths
        if not isinstance(error, PASSING)
    ]


def verdict(evidence: Evidence, views: Views) -> list[Found]:
    """The first of what is wrong."""
    found = fatal(evidence) + evidence.broken
    count = len(evidence.folds)
    for number, items in enumerate(evidence.items):
        invariants = Invariants(
            Partition(number), home=lambda queue: partition_of(QueueName(queue), count)
        )
        wrong: list[Violation] = []
        for item in items:
            if isinstance(item, TakenOver):
                wrong += invariants.take_over(item.take_over)
            else:
                wrong += invariants.check(item.entry)
        wrong += invariants.settle()
        found += [
            Found(one.rule, f"[{number}] entry {one.position}: {one.detail}", one.job_id)
            for one in wrong
        ]
    causes = evidence.causes()
    found += _acknowledgements(evidence, causes)
    found += _outcomes(evidence, causes)
    found += _endings(evidence)
    found += _effects(evidence)
    found += _views(evidence, views)
    return found[:FOUND_MAX]


def _acknowledgements(evidence: Evidence, causes: Causes) -> list[Found]:
    """I5."""
    found = []
    made = {event.job_id for _, event in evidence.events() if isinstance(event, JobRequested)}
    for told in evidence.acknowledged:
        offset = int(told.position.partition(":")[2])
        if not any(entry.last_offset <= offset for entry in causes.get(told.command_id, ())):
            found.append(Found("I5", f"{told} was acknowledged, and no entry up to there says so"))
        if told.job_id is not None and told.job_id not in made:
            found.append(Found("I5", f"{told} names a job that is not in the log"))
    promised = {told.command_id for told in evidence.acknowledged} | evidence.unknown
    for command_id, code in evidence.refusals.items():
        done = any(
            not isinstance(event, CommandRejected | CommandDuplicated | LeasesExtended)
            for entry in causes.get(command_id, ())
            for event in entry.entry.events
        )
        if done and command_id not in promised:
            found.append(Found("I5", f"{command_id} was refused ({code}), and done"))
    return found


def _outcomes(evidence: Evidence, causes: Causes) -> list[Found]:
    """Each request of the intake has its outcome, and makes one job at most."""
    found = []
    for command_id, place in evidence.requests.items():
        if command_id not in causes:
            found.append(Found("I4", f"{command_id} at {place} has no outcome"))
        made = {
            event.job_id
            for entry in causes.get(command_id, ())
            for event in entry.entry.events
            if isinstance(event, JobRequested)
        }
        if len(made) > 1:
            found.append(Found("I4", f"{command_id} made {sorted(made)}"))
    return found


def _endings(evidence: Evidence) -> list[Found]:
    """G11. The plan leaves nothing that may wait for ever."""
    return [
        Found("G11", f"{job.request.type} is still {status(job)} at {fold.at}: {job.steps}", job.id)
        for fold in evidence.folds
        for job in fold.jobs.values()
    ]


def _effects(evidence: Evidence) -> list[Found]:
    """A result comes of a handler that ran, under the fence that it quotes."""
    return [
        Found("G4", f"succeeded under {event.fence}, and nobody ran", event.job_id)
        for _, event in evidence.events()
        if isinstance(event, JobSucceeded) and not evidence.runs[event.job_id, event.fence]
    ]


def _views(evidence: Evidence, views: Views) -> list[Found]:
    """I20, I21."""
    found = []
    for number, items in enumerate(evidence.items):
        standing = views.standing.get(number, Standing())
        if standing.cursor != evidence.readers[number].cursor:
            at, end = standing.cursor.offset, evidence.readers[number].cursor.offset
            found.append(Found("I21", f"the views of {number} stand at {at}, the log at {end}"))
            continue
        folded = gather(items, Micros(0), {})
        for job_id, job in folded.folded.items():
            if views.jobs.get(job_id) != job:
                found.append(Found("I20", "the row is not the fold's", job_id))
        if standing.misfits != folded.misfits:
            what = f"{standing.misfits} misfits, {folded.misfits} in the fold of {number}"
            found.append(Found("I20", what))
    return found
