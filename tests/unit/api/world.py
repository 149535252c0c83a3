"""A whole ledger in memory behind the app: the real rules decide, the real codec carries commands,
and the view is the fold. What is scripted: whether replies come, and how far the view is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import msgspec
from msgspec import Raw
from starlette.applications import Starlette

from api.app import Ports, create_app
from api.operation import Services
from api.settings import Settings
from api.wire import Heard, Place, Sent
from ledger.domain.commands import (
    Asked,
    CancelJobs,
    Claim,
    Command,
    GatewayBeat,
    QueueSettings,
    RemoveObjects,
    Where,
)
from ledger.domain.creation import matches
from ledger.domain.decide import Decided, decide
from ledger.domain.entries import Entry, cause_of
from ledger.domain.events import (
    CommandRejected,
    CommandsConsumed,
    Event,
    JobEvent,
    key_of,
    type_of,
)
from ledger.domain.evolve import fold
from ledger.domain.ids import SECOND, CommandId, JobId, Micros, QueueName, queue_of
from ledger.domain.job import Job, status
from ledger.domain.partition import KEYED, Partition
from ledger.domain.rejections import Rejected
from ledger.domain.remembered import ClosedJobs
from ledger.domain.steps import held_lease
from ledger.log.command_codec import command_from, command_record, partition_for, topic_of
from ledger.log.connection import COMMAND_BYTES_MAX, Connection
from ledger.log.errors import LogUnavailable, RecordTooLarge
from ledger.log.inbox import OwnerChanged
from ledger.log.partitions import partition_of
from ledger.log.replies import Reply
from ledger.objects import ObjectStore
from ledger.sealing.keyring import generate_key, keyring_from
from processors.owner import answers
from projections.answers import (
    Attempt,
    CommandOutcome,
    Consumed,
    History,
    HistoryEvent,
    JobFilter,
    Jobs,
    JobsPage,
    ModelState,
    Operation,
    QueueHeld,
    QueueState,
    Rate,
    Rows,
    RuntimeState,
    ScheduleState,
    Stored,
    TemplateVersion,
)
from projections.change_feed import ALL_OF_IT, ChangedJob, Changes, Happened
from projections.packing import Logical
from projections.reads import BadCursor, Order, Reads, ReadsUnavailable
from tests.unit.api.operators_view import OPERATORS, OperatorsView, Said

T = TypeVar("T")

PARTITIONS = 4
KEYRING = keyring_from(f"test:{generate_key()}")
BEGIN = Micros(1_800_000_000 * SECOND)
ALL_STATUSES = (
    "pending",
    "leased",
    "running",
    "waiting",
    "cancelling",
    "succeeded",
    "failed",
    "cancelled",
    "expired",
)


@dataclass
class _Record:
    """An intake's record, as the codec reads it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass
class _Told:
    """One event of a job in the log."""

    event: Event
    at: Micros
    actor: str
    cause: str
    offset: int


@dataclass
class Log:
    """One partition: its owner's state, its history, and what the view has of it."""

    number: int
    owner: Partition
    offset: int = 0
    taken: dict[str, int] = field(default_factory=dict)
    viewed: int = 0
    consumed: tuple[int, int] = (0, 0)


