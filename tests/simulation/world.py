"""One run: processes, faults, load; then healing, quiet, and the verdict."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from api.claims import Claims
from api.gateway import Gateway
from ledger.client.job_context import Context
from ledger.client.operators import Operator
from ledger.log.connection import Bounds, Connection
from ledger.log.topics import Topics
from processors.owner.service import OwnerService
from tests.simulation import faults as faulty
from tests.simulation import plan as planning
from tests.simulation import roles
from tests.simulation.broker import Broker, Log, Sent, Stored
from tests.simulation.checks import Evidence, Found, fatal, quiet, verdict
from tests.simulation.clients import clients_of
from tests.simulation.coverage import Journal, reached
from tests.simulation.faults import AnyFault, Weather
from tests.simulation.loop import Loop, Process
from tests.simulation.nature import simulated
from tests.simulation.plan import LOAD_SECONDS, Plan
from tests.simulation.views import Views, unavailable
from tests.simulation.workload import Calls, Requests, handler

BOUNDS = Bounds(
    connect_seconds=4.0,
    request_seconds=1.5,
    append_seconds=3.0,
    offsets_seconds=2.0,
    admin_seconds=4.0,
    close_seconds=0.5,
    poll_seconds=0.5,
    stuck_seconds=6.0,
    session_seconds=4.0,
)
QUIET_SECONDS = 150.0
"""After the faults have stopped, everything has its end or its reason by then."""
LOOK_SECONDS = 1.0
AGAIN_SECONDS = 0.5
"""A process that died of an error is started again after so long."""

Role = Callable[["World", str, asyncio.Event], Coroutine[Any, Any, None]]


class Place(Struct):
    """Of a process: what runs there now, and how often it was started anew."""

    role: Role
    process: Process | None = None
    stop: asyncio.Event | None = None
    count: int = 0


class Outcome(Struct, frozen=True):
    seed: int
    faults: Sequence[AnyFault]
    violations: Sequence[Found]
    witness: Sequence[str]
    """What the log says of the first one's job."""
    digest: str
    seconds: float
    steps: int
    states: Counter[str]
    """Hard states that were reached, and how often."""


