"""What must hold of a run once it is quiet: of the log, of the read models, of what was told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from msgspec import Struct

from ledger.domain.entries import Proven, command_of
from ledger.domain.events import (
    CommandDuplicated,
    CommandRejected,
    JobRequested,
    JobSucceeded,
    LeasesExtended,
)
from ledger.domain.ids import JobId, Micros, QueueName
from ledger.domain.invariants import Invariants
from ledger.domain.job import status
from ledger.domain.partition import Partition
from ledger.log.effective import Effective, EffectiveEntries, TakenOver
from ledger.log.errors import ChainBroken, LogBroken, LogError
from ledger.log.headers import text_header
from ledger.log.partitions import partition_of
from ledger.log.topics import Topics
from projections.gathering import gather
from tests.simulation.broker import Broker, Log, Stored
from tests.simulation.views import Views

VIOLATIONS_MAX = 20


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
        self.broken: list[str] = []
        self.is_expected: tuple[type[BaseException], ...] = (LogError,)

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
                    self.broken.append(f"I23: {error}")
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


def verdict(
    evidence: Evidence, broker: Broker, views: Views, states: Counter[str]
) -> list[str]:
    found = list(evidence.broken)
    for process, error in evidence.deaths:
        if not isinstance(error, evidence.is_expected) or isinstance(error, LogBroken):
            found.append(f"{process} died of {error!r}")
    home = lambda queue: partition_of(QueueName(queue), len(evidence.folds))  # noqa: E731
    causes: dict[str, list[Proven]] = defaultdict(list)
    for number, items in enumerate(evidence.items):
        invariants = Invariants(Partition(number), home=home)
        for item in items:
            if isinstance(item, TakenOver):
                wrong = invariants.take_over(item.take_over)
            else:
                wrong = invariants.check(item.entry)
                command_id = command_of(item.entry.cause)
                if command_id is not None:
                    causes[command_id].append(item)
                for event in item.entry.events:
                    if isinstance(event, CommandRejected):
                        causes[event.command_id].append(item)
            found += [f"{one.rule} [{number}] at {one.position}: {one}" for one in wrong]
        found += [f"{one.rule} [{number}] in the end: {one}" for one in invariants.settle()]
        states["a record of somebody else's was ignored"] += evidence.readers[
            number
        ].ignored.foreign
    found += _acknowledgements(evidence, causes)
    found += _outcomes(evidence, causes)
    found += _endings(evidence)
    found += _effects(evidence)
    found += _views(evidence, views)
    return found[:VIOLATIONS_MAX]


def _acknowledgements(evidence: Evidence, causes: dict[str, list[Proven]]) -> list[str]:
    """I5."""
    found = []
    for told in evidence.acknowledged:
        partition, _, offset = told.position.partition(":")
        entries = causes.get(told.command_id, ())
        if not any(entry.last_offset <= int(offset) for entry in entries):
            found.append(f"I5: {told} was acknowledged, and no entry up to there says so")
        if told.job_id is not None and not any(
            isinstance(event, JobRequested) and event.job_id == told.job_id
            for item in evidence.items[int(partition)]
            if isinstance(item, Proven)
            for event in item.entry.events
        ):
            found.append(f"I5: {told} names a job that is not in the log")
    for command_id, code in evidence.refusals.items():
        accepted = any(
            not isinstance(event, CommandRejected | CommandDuplicated | LeasesExtended)
            for entry in causes.get(command_id, ())
            for event in entry.entry.events
        )
        was_told = any(told.command_id == command_id for told in evidence.acknowledged)
        if accepted and not was_told and command_id not in evidence.unknown:
            found.append(f"I5: {command_id} was refused ({code}), and done")
    return found


def _outcomes(evidence: Evidence, causes: dict[str, list[Proven]]) -> list[str]:
    """Each request of the intake has its outcome, and makes one job at most."""
    found = []
    for command_id, place in evidence.requests.items():
        made = {
            event.job_id
            for entry in causes.get(command_id, ())
            for event in entry.entry.events
            if isinstance(event, JobRequested) and event.retried_from is None
        }
        if command_id not in causes:
            found.append(f"I4: {command_id} at {place} has no outcome")
        if len(made) > 1:
            found.append(f"I4: {command_id} made {sorted(made)}")
    return found


def _endings(evidence: Evidence) -> list[str]:
    """G11. The plan leaves nothing that may wait for ever."""
    return [
        f"G11: {job.id} ({job.request.type}) is still {status(job)} at {fold.at}: {job.steps}"
        for fold in evidence.folds
        for job in fold.jobs.values()
    ]


def _effects(evidence: Evidence) -> list[str]:
    """A result comes of a handler that ran, under the fence that it quotes."""
    found = []
    for items in evidence.items:
        for item in items:
            if isinstance(item, TakenOver):
                continue
            for event in item.entry.events:
                if isinstance(event, JobSucceeded) and not evidence.runs[event.job_id, event.fence]:
                    found.append(f"G4: {event.job_id} succeeded under {event.fence}, and nobody ran")
    return found


def _views(evidence: Evidence, views: Views) -> list[str]:
    """I20, I21."""
    found = []
    for number, items in enumerate(evidence.items):
        standing = views.standing.get(number)
        end = evidence.readers[number].cursor.offset
        if standing is None or standing.cursor.offset != end:
            at = None if standing is None else standing.cursor.offset
            found.append(f"I21: the views of {number} stand at {at}, the log at {end}")
            continue
        if standing.cursor != evidence.readers[number].cursor:
            found.append(f"I21: the checkpoint of {number} is not the log's")
        folded = gather(items, Micros(0), {})
        for job_id, job in folded.folded.items():
            if views.jobs.get(job_id) != job:
                found.append(f"I20: the row of {job_id} is not the fold's")
        if standing.misfits != folded.misfits:
            found.append(f"I20: {standing.misfits} misfits, {folded.misfits} in the fold")
    return found