class World:
    """`silent`: owners do not answer. `is_down`: no broker does. `is_lagging`: the view stays."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings(
            connection=Connection(bootstrap="nowhere:1"),
            dsn="",
            partitions=PARTITIONS,
            decision_seconds=0.5,
            view_seconds=0.2,
            keyring=KEYRING,
        )
        self.logs = {n: Log(n, Partition(n)) for n in range(self.settings.partitions)}
        self.at = BEGIN
        self.silent = False
        self.parks = True
        self.is_down = False
        self.is_lagging = False
        self.objects: ObjectStore | None = None
        self.is_cut = False
        """Postgres does not answer."""
        self.questions = 0
        """To Postgres, so far."""
        self.sends_jobs = True
        """Replies carry the job, as an owner that still has it does."""
        self.history: dict[JobId, list[_Told]] = {}
        self.outcomes: dict[str, CommandOutcome] = {}
        self.operations: dict[str, Operation] = {}
        self.said: list[Said] = []
        """By operators."""
        self.runtimes: list[RuntimeState] = []
        self.sent: list[Sent] = []
        self.has_sent = asyncio.Event()
        self.bytes_max = COMMAND_BYTES_MAX
        self._asked: dict[CommandId, Asked] = {}
        self.parked: dict[CommandId, Asked] = {}
        self.beats: list[GatewayBeat] = []
        self.wires: list[_Wire] = []
        """One a gateway: the first answers to 0/0, the next to 0/1."""
        self.reads = _Views(self)
        self.followers: list[Callable[[int, int], None]] = []

    # --- The owners ------------------------------------------------------------------------------
    def take(self, sent: Sent, reply_to: str) -> Place:
        topic = topic_of(sent.command, self.settings.topics)
        number = partition_for(sent.command, self.settings.partitions)
        log = self.logs[number]
        offset = log.taken.get(topic, 0)
        log.taken[topic] = offset + 1
        key, value, headers = command_record(
            sent.command,
            sent.command_id,
            source="test",
            reply_to=reply_to,
            actor=sent.actor,
            traceparent=sent.traceparent,
        )
        if len(value or b"") > self.bytes_max:
            raise RecordTooLarge(f"a command has at most {self.bytes_max} bytes")
        record = _Record(topic, number, offset, self.at // 1000, key, value, headers)
        self.sent.append(sent)
        self.has_sent.set()
        asked = command_from(record)
        assert isinstance(asked, Asked), asked
        self._asked[sent.command_id] = asked
        if not self.silent:
            self.decide(log, asked)
        return Place(topic, number, offset)

    def read_again(self, command_id: str) -> Asked:
        """A command that lies in an intake."""
        return self._asked[CommandId(command_id)]

    def decide(self, log: Log, asked: Asked) -> None:
        if isinstance(asked.command, GatewayBeat):
            self.beats.append(asked.command)
            return
        self.at = Micros(self.at + 1000)
        decision = decide(log.owner, asked, self.at)
        if isinstance(decision, Rejected):
            self.append(log, (_rejected(asked, decision),), asked)
            reply = answers.refusal(log.owner, asked, decision)
            self._note(log, asked, "rejected", decision)
        else:
            if isinstance(asked.command, Claim) and not decision.grants and not decision.replayed:
                log.owner.taken.clear()
                if asked.command.wait_seconds and self.parks:
                    self.parked[asked.command_id] = asked
                    self.answer(asked, answers.parked(asked))
                    return
            events = decision.events or (CommandsConsumed(QueueName("default"), 1),)
            self.append(log, events, asked)
            reply = answers.acceptance(log.owner, asked, decision)
            if not self.sends_jobs:
                reply = msgspec.structs.replace(reply, job=None)
            self._note(log, asked, reply.outcome, decision)
        self.answer(
            asked, msgspec.structs.replace(reply, position=f"{log.number}:{log.offset - 1}")
        )
        self._fill_parked(log)

    def answer(self, asked: Asked, reply: Reply) -> None:
        if asked.reply_to:
            self.wires[int(asked.reply_to.partition("/")[2])].heard.put_nowait([reply])

    def tell(self, *heard: Heard) -> None:
        """Every gateway."""
        for wire in self.wires:
            wire.heard.put_nowait(list(heard))

    def append(self, log: Log, events: Sequence[Event], asked: Asked | None = None) -> None:
        cause = cause_of(asked.command_id, awaited=bool(asked.reply_to)) if asked else "timer"
        actor = asked.actor if asked else ""
        commands = log.taken.get(self.settings.topics.commands, 0)
        requests = log.taken.get(self.settings.topics.requests, 0)
        entry = Entry(log.owner.entry + 1, self.at, commands, requests, tuple(events), actor, cause)
        log.owner.apply(entry)
        for event in events:
            told = _Told(event, self.at, actor, cause, log.offset)
            if isinstance(event, OPERATORS):
                self.said.append(Said(event, self.at, actor, log.number, log.offset))
            if queue_of(key_of(event)) is not None:
                self.history.setdefault(JobId(key_of(event)), []).append(told)
            log.offset += 1
        log.owner.drain_touched()
        if not self.is_lagging:
            self.project(log)

    def _note(self, log: Log, asked: Asked, outcome: str, decision: Rejected | Decided) -> None:
        refused = decision if isinstance(decision, Rejected) else None
        operation_id = decision.operation_id if isinstance(decision, Decided) else None
        self.outcomes[asked.command_id] = CommandOutcome(
            asked.command_id,
            outcome,
            refused.code if refused else None,
            refused.detail if refused else "",
            decision.job_id,
            operation_id,
            log.number,
            log.offset - 1,
            self.at,
        )
        command = asked.command
        if operation_id is not None and isinstance(command, CancelJobs | RemoveObjects):
            kind, where, reason = "remove_objects", msgspec.json.encode(command), ""
            if isinstance(command, CancelJobs):
                kind, where = "cancel", msgspec.json.encode(command.where)
                reason = command.reason
            self.operations[operation_id] = Operation(
                operation_id,
                kind,
                Raw(where),
                reason,
                asked.actor,
                self.settings.partitions,
                0,
                0,
                self.at,
                None,
            )

    def _fill_parked(self, log: Log) -> None:
        for asked in list(self.parked.values()):
            if partition_for(asked.command, self.settings.partitions) != log.number:
                continue
            again = decide(log.owner, asked, self.at)
            assert isinstance(again, Decided)
            if again.grants:
                del self.parked[asked.command_id]
                self.append(log, again.events, asked)
                reply = answers.acceptance(log.owner, asked, again)
                self.answer(
                    asked, msgspec.structs.replace(reply, position=f"{log.number}:{log.offset - 1}")
                )

    def end_waits(self) -> None:
        """Every parked claim is told that nothing came; under a key, that is recorded."""
        for asked in self.parked.values():
            number = partition_for(asked.command, self.settings.partitions)
            if asked.command_id.startswith(KEYED):
                nothing = CommandsConsumed(QueueName("default"), 1)
                self.append(self.logs[number], (nothing,), asked)
            reply = answers.acceptance(self.logs[number].owner, asked, Decided())
            self.answer(asked, msgspec.structs.replace(reply, position=f"{number}:0"))
        self.parked.clear()

    def change_owner(self, partition: int) -> None:
        """The new owner of a partition has no parked claims, and says so."""
        for command_id, asked in list(self.parked.items()):
            if partition_for(asked.command, self.settings.partitions) == partition:
                del self.parked[command_id]
        self.tell(OwnerChanged(QueueName("default"), partition))

    def forget(self, job_id: str) -> None:
        """What owners do an hour after a job's end."""
        owner = self.log_of(job_id).owner
        owner.closed = ClosedJobs(owner.bounds)

    def log_of(self, job_id: str) -> Log:
        queue = queue_of(job_id)
        assert queue is not None
        return self.logs[partition_of(queue, self.settings.partitions)]

    # --- The view --------------------------------------------------------------------------------
    def project(self, log: Log) -> None:
        log.viewed = log.offset
        for stir in self.followers:
            stir(log.number, log.viewed - 1)
        log.consumed = (
            log.taken.get(self.settings.topics.commands, 0),
            log.taken.get(self.settings.topics.requests, 0),
        )

    def catch_up(self) -> None:
        self.is_lagging = False
        for log in self.logs.values():
            self.project(log)

    def told(self, job_id: str) -> list[_Told]:
        log = self.log_of(job_id) if queue_of(job_id) else None
        if log is None:
            return []
        return [one for one in self.history.get(JobId(job_id), ()) if one.offset < log.viewed]

    def stored(self, job_id: str) -> Stored | None:
        job = folded(self.told(job_id))
        log = self.log_of(job_id) if job else None
        return Stored(job, log.number, log.viewed - 1) if job and log else None

    def positions(self) -> dict[int, int]:
        return {number: log.viewed - 1 for number, log in self.logs.items()}

    def jobs(self) -> list[Job]:
        found = (self.stored(job_id) for job_id in self.history)
        return [stored.job for stored in found if stored is not None]


