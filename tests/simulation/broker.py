"""A broker's logs, its group coordinator, and the network between it and its clients.

What happens on the way is the weather's to say. Everything here runs in nature's context: what was
sent travels on, whatever becomes of its sender.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context
from hashlib import sha256
from typing import Any, Protocol

from aiokafka.errors import UnknownTopicOrPartitionError
from msgspec import Struct

from ledger.log.records import Outgoing, ReadHeader
from tests.simulation.group import Group
from tests.simulation.loop import EPOCH_SECONDS, Loop, Process

REMEMBERED_BATCHES = 5
"""Of each producer and partition, by which a broker knows a batch that comes again."""
APPEND_TIME = "LogAppendTime"


class Stored(Struct, frozen=True, gc=False):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[ReadHeader, ...]


class Sent(Struct, frozen=True, gc=False):
    """A batch under way: which it is of its producer's to that partition."""

    producer: int
    number: int
    topic: str
    partition: int
    records: Sequence[Outgoing]
    by: str


class Way(Struct, frozen=True, gc=False):
    """What becomes of one attempt to append. Instants are seconds from now."""

    arrives_in: float | None
    """None: it is lost on the way."""
    answered_in: float | None
    """After its arrival; None: the answer is lost."""
    refused: bool = False
    """By a broker that lacks replicas: nothing is appended."""
    again_in: float | None = None
    """A copy arrives once more, when nobody knows any more that it came before."""
    forgets: bool = False
    """If it came before, the broker says so and not where."""


class Weather(Protocol):
    """What the network and the broker do to whom; drawn from the seed."""

    def append(self, sent: Sent) -> Way: ...
    def fetch_seconds(self, process: Process | None) -> float: ...
    def trip_seconds(self, process: Process | None) -> float: ...
    def records_max(self) -> int:
        """That one fetch hands out."""
        ...


class Log:
    """One partition."""

    def __init__(self, topic: str, partition: int, *, append_time: bool) -> None:
        self.topic = topic
        self.partition = partition
        self.first = 0
        self.records: list[Stored] = []
        self.waiting: list[asyncio.Future[None]] = []
        """Fetches that found nothing."""
        self.known: dict[int, list[tuple[int, int]]] = {}
        """By producer: (number, base offset) of its last batches."""
        self.append_time = append_time

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    def read(self, offset: int, records_max: int) -> list[Stored]:
        place = offset - self.first
        return self.records[place : place + records_max]


class Topic(Struct):
    name: str
    logs: list[Log]
    settings: dict[str, str]
    replicas: int


class Broker:
    def __init__(self, loop: Loop, weather: Weather, *, group_seconds: float) -> None:
        self.loop = loop
        self.weather = weather
        self.topics: dict[str, Topic] = {}
        self.group = Group(loop, self, session_seconds=group_seconds)
        self.appended: list[Callable[[Log, Sent, list[Stored], str], None]] = []
        """Told of each append, with how it came to it."""
        self.under_way: Counter[str] = Counter()
        """Batches by topic."""
        self._digest = sha256()
        self.nature = Context()
        """In which nobody's process is current."""

    # --- Topics ----------------------------------------------------------------------------------
    def create(self, name: str, partitions: int, replicas: int, settings: dict[str, str]) -> bool:
        if name in self.topics:
            return False
        append_time = settings.get("message.timestamp.type") == APPEND_TIME
        logs = [Log(name, number, append_time=append_time) for number in range(partitions)]
        self.topics[name] = Topic(name, logs, settings, replicas)
        return True

    def log(self, topic: str, partition: int) -> Log:
        try:
            return self.topics[topic].logs[partition]
        except (KeyError, IndexError):
            raise UnknownTopicOrPartitionError(f"{topic}[{partition}]") from None

    def now_ms(self) -> int:
        return int((EPOCH_SECONDS + self.loop.now) * 1000)

    # --- The trace -------------------------------------------------------------------------------
    def note(self, *what: object) -> None:
        """One more line of the run's trace."""
        self._digest.update(f"{self.loop.now:.6f} {what!r}\n".encode())

    def digest(self) -> str:
        return self._digest.hexdigest()

    # --- On the way ------------------------------------------------------------------------------
    def after(self, seconds: float, what: Callable[..., object], *args: Any) -> None:
        """In nature's own time: nobody's freeze or death keeps it."""
        self.loop.call_later(seconds, what, *args, context=self.nature)

    def carry(self, sent: Sent, answer: Callable[[int | None, int], None]) -> Way:
        """`answer` is told offset (None: nobody knows) and time of the append, if the answer gets
        through. Once for each attempt at most."""
        way = self.weather.append(sent)
        if way.arrives_in is not None:
            self.under_way[sent.topic] += 1
            self.after(way.arrives_in, self._arrive, sent, way, answer)
        if way.again_in is not None:
            self.after(way.again_in, self._append, sent, "again")
        return way

    def _arrive(self, sent: Sent, way: Way, answer: Callable[[int | None, int], None]) -> None:
        self.under_way[sent.topic] -= 1
        if way.refused:
            self.note("refused", sent.by, sent.topic, sent.partition)
            return
        log = self.log(sent.topic, sent.partition)
        known = dict(log.known.get(sent.producer, ()))
        offset: int | None
        if sent.number in known:
            self.note("known", sent.by, sent.topic, sent.partition, sent.number)
            offset = None if way.forgets else known[sent.number]
        else:
            offset = self._append(sent, "")
        if way.answered_in is not None:
            self.after(way.answered_in, answer, offset, self.now_ms() if log.append_time else -1)

    def _append(self, sent: Sent, how: str) -> int:
        log = self.log(sent.topic, sent.partition)
        base, now = log.end, self.now_ms()
        stored = [
            Stored(log.topic, log.partition, base + place, now, key, value, tuple(headers))
            for place, (key, value, headers) in enumerate(sent.records)
        ]
        log.records += stored
        batches = log.known.setdefault(sent.producer, [])
        batches.append((sent.number, base))
        del batches[:-REMEMBERED_BATCHES]
        self.note("append", how, sent.by, log.topic, log.partition, base)
        for record in stored:
            self._digest.update(repr((record.key, record.value, record.headers)).encode())
        for told in self.appended:
            told(log, sent, stored, how)
        waiting, log.waiting = log.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        return base

    def cut_off(self, log: Log, end: int) -> None:
        """An unclean election: what lies from `end` on is gone, and so is the memory of it."""
        self.note("truncated", log.topic, log.partition, end, log.end)
        del log.records[end - log.first :]
        log.known = {
            producer: [batch for batch in batches if batch[1] < end]
            for producer, batches in log.known.items()
        }
