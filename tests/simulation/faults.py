"""What goes wrong in a run, drawn from its seed: faults, each of which can be left out."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

from msgspec import Struct

from tests.simulation.broker import Sent, Way
from tests.simulation.loop import EPOCH_SECONDS, Loop, Process

Trouble = Literal["late", "lost", "deaf", "doubled", "refused", "slow", "where"]
"""Of appends: they land when their sender has given up; never; land, and nobody says so; land
twice; are refused for lack of replicas; are slow; come again and the broker does not say where the
first one is."""
TROUBLES: tuple[Trouble, ...] = ("late", "lost", "deaf", "doubled", "refused", "slow", "where")


FULL_MINUTE = 60.0 - EPOCH_SECONDS % 60
"""The first after the start."""


class Fault(Struct, frozen=True, kw_only=True, tag=True):
    at: float


class Kill(Fault, frozen=True, kw_only=True):
    """Without a last word; another one in its place after a while."""

    process: str
    back_in: float


class Stop(Fault, frozen=True, kw_only=True):
    """In order; another one in its place at once."""

    process: str


class Freeze(Fault, frozen=True, kw_only=True):
    process: str
    seconds: float


class Cut(Fault, frozen=True, kw_only=True):
    """The network of one process."""

    process: str
    seconds: float


class Appends(Fault, frozen=True, kw_only=True):
    """A part of all appends of a process."""

    process: str
    seconds: float
    trouble: Trouble
    part: float
    events_only: bool = False
    """Else to any topic."""


class Fetches(Fault, frozen=True, kw_only=True):
    process: str
    seconds: float
    delay: float


class Jump(Fault, frozen=True, kw_only=True):
    """Of a wall clock."""

    process: str
    by: float


class Drift(Fault, frozen=True, kw_only=True):
    """Of both clocks."""

    process: str
    part: float


class Expel(Fault, frozen=True, kw_only=True):
    """The group forgets a member, which goes on believing for a while."""


class StoreAway(Fault, frozen=True, kw_only=True):
    seconds: float


class StoreSilent(Fault, frozen=True, kw_only=True):
    """Commits, and the connection is lost before it says so."""

    times: int


class Truncate(Fault, frozen=True, kw_only=True):
    """An unclean election: the last records of the events are gone, acknowledged or not."""

    partition: int
    records: int


AnyFault = (
    Kill
    | Stop
    | Freeze
    | Cut
    | Appends
    | Fetches
    | Jump
    | Drift
    | Expel
    | StoreAway
    | StoreSilent
    | Truncate
)


def drawn(
    chance: Random, *, owners: Sequence[str], others: Sequence[str], until: float
) -> list[AnyFault]:
    """Owners get the most of it."""
    faults: list[AnyFault] = []
    for name in (*owners, *others):
        if chance.random() < 0.3:
            faults.append(Jump(at=0.0, process=name, by=chance.choice((-90.0, -5.0, 5.0, 90.0))))
        if chance.random() < 0.2:
            faults.append(Drift(at=0.0, process=name, part=chance.uniform(-0.01, 0.01)))
    faults += [
        _one(chance, owners, others, round(chance.uniform(2.0, until), 3))
        for _ in range(chance.randint(2, 9))
    ]
    if chance.random() < 0.4:
        faults += _together(chance, owners, others, round(chance.uniform(2.0, until - 6.0), 3))
    return sorted(faults, key=lambda fault: fault.at)


def _together(
    chance: Random, owners: Sequence[str], others: Sequence[str], at: float
) -> Sequence[AnyFault]:
    """What seldom meets by itself."""
    owner = chance.choice(owners)
    match chance.randrange(4):
        case 0:  # Take-overs whose appends go wrong.
            trouble: Trouble = chance.choice(("late", "doubled", "where"))
            return [
                Appends(
                    at=at, process=name, seconds=6.0, trouble=trouble, part=1.0, events_only=True
                )
                for name in owners
            ] + [Expel(at=at + 0.5), Expel(at=at + 3.0)]
        case 1:  # As schedules fire: another owner does it, and this one when it wakes up.
            return [Freeze(at=FULL_MINUTE - chance.random(), process=owner, seconds=7.0)]
        case 2:  # Started anew where no broker can be reached.
            return [
                Cut(at=at, process=owner, seconds=9.0),
                Kill(at=at + 1.0, process=owner, back_in=0.5),
            ]
        case _:
            return [Cut(at=at, process=others[-1], seconds=6.0)]


def _one(chance: Random, owners: Sequence[str], others: Sequence[str], at: float) -> AnyFault:
    process = chance.choice(owners if chance.random() < 0.65 else others)
    seconds = round(chance.uniform(0.5, 9.0), 3)
    match chance.choices(range(10), (14, 6, 20, 12, 26, 6, 5, 8, 3, 4))[0]:
        case 0:
            return Kill(at=at, process=process, back_in=round(chance.uniform(0.2, 5.0), 3))
        case 1:
            return Stop(at=at, process=process)
        case 2:
            return Freeze(at=at, process=process, seconds=seconds)
        case 3:
            return Cut(at=at, process=process, seconds=seconds)
        case 4:
            trouble = chance.choice(TROUBLES)
            part = chance.choice((0.2, 0.5, 1.0))
            return Appends(
                at=at,
                process=process,
                seconds=seconds,
                trouble=trouble,
                part=part,
                events_only=process in owners and chance.random() < 0.6,
            )
        case 5:
            delay = round(chance.uniform(0.1, 2.0), 3)
            return Fetches(at=at, process=process, seconds=seconds, delay=delay)
        case 6:
            by = chance.choice((-3600.0, -30.0, 30.0, 3600.0))
            return Jump(at=at, process=process, by=by)
        case 7:
            return Expel(at=at)
        case 8:
            return StoreAway(at=at, seconds=seconds)
        case _:
            return StoreSilent(at=at, times=chance.randint(1, 3))


class Weather:
    """What is in the air: the faults that last, and the small delays that are always there."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._chance = Random(f"{loop.seed}/weather")
        self._appends: list[tuple[float, Appends]] = []
        self._fetches: list[tuple[float, Fetches]] = []
        self._stuck: dict[tuple[int, int], float] = {}
        """Batches that are late, and when they arrive."""

    def add(self, fault: Appends | Fetches) -> None:
        until = self._loop.now + fault.seconds
        if isinstance(fault, Appends):
            self._appends.append((until, fault))
        else:
            self._fetches.append((until, fault))

    def clear(self) -> None:
        self._appends.clear()
        self._fetches.clear()

    def append(self, sent: Sent) -> Way:
        chance = self._chance
        if self._stuck.get((sent.producer, sent.number), 0.0) > self._loop.now:
            return Way(None, None)  # What is sent after it does not overtake it.
        there, back = 0.0005 + 0.002 * chance.random(), 0.0005 + 0.002 * chance.random()
        match self._trouble(sent):
            case None:
                return Way(there, back)
            case "late":
                late = chance.uniform(1.0, 12.0)
                self._stuck[sent.producer, sent.number] = self._loop.now + late
                return Way(late, back)
            case "lost":
                return Way(None, None)
            case "deaf":
                return Way(there, None)
            case "where":
                return Way(there, None if chance.random() < 0.5 else back, forgets=True)
            case "doubled":
                return Way(there, back, again_in=chance.uniform(0.01, 8.0))
            case "refused":
                return Way(there, None, refused=True)
            case "slow":
                return Way(chance.uniform(0.05, 1.0), chance.uniform(0.05, 1.0))

    def _trouble(self, sent: Sent) -> Trouble | None:
        for until, fault in self._appends:
            if until < self._loop.now or not sent.by.startswith(f"{fault.process}#"):
                continue
            if fault.events_only and "events" not in sent.topic:
                continue
            if self._chance.random() < fault.part:
                return fault.trouble
        return None

    def fetch_seconds(self, process: Process | None) -> float:
        seconds = 0.0005 + 0.003 * self._chance.random()
        if process is not None:
            for until, fault in self._fetches:
                if until > self._loop.now and process.name.startswith(f"{fault.process}#"):
                    seconds += fault.delay * self._chance.random()
        return seconds

    def trip_seconds(self, process: Process | None) -> float:
        return self.fetch_seconds(process) / 2

    def records_max(self) -> int:
        return self._chance.choice((2, 10, 500, 500))