def folded(history: Sequence[_Told]) -> Job | None:
    return fold([(_job_event(one.event), one.at) for one in history])


def _job_event(event: Any) -> JobEvent:
    return event  # type: ignore[no-any-return]


def _rejected(asked: Asked, refused: Rejected) -> CommandRejected:
    return CommandRejected(
        QueueName("default"),
        asked.command_id,
        asked.command.TYPE,
        refused.code,
        refused.detail,
        job_id=refused.job_id,
        job_status=refused.job_status,
        pointer=refused.pointer,
    )


class _Wire:
    def __init__(self, world: World) -> None:
        self._world = world
        self._address = len(world.wires)
        self.heard: asyncio.Queue[list[Heard]] = asyncio.Queue()

    async def append(self, sent: Sent, *, awaited: bool = True) -> Place:
        await asyncio.sleep(0)
        if self._world.is_down:
            raise LogUnavailable("no broker acknowledged in time")
        return self._world.take(sent, f"0/{self._address}" if awaited else "")

    def partition_of(self, command: Command) -> int:
        return partition_for(command, self._world.settings.partitions)

    async def hear(self) -> Sequence[Heard]:
        return await self.heard.get()

    async def events_end(self, partition: int) -> int:
        if self._world.is_down:
            raise LogUnavailable("no broker answers")
        return self._world.logs[partition].offset


