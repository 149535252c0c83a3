"""Every crash point, by kill -9 and by an error, on real processes under a load of every kind.

Three ledgers, each with a role of every kind whose lives follow one another: each life dies at its
point and is followed by the next one's. What must hold is looked at once all of a ledger's deaths
are over. `-k` runs the deaths that it selects and no others.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, LiteralString

import psycopg
import pytest

from ledger.domain.entries import Proven
from ledger.domain.events import JobRequested, JobSucceeded, ObjectsDeleted, Ref, ResultWithdrawn
from ledger.domain.ids import SECOND
from ledger.embedded.processes import Child, free_ports
from ledger.log.crash_points import POINTS, CrashPoint, Process
from ledger.objects import FolderStore
from processors.clean.orphans import OURS
from projections.log_source import log_source
from projections.rebuild import verify
from tests.support import services as backends
from tests.support.mixed_load import ORPHAN_SECONDS, RUNTIME_QUEUES, MixedLoad
from tests.support.processes import Cluster
from tests.support.services import Services
from tests.support.verdicts import read_history

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(2_400)]

How = Literal["kill", "raise"]
Role = Literal["worker", "owner", "views", "api", "runtime"]
ROLES: dict[Process, Role] = {
    "owner": "owner",
    "projector": "views",
    "cleaner": "views",
    "gateway": "api",
    "runtime": "runtime",
}
"""Which process has which loop; a `worker` has owner, projector and cleaner."""
PARTITIONS = 4
REACH_SECONDS = 300
"""A schedule comes once a minute; others wait while owners die: long, on a busy machine."""
END_SECONDS = 120
LATE_SECONDS = 90
"""Owners are away again and again."""
RECOVERS_SECONDS = 0.5
"""How long whoever outlives an error is left at work before the next point."""

PASSES = {
    "owner.after_inbox_made": 1,
    "schedule.before_entry": 1,
    "schedule.after_entry": 1,
    "cleaner.after_mark": 1,
    "cleaner.after_page": 1,
    "cleaner.before_orphans_deleted": 1,
    "cleaner.after_orphans_deleted": 1,
    "cleaner.after_owner_deleted": 1,
    "cleaner.after_swept": 1,
    "gateway.after_unawaited": 1,
}
"""At which pass; 2 where nothing is said, so that something went well before."""


@dataclass(frozen=True)
class Death:
    ledger: str
    role: Role
    point: str
    how: How
    is_outlived: bool
    is_ordinary: bool

    def __str__(self) -> str:
        return f"{self.point}-{self.how}-{self.role}"

    @property
    def setting(self) -> str:
        suffix = ":raise" if self.how == "raise" else ""
        return f"{self.point}:{PASSES.get(self.point, 2)}{suffix}"


def deaths() -> Iterator[Death]:
    """The owner's by kill are shared out between two ledgers. Those by an error run in a whole
    worker, whose owner feeds the projector beside it."""
    of_owners = [point for point in POINTS if "owner" in point.reached_by]
    first_half = of_owners[: len(of_owners) // 2]
    for point in POINTS:
        for process in point.reached_by:
            killed_in = "A" if process != "owner" or point in first_half else "B"
            yield death(point, process, "kill", killed_in)
            yield death(point, process, "raise", "C" if process == "owner" else "B")
    for point in POINTS:
        if point.fault in ("F8", "F9"):
            yield Death("C", "worker", point.name, "kill", is_outlived=False, is_ordinary=False)


def death(point: CrashPoint, process: Process, how: How, ledger: str) -> Death:
    role = "worker" if ledger == "C" else ROLES[process]
    is_outlived = how == "raise" and process in point.outlived_by
    return Death(ledger, role, point.name, how, is_outlived, is_ordinary(point, process, how))


def is_ordinary(point: CrashPoint, process: Process, how: How) -> bool:
    """Of the list of faults to inject each point by kill, each fault by an error."""
    first = next(one for one in POINTS if one.fault == point.fault)
    is_first = process == point.reached_by[0] and (how == "kill" or point is first)
    return point.fault != "" and is_first


EVERY_DEATH = tuple(deaths())
IS_WHOLE = bool(os.environ.get("LEDGER_TEST_ALL_DEATHS"))
DEATHS = tuple(death for death in EVERY_DEATH if death.is_ordinary or IS_WHOLE)
"""In `make test` the ordinary ones; `make faults` has the other points and processes, too."""


@dataclass
class Doomed(Cluster):
    """Its children have an environment of their own, so that several ledgers run at once."""

    environment: dict[str, str] = field(default_factory=dict)

    def start(self, name: str, *words: str, **more: str) -> Child:
        self.started += 1
        said = [f"{key}={value}" for key, value in (self.environment | more).items()]
        log = self.directory / f"{self.started:03}-{name}.log"
        command = ["/usr/bin/env", *said, sys.executable, *words]
        child = self.children[name] = Child(command, log=log, directory=Path.cwd())
        return child


@dataclass
class Trial:
    """One ledger, its roles and their deaths."""

    cluster: Doomed
    port: int
    store: Path
    deaths: list[Death]
    reached: dict[Death, str] = field(default_factory=dict)
    """What was wrong with it; empty: it was as it should be."""
    wrong: list[str] = field(default_factory=list)
    """What did not hold in the end."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def roles(self) -> tuple[Role, ...]:
        is_whole = any(death.role == "worker" for death in self.deaths)
        return (*(("worker",) if is_whole else ("owner", "views")), "api", "runtime")

    async def run(self) -> None:
        cluster = self.cluster
        await cluster.prepare()
        for role in self.roles:
            self.start(role)
        load = MixedLoad(
            cluster.connection, cluster.topics, cluster.partitions, self.url, self.store
        )
        stop = asyncio.Event()
        async with load:
            await load.prepare()
            async with asyncio.TaskGroup() as loading:
                loading.create_task(load.run(stop))
                async with asyncio.TaskGroup() as dying:
                    for role in self.roles:
                        dying.create_task(self.lives_of(role))
                stop.set()
            await load.finish()
            await self.settle()
            await self.look(load)

    def start(self, role: Role, **more: str) -> Child:
        queues = ",".join(RUNTIME_QUEUES)
        # In a group of its own: it need not wait until its predecessor, killed, is missed.
        group = f"{role}-{self.cluster.started}"
        words: dict[Role, tuple[str, ...]] = {
            "worker": ("tests.support.lone_worker", group),
            "owner": ("tests.support.lone_worker", group, "owner"),
            "views": ("cli.main", "worker", "--only", "projector"),
            "api": ("cli.main", "api", "--port", str(self.port)),
            "runtime": ("tests.support.chaos_runtime", "runtime", queues, "20"),
        }
        return self.cluster.start(role, "-m", *words[role], **more)

    async def stop(self, role: Role) -> str:
        """By SIGTERM; what was wrong with how it ended."""
        child = self.cluster.children[role]
        child.send(signal.SIGTERM)
        try:
            await self.cluster.until(
                lambda: not child.alive, seconds=END_SECONDS, what=f"{role} has stopped"
            )
        except AssertionError as error:
            await asyncio.to_thread(child.kill)
            return str(error)
        return "" if child.status == 0 else f"it ended with {child.status}, told to stop"

    async def lives_of(self, role: Role) -> None:
        mine = [death for death in self.deaths if death.role == role]
        if not mine:
            return
        await self.stop(role)
        for death in mine:
            child = self.start(role, LEDGER_CRASH_AT=death.setting)
            self.reached[death] = await self.end_of(death, child)
        self.start(role)

    async def end_of(self, death: Death, child: Child) -> str:
        """What was wrong with it."""
        said = f'"crash_point.reached", "point": "{death.point}"'
        try:
            await self.cluster.until(
                lambda: said in child.output or not child.alive,
                seconds=REACH_SECONDS,
                what=f"{death} is reached",
            )
            if not death.is_outlived:
                await self.cluster.until(
                    lambda: not child.alive, seconds=END_SECONDS, what=f"{death} ends the process"
                )
        except AssertionError as error:
            await asyncio.to_thread(child.kill)
            return str(error)
        output = child.output
        if said not in output:
            return f"it ended with {child.status} before it was there\n{output[-3000:]}"
        if death.is_outlived:
            await asyncio.sleep(RECOVERS_SECONDS)
            if not child.alive:
                return f"the error ended it, with {child.status}\n{output[-3000:]}"
            return await self.stop(death.role)
        if death.how == "kill":
            return "" if child.status == -signal.SIGKILL else f"it ended with {child.status}"
        if child.status in (0, None) or child.status < 0:
            return f"it ended with {child.status}\n{output[-3000:]}"
        return "" if "CrashPointReached" in output else f"it gave no reason\n{output[-3000:]}"

    # --- What must hold --------------------------------------------------------------------------
    async def settle(self) -> None:
        """Every job ends, every operation too, and a last cleaner sweeps all that is nobody's."""
        cluster = self.cluster
        for what, query in (
            ("job", "select count(*) from ledger.open_jobs"),
            ("operation", "select count(*) from ledger.operations where ended_at is null"),
        ):
            await cluster.until(
                lambda query=query: self.count(query) == 0,  # type: ignore[misc]
                seconds=END_SECONDS,
                what=f"every {what} has ended",
            )
        cleans: Role = "worker" if "worker" in self.roles else "views"
        await self.stop(cleans)
        self.start(cleans, LEDGER_ORPHAN_HOURS="0.00001")

    async def look(self, load: MixedLoad) -> None:
        cluster = self.cluster
        connection, topics = cluster.connection, cluster.topics
        history = await read_history(
            connection,
            topics,
            cluster.partitions,
            patience_us=LATE_SECONDS * SECOND,
            strictly=False,
        )
        endings = history.endings()
        if set(endings) != history.jobs() or set(endings.values()) != {1}:
            self.wrong.append("a job has no ending, or two")
        if any(many != 1 for many in history.outcomes().values()):
            self.wrong.append("a command has two outcomes")
        keys = [
            event.idempotency_key
            for proven in history.entries
            for event in proven.entry.events
            if isinstance(event, JobRequested) and event.idempotency_key
        ]
        if len(keys) != len(set(keys)):
            self.wrong.append("a key has two jobs")
        if lost := load.keys - set(keys):
            self.wrong.append(f"acknowledged and lost: {sorted(lost)[:10]} of {len(lost)}")
        self.wrong += [
            f"{v.rule} in entry {v.position}: {v.detail}" for v in history.violations[:20]
        ]
        await self.until_swept()
        source = log_source(connection, topics)
        differences = await verify(cluster.dsn, topic=topics.events, source=source)
        self.wrong += [str(difference) for difference in differences]

    async def until_swept(self) -> None:
        """Every object is referred to, every reference leads to one."""
        cluster = self.cluster
        dangling: set[str] = set()
        orphans: set[str] = set()
        store = FolderStore(self.store)
        try:
            async with asyncio.timeout(END_SECONDS):
                while True:
                    history = await read_history(
                        cluster.connection, cluster.topics, cluster.partitions, strictly=False
                    )
                    referred = referred_keys(history.entries)
                    listed = await store.listing("")
                    assert listed.after is None
                    there = {
                        found.key for found in listed.objects if not found.key.startswith(OURS)
                    }
                    dangling, orphans = referred - there, there - referred
                    if not dangling and not orphans:
                        return
                    await asyncio.sleep(0.5)  # Between two looks.
        except TimeoutError:
            self.wrong.append(f"dangling: {sorted(dangling)[:5]}, orphans: {sorted(orphans)[:5]}")
        finally:
            await store.close()

    def count(self, query: LiteralString) -> int:
        with psycopg.connect(self.cluster.dsn) as connection:
            row = connection.execute(query).fetchone()
        return -1 if row is None else int(row[0])