class World:
    def __init__(self, seed: int, faults: Sequence[AnyFault] | None = None) -> None:
        self.seed = seed
        self.plan: Plan = planning.drawn(Random(f"{seed}/plan"))
        self.topics = Topics()
        self.partitions = self.plan.partitions
        self.loop = Loop(seed)
        self.weather = Weather(self.loop)
        self.broker = Broker(self.loop, self.weather, group_seconds=BOUNDS.session_seconds)
        self.evidence = Evidence(self.topics, self.partitions)
        self.states: Counter[str] = Counter()
        self.journal = Journal(self.loop)
        self.views = Views(self.topics.events, self._passing, self._answering)
        self.owners: dict[str, OwnerService] = {}
        self._places: dict[str, Place] = {}
        self._store_away_until = 0.0
        self._store_silent = 0
        self._healed = False
        self._clients = clients_of(self.broker)
        self.broker.appended.append(self._appended)
        for number in range(self.plan.owners):
            self._places[f"owner{number}"] = Place(roles.owner)
        for number in range(self.plan.runtimes):
            self._places[f"runtime{number}"] = Place(roles.runtime)
        for number in range(self.plan.producers):
            self._places[f"producer{number}"] = Place(roles.producer)
        if self.plan.callers:
            self._places["api"] = Place(roles.gateway)
        names = list(self._places)
        self.faults: Sequence[AnyFault] = (
            faulty.drawn(
                Random(f"{seed}/faults"),
                owners=names[: self.plan.owners],
                others=names[self.plan.owners :],
                until=LOAD_SECONDS,
            )
            if faults is None
            else faults
        )
        self._requests = {
            name: Requests(self, name) for name in names if name.startswith("producer")
        }
        self._calls = Calls(self)

    def connection(self, name: str) -> Connection:
        return Connection(
            bootstrap="simulated", client_id=name, bounds=BOUNDS, clients=self._clients
        )

    # --- What roles ask for ----------------------------------------------------------------------
    def handler(self, name: str) -> Callable[[Context], Awaitable[object]]:
        return handler(self, name)

    async def requests(self, name: str, producer: Operator, stop: asyncio.Event) -> None:
        await self._requests[name.partition("#")[0]].run(producer, stop)

    async def callers(
        self, name: str, gateway: Gateway, claims: Claims, stop: asyncio.Event
    ) -> None:
        await self._calls.run(gateway, claims, stop)

    # --- The run ---------------------------------------------------------------------------------
    def run(self) -> Outcome:
        with simulated(self.loop), self.journal.kept():
            try:
                violations = self.loop.run_until_complete(self._live())
            finally:
                self.loop.give_up()
        first = violations[0].job_id if violations else None
        return Outcome(
            self.seed,
            self.faults,
            violations,
            self.evidence.witness(first) if first else (),
            self.broker.digest(),
            self.loop.now,
            self.loop.steps,
            self.states,
        )

    async def _live(self) -> list[Found]:
        await self.topics.apply(
            self.connection("topics"), partitions=self.partitions, mode="development"
        )
        for name in self._places:
            self._start(name)
        for fault in self.faults:
            self.loop.call_at(fault.at, self._befall, fault)
        await asyncio.sleep(LOAD_SECONDS)
        self._heal()
        until = self.loop.now + QUIET_SECONDS
        while self.loop.now < until and not self._is_over():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(LOOK_SECONDS)
        found = verdict(self.evidence, self.views)
        found += [Found("broken", what) for what in self.loop.broken]
        self.states += reached(self)
        self.broker.note("end", self.loop.steps, found)
        return found

    def _is_over(self) -> bool:
        """Nothing is left to come, or there is no point in waiting for it."""
        if fatal(self.evidence):
            return True
        done = all(each.done for each in self._requests.values())
        return done and quiet(self.evidence, self.broker, self.views)

    # --- Processes -------------------------------------------------------------------------------
    def _start(self, name: str) -> None:
        place = self._places[name]
        place.count += 1
        before = place.process
        process = place.process = Process(f"{name}#{place.count}", self.loop)
        if before is not None:
            process.wall_offset, process.drift = before.wall_offset, before.drift
            process.cut_until = before.cut_until
        stop = place.stop = asyncio.Event()
        self.broker.note("start", process.name)
        task = process.start(place.role(self, process.name, stop))
        task.add_done_callback(
            lambda done: self._ended(name, process, done), context=self.broker.nature
        )

    def _ended(self, name: str, process: Process, done: asyncio.Task[None]) -> None:
        """Of a process that was not killed."""
        error = None if done.cancelled() else done.exception()
        self.broker.note("ended", process.name, repr(error))
        process.kill()
        if error is not None:
            self.evidence.died(process.name, _first(error))
        self.loop.call_later(AGAIN_SECONDS, self._start, name)

    def _befall(self, fault: AnyFault) -> None:
        if self._healed:
            return
        self.broker.note(fault)
        place = self._places.get(getattr(fault, "process", ""))
        process = place.process if place is not None else None
        match fault:
            case faulty.Appends() | faulty.Fetches():
                self.weather.add(fault)
            case faulty.Expel():
                self.broker.group.expel()
            case faulty.StoreAway(seconds=seconds):
                self._store_away_until = self.loop.now + seconds
            case faulty.StoreSilent(times=times):
                self._store_silent = times
            case faulty.Truncate(partition=partition, records=records):
                log = self.broker.log(self.topics.events, partition)
                self.broker.cut_off(log, max(log.first, log.end - records))
            case _:
                if process is not None and place is not None and process.alive:
                    self._befall_process(fault, place, process)

    def _befall_process(self, fault: AnyFault, place: Place, process: Process) -> None:
        match fault:
            case faulty.Kill(back_in=back_in):
                process.kill()
                self.loop.call_later(back_in, self._start, fault.process)
            case faulty.Stop():
                assert place.stop is not None
                self.loop.call_soon(place.stop.set, context=process.context)
            case faulty.Freeze(seconds=seconds):
                process.freeze()
                self.loop.call_later(seconds, process.thaw)
            case faulty.Cut(seconds=seconds):
                process.cut_until = self.loop.now + seconds
            case faulty.Jump(by=by):
                process.wall_offset += by
            case faulty.Drift(part=part):
                process.drift = part
            case _:
                raise AssertionError(fault)

    def _heal(self) -> None:
        self._healed = True
        self.broker.note("healed")
        self.weather.clear()
        self._store_away_until = 0.0
        self._store_silent = 0
        for place in self._places.values():
            if place.process is not None and place.process.alive:
                place.process.cut_until = 0.0
                place.process.thaw()

    # --- The store -------------------------------------------------------------------------------
    def _passing(self) -> None:
        if self.loop.now < self._store_away_until:
            unavailable()

    def _answering(self) -> None:
        if self._store_silent:
            self._store_silent -= 1
            unavailable()

    # --- Evidence --------------------------------------------------------------------------------
    def _appended(self, log: Log, sent: Sent, stored: list[Stored], how: str) -> None:
        self.evidence.appended(log, stored)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