def _logicals(world: World, job_id: str) -> list[Logical]:
    return [
        Logical(seq, one.event, one.at, one.actor, one.cause, "", one.offset, b"")
        for seq, one in enumerate(world.told(job_id), 1)
    ]


class _Views(Reads):
    """The read side's contract over the world's own history."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _checked(self) -> World:
        self._world.questions += 1
        if self._world.is_cut:
            raise ReadsUnavailable
        return self._world

    async def job(self, job_id: str, *, even_erased: bool = False) -> Stored | None:
        stored = self._checked().stored(job_id)
        return stored if stored and (even_erased or not stored.job.erased) else None

    def _matching(self, where: JobFilter) -> list[Job]:
        return [
            job
            for job in self._checked().jobs()
            if (not where.queues or job.request.queue in where.queues)
            and (not where.types or job.request.type in where.types)
            and (not where.statuses or status(job) in where.statuses)
            and all(job.request.labels.get(k) == v for k, v in where.labels.items())
            and where.scope in (None, job.request.scope)
            and where.retried_from in (None, job.request.retried_from)
            and (where.created_from is None or job.created_at >= where.created_from)
            and (where.created_to is None or job.created_at < where.created_to)
        ]

    async def jobs(
        self,
        where: JobFilter = JobFilter(),  # noqa: B008 (frozen)
        *,
        order: Order = "-created_at",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Jobs:
        found = sorted(self._matching(where), key=lambda job: job.created_at)
        if order == "-created_at":
            found.reverse()
        start = 0
        if cursor is not None:
            if not cursor.isdecimal():
                raise BadCursor
            start = int(cursor)
        more = len(found) > start + limit
        return Jobs(
            tuple(found[start : start + limit]),
            str(start + limit) if more else None,
            self._world.positions(),
        )

    async def jobs_page(
        self,
        where: JobFilter = JobFilter(),  # noqa: B008 (frozen)
        *,
        order: Order = "-created_at",
        page: int = 1,
        page_size: int = 50,
    ) -> JobsPage:
        found = self._matching(where)
        start = (page - 1) * page_size
        items = tuple(found[start : start + page_size])
        return JobsPage(items, page, page_size, len(found), True, self._world.positions())

    async def history(self, job_id: str, *, after_seq: int = 0, limit: int = 100) -> History | None:
        told = self._checked().told(job_id)
        if not told:
            return None
        log = self._world.log_of(job_id)
        items = tuple(
            HistoryEvent(
                seq,
                type_of(one.event),
                one.at,
                one.actor,
                one.cause,
                "",
                Raw(msgspec.json.encode(one.event)),
                log.number,
                one.offset,
                "",
            )
            for seq, one in enumerate(told, 1)
            if after_seq < seq <= after_seq + limit
        )
        last = after_seq + len(items)
        return History(items, last if last < len(told) else None, log.number, log.viewed - 1)

    async def as_of(
        self, job_id: str, *, at: Micros | None = None, version: int | None = None
    ) -> Stored | None:
        told = self._checked().told(job_id)
        if at is not None:
            told = [one for one in told if one.at <= at]
        job = folded(told[:version])
        if job is None:
            return None
        return Stored(job, self._world.log_of(job_id).number, told[-1].offset)

    async def attempts(self, job_id: str) -> tuple[Attempt, ...] | None:
        return () if self._checked().told(job_id) else None

    def follow(self, stir: Callable[[int, int], None]) -> None:
        self._world.followers.append(stir)

    async def changes(
        self, partition: int, after: tuple[int, int], until: int, *, rows_max: int
    ) -> Changes:
        world = self._checked()
        items = [
            Happened((logical.offset, ALL_OF_IT), logical, stored.job, partition, None)
            for job_id in world.history
            if world.log_of(job_id).number == partition and (stored := world.stored(job_id))
            for logical in _logicals(world, job_id)
            if after < (logical.offset, ALL_OF_IT) and logical.offset <= until
        ]
        items.sort(key=lambda item: item.place)
        if len(items) <= rows_max:
            return Changes(tuple(items), until)
        return Changes(tuple(items[:rows_max]), items[rows_max - 1].place[0])

    async def changed_jobs(self, versions: Mapping[str, int]) -> list[ChangedJob]:
        world = self._checked()
        return [
            ChangedJob(stored.job, stored.partition, tuple(_logicals(world, job_id)[version:]))
            for job_id, version in versions.items()
            if (stored := world.stored(job_id)) and stored.job.version > version
        ]

    async def poll(self, queues: Sequence[str], types: Sequence[str], limit: int) -> Jobs:
        where = JobFilter(queues=tuple(queues), types=tuple(types), statuses=("pending",))
        found = sorted(self._matching(where), key=lambda job: (job.request.priority, job.order))
        return Jobs(tuple(found[:limit]), None, self._world.positions())

    async def jobs_by_id(
        self, job_ids: Sequence[str], *, even_erased: bool = False
    ) -> dict[str, Stored]:
        found = {job_id: await self.job(job_id, even_erased=even_erased) for job_id in job_ids}
        return {job_id: stored for job_id, stored in found.items() if stored is not None}

    # --- What operators said ---------------------------------------------------------------------
    def _operators(self) -> OperatorsView:
        world = self._checked()
        return OperatorsView(world.said, world.positions())

    def _all_of(self, items: tuple[T, ...]) -> Rows[T]:
        return Rows(items, self._world.positions())

    async def queue(self, name: str) -> QueueHeld | None:
        found = (await self.queues((name,))).items
        if not found:
            return None
        limits = {t.type: t.template.limits for t in (await self.templates((name,))).items}
        held = tuple(
            job
            for job in self._world.jobs()
            if job.request.queue == name and any(held_lease(step) for step in job.steps)
        )
        return QueueHeld(found[0], limits, held, True)

    async def queues(self, names: Sequence[str] = ()) -> Rows[QueueState]:
        operators = self._operators()
        counts = {name: dict.fromkeys(ALL_STATUSES, 0) for name in operators.used}
        oldest: dict[QueueName, Micros] = {}
        for job in self._checked().jobs():
            name = job.request.queue
            count = counts.setdefault(name, dict.fromkeys(ALL_STATUSES, 0))
            count[status(job)] += 1
            if status(job) == "pending":
                oldest[name] = min(job.created_at, oldest.get(name, job.created_at))
        partitions, positions = self._world.settings.partitions, self._world.positions()
        return self._all_of(
            tuple(
                QueueState(
                    name,
                    partition_of(name, partitions),
                    count,
                    oldest.get(name),
                    positions[partition_of(name, partitions)],
                    operators.settings.get(name, QueueSettings()),
                    operators.paused.get(name),
                )
                for name, count in counts.items()
                if not names or name in names
            )
        )

    async def template(
        self, queue: str, job_type: str, version: int | None = None
    ) -> TemplateVersion | None:
        versions = self._operators().versions.get((QueueName(queue), job_type), [])
        known = [one for one in versions if version in (None, one.version)]
        return known[-1] if known else None

    async def templates(
        self, queues: Sequence[str] = (), types: Sequence[str] = ()
    ) -> Rows[TemplateVersion]:
        newest = self._operators().newest()
        return self._all_of(
            tuple(
                one
                for one in newest
                if (not queues or one.queue in queues) and (not types or one.type in types)
            )
        )

    async def schedule(self, queue: str, name: str) -> ScheduleState | None:
        all_ = self._operators().schedules()
        return next((one for one in all_ if (one.queue, one.name) == (queue, name)), None)

    async def schedules(
        self, queues: Sequence[str] = (), types: Sequence[str] = (), enabled: bool | None = None
    ) -> Rows[ScheduleState]:
        return self._all_of(
            tuple(
                one
                for one in self._operators().schedules()
                if (not queues or one.queue in queues)
                and (not types or one.its.schedule.type in types)
                and enabled in (None, one.its.schedule.enabled)
            )
        )

    async def model(self, name: str) -> ModelState | None:
        return next((one for one in self._operators().models() if one.name == name), None)

    async def models(self) -> Rows[ModelState]:
        return self._all_of(self._operators().models())

    async def runtimes(self, queues: Sequence[str] = ()) -> Rows[RuntimeState]:
        known = self._checked().runtimes
        return self._all_of(
            tuple(runtime for runtime in known if not queues or runtime.queue in queues)
        )

    async def rates(self, minutes: int, queue: str | None = None) -> tuple[Rate, ...]:
        """Of one minute, in which all ended."""
        ends = Counter(
            status(job).value
            for job in self._checked().jobs()
            if job.end is not None and queue in (None, job.request.queue)
        )
        return tuple(Rate(Micros(0), outcome, count) for outcome, count in sorted(ends.items()))

    async def command(self, command_id: str) -> CommandOutcome | None:
        outcome = self._checked().outcomes.get(command_id)
        if outcome is None or outcome.offset >= self._world.logs[outcome.partition].viewed:
            return None
        return outcome

    async def operation(self, operation_id: str) -> Operation | None:
        return self._checked().operations.get(operation_id)

    async def count_matching(self, where: Where) -> int:
        return sum(
            1
            for job in self._checked().jobs()
            if job.end is None
            and matches(where.queue, where.types, where.labels, where.scope, job.request)
        )

    async def positions(self) -> dict[int, int]:
        return self._checked().positions()

    async def consumed(self, partition: int) -> Consumed | None:
        log = self._checked().logs[partition]
        return Consumed(*log.consumed, log.viewed - 1)

    async def reached(self, partition: int, offset: int, seconds_max: float) -> bool:
        log = self._checked().logs[partition]
        end = asyncio.get_running_loop().time() + seconds_max
        while log.viewed <= offset:
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(0.005)
        return True


# --- The app over it -----------------------------------------------------------------------------
class Client(httpx.AsyncClient):
    """Speaks to the app as any HTTP client would."""

    world: World
    services: Services

    async def job(self, **fields: Any) -> dict[str, Any]:
        """A new job."""
        answer = await self.post("/v1/jobs", json={"type": "t", **fields})
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())

    async def leased(self, **fields: Any) -> tuple[str, int]:
        """A job that runtime r1 holds, and its fence."""
        job = await self.job(**fields)
        answer = await self.post(f"/v1/jobs/{job['id']}/lock", json={"runtime_id": "r1"})
        assert answer.status_code == 200, answer.text
        return str(job["id"]), int(answer.json()["fence"])

    async def succeeded(self, output: object = None, **fields: Any) -> str:
        job_id, fence = await self.leased(**fields)
        body = {"fence": fence, "output": output}
        answer = await self.post(f"/v1/jobs/{job_id}/result", json=body)
        assert answer.status_code == 200, answer.text
        return job_id


def app_over(world: World) -> Starlette:
    @asynccontextmanager
    async def ports(_: Settings) -> AsyncIterator[Ports]:
        world.wires.append(_Wire(world))
        yield Ports(world.wires[-1], world.reads, world.objects)

    return create_app(world.settings, open_ports=ports, now=lambda: world.at)


@asynccontextmanager
async def client_over(world: World) -> AsyncIterator[Client]:
    app = app_over(world)
    async with (
        app.router.lifespan_context(app),
        Client(transport=httpx.ASGITransport(app=app), base_url="http://api") as client,
    ):
        client.world = world
        client.services = app.state.services
        yield client