def referred_keys(entries: list[Proven]) -> set[str]:
    """What the log refers to and has not withdrawn."""
    referred: set[str] = set()
    outputs: dict[str, str] = {}
    for proven in entries:
        for event in proven.entry.events:
            match event:
                case JobRequested(payload_ref=Ref(key=key)):
                    referred.add(key)
                case JobSucceeded(job_id=job_id, output_ref=Ref(key=key)):
                    outputs[job_id] = key
                    referred.add(key)
                case ResultWithdrawn(job_id=job_id):
                    referred.discard(outputs.get(job_id, ""))
                case ObjectsDeleted(keys=keys):
                    referred -= set(keys)
                case _:
                    pass
    return referred


# --- All of them at once --------------------------------------------------------------------------
@pytest.fixture(scope="module")
def trials(
    request: pytest.FixtureRequest, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Trial]]:
    """By ledger, over; only of deaths that this run of pytest has selected."""
    asked = {
        item.callspec.params["death"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "death" in getattr(item, "fixturenames", ())
    }
    by_ledger: dict[str, list[Death]] = {}
    for death in DEATHS:
        if death in asked:
            by_ledger.setdefault(death.ledger, []).append(death)
    trials = {
        name: trial_of(services, tmp_path_factory.mktemp(f"ledger-{name}"), deaths)
        for name, deaths in by_ledger.items()
    }
    try:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(run_all(list(trials.values())))
        yield trials
    finally:
        for trial in trials.values():
            trial.cluster.stop()
            backends.drop_database(services.postgres, trial.cluster.dsn.rpartition("/")[2])
            backends.delete_topics(services.bootstrap, trial.cluster.prefix)


def trial_of(services: Services, directory: Path, deaths: list[Death]) -> Trial:
    name = f"t{secrets.token_hex(4)}"
    dsn = backends.create_database(services.postgres, name)
    store = directory / "store"
    [port] = free_ports(1)
    cluster = Doomed(services.bootstrap, dsn, f"{name}.", PARTITIONS, directory)
    cluster.environment = {
        "LEDGER_KAFKA": services.bootstrap,
        "LEDGER_POSTGRES": dsn,
        "LEDGER_PREFIX": cluster.prefix,
        "LEDGER_PARTITIONS": str(PARTITIONS),
        "LEDGER_OBJECTS": str(store),
        "LEDGER_SNAPSHOT_EVENTS": "200",
        "LEDGER_CLEAN_SECONDS": "0.2",
        "LEDGER_ORPHAN_HOURS": str(ORPHAN_SECONDS / 3600),
    }
    return Trial(cluster, port, store, deaths)


async def run_all(trials: list[Trial]) -> None:
    outcomes = await asyncio.gather(*(trial.run() for trial in trials), return_exceptions=True)
    for trial, outcome in zip(trials, outcomes, strict=True):
        if isinstance(outcome, Exception):
            trial.wrong.append("".join(traceback.format_exception(outcome))[-6000:])
        elif isinstance(outcome, BaseException):
            raise outcome


def test_every_fault_is_met_by_kill_and_by_error_in_the_ordinary_run_too() -> None:
    numbered = {point.name: point.fault for point in POINTS if point.fault}
    ordinary = [death for death in EVERY_DEATH if death.is_ordinary]
    assert {death.point for death in ordinary if death.how == "kill"} == set(numbered)
    by_error = [numbered[death.point] for death in ordinary if death.how == "raise"]
    assert sorted(by_error) == sorted(set(numbered.values()))


@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_a_death_is_reached_and_ends_as_promised(trials: dict[str, Trial], death: Death) -> None:
    assert trials[death.ledger].reached.get(death, "it was never begun") == ""


@pytest.mark.parametrize("ledger", ["A", "B", "C"])
def test_after_all_deaths_everything_holds(trials: dict[str, Trial], ledger: str) -> None:
    if ledger not in trials:
        pytest.skip("no death of it was selected")
    assert trials[ledger].wrong == []
