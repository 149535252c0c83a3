"""The faults of a storm, by the numbers of docs/storms.md. Lanes run side by side, each one fault
after the other; what comes next in a lane is drawn from the seed alone, so that a storm can be
raised again. Every fault mends what it broke."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, cast
from uuid import uuid4

import psycopg

from ledger.domain.commands import ReportProgress
from ledger.domain.ids import CommandId, Fence, JobId, Micros, QueueName, RuntimeId
from ledger.embedded import EmbeddedError
from ledger.log.command_codec import command_record
from ledger.log.errors import LogError
from ledger.log.outbox import Outbox
from ledger.log.partitions import partition_of
from ledger.log.records import Outgoing
from processors.owner.seams import wall_clock
from tests.chaos.load import FLOODED, LEASE_SECONDS, Load
from tests.chaos.stack import NODES, PARTITIONS, Stack
from tests.support.storm_runtime import QUEUES
from tests.support.wire import Way, Wire

Role = Literal["owner", "projector", "runtime", "api"]
LEASES = (0.5, 1.0, 3.0)
FREEZE_BROKER_SECONDS = 15.0
TWO_DOWN_SECONDS = 8.0
FULL_SECONDS = (3.0, 8.0)
"""How long a disk stays full."""
STORM_TIMES, STORM_SECONDS = 20, 60.0
LOCK_SECONDS = (2.0, 10.0)
TERMINATIONS, TERMINATE_SECONDS = 20, 2.0
NETWORK_SECONDS = (1.0, 6.0)
DELAY_SECONDS = (0.05, 0.5)
FLOOD_A_SECOND = 10_000
FLOOD_SECONDS = 3
FLOOD_BATCH = 500
SAID_AGAIN = 30
JUMPS_SECONDS = (-3_600.0, -90.0, -5.0, 5.0, 90.0, 3_600.0)
WRONG_SECONDS = (2.0, 10.0)
"""How long a clock stays wrong before it jumps back."""
OLDER_SECONDS = (4.0, 12.0)
"""How much older the copy is that Postgres is put back to."""


class Faults:
    """`tell` is given each fault as it begins."""

    def __init__(
        self, stack: Stack, load: Load, chance: random.Random, tell: Callable[[str], None]
    ) -> None:
        self._stack = stack
        self._load = load
        self.chance = chance
        self._tell = tell

    # --- Processes: F17, F32, F38 ----------------------------------------------------------------
    async def kill(self, role: Role) -> None:
        name = self._one(role)
        self._tell(f"kill {name}")
        self._stack.down.add(name)
        try:
            await asyncio.to_thread(self._stack.cluster.kill, name)
            await asyncio.sleep(self.chance.uniform(0, 2))
            self._stack.start(name)
        finally:
            self._stack.down.discard(name)

    async def pause(self, role: Role) -> None:
        name = self._one(role)
        leases = self.chance.choice(LEASES)
        self._tell(f"freeze {name} for {leases:g} leases")
        await asyncio.to_thread(self._stack.cluster.freeze, name)
        try:
            await asyncio.sleep(leases * LEASE_SECONDS)
        finally:
            self._stack.cluster.thaw(name)

    async def devour(self) -> None:
        """A job that takes its runtime with it, as the kernel does when memory is out."""
        self._tell("a job ends its runtime's process, as if out of memory")
        await self._load.submit_one("devour")

    async def jump(self, role: Role) -> None:
        """F32. The role may be killed meanwhile, and begin with the wrong time."""
        name = self._one(role)
        wrong = self.chance.choice(JUMPS_SECONDS)
        seconds = self.chance.uniform(*WRONG_SECONDS)
        self._tell(f"the clock of {name} jumps by {wrong:+g} s, and back after {seconds:.1f} s")
        clock = self._stack.cluster.clock(name)
        clock.set(wrong)
        try:
            await asyncio.sleep(seconds)
        finally:
            clock.set(0)

    def _one(self, role: Role) -> str:
        return self.chance.choice(self._stack.names(role))

    # --- Brokers: F20 to F23, F37 -----------------------------------------------------------------
    async def kill_leader(self) -> None:
        node = await self._leader()
        self._tell(f"kill the leader of a partition of events: broker {node}")
        await self._without(node, seconds=self.chance.uniform(1, 6))

    async def rolling_restart(self) -> None:
        self._tell("restart the brokers one after the other")
        for node in NODES:
            await asyncio.to_thread(self._stack.kafka.restart, node)

    async def freeze_broker(self) -> None:
        node = self.chance.choice(NODES)
        self._tell(f"freeze broker {node} for {FREEZE_BROKER_SECONDS:g} s")
        await asyncio.to_thread(self._stack.kafka.pause, node)
        try:
            await asyncio.sleep(FREEZE_BROKER_SECONDS)
        finally:
            self._stack.kafka.resume(node)

    async def two_down(self) -> None:
        nodes = self.chance.sample(NODES, 2)
        self._tell(f"kill brokers {nodes[0]} and {nodes[1]}: fewer in sync than must be")
        await self._without(*nodes, seconds=TWO_DOWN_SECONDS)

    async def fill_disk_of_broker(self) -> None:
        node = self.chance.choice(NODES)
        self._tell(f"the disk of broker {node} is full")
        await asyncio.to_thread(leave_no_room, self._stack.kafka.pids.get(node))
        await asyncio.sleep(self.chance.uniform(*FULL_SECONDS))
        self._stack.seen["brokers ended by a full disk"] += node not in self._stack.kafka.pids
        await asyncio.to_thread(self._stack.kafka.restart, node)

    async def _without(self, *nodes: int, seconds: float) -> None:
        kafka = self._stack.kafka
        await asyncio.to_thread(kafka.kill, *nodes)
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(kafka.restart, *nodes)

    async def _leader(self) -> int:
        partition = self.chance.randrange(PARTITIONS)
        leader = (await self._stack.leaders()).get(partition, -1)
        return leader if leader in NODES else NODES[0]

    # --- Postgres: F28 to F30, F37 ----------------------------------------------------------------
    async def kill_postgres(self) -> None:
        self._tell("kill Postgres")
        postgres = self._stack.postgres
        await asyncio.to_thread(postgres.kill)
        await asyncio.sleep(self.chance.uniform(0, 3))
        await asyncio.to_thread(postgres.start)

    async def fill_disk_of_postgres(self) -> None:
        self._tell("the disk of Postgres is full")
        postgres = self._stack.postgres
        await asyncio.to_thread(leave_no_room, postgres.pid)
        await asyncio.sleep(self.chance.uniform(*FULL_SECONDS))
        self._stack.seen["Postgres ended by a full disk"] += postgres.pid is None
        await asyncio.to_thread(postgres.kill)
        await asyncio.to_thread(postgres.start)

    async def terminate_backends(self) -> None:
        self._tell(f"terminate every session of Postgres {TERMINATIONS} times")
        for _ in range(TERMINATIONS):
            await asyncio.to_thread(
                self._execute,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            await asyncio.sleep(self.chance.uniform(0, 2 * TERMINATE_SECONDS / TERMINATIONS))

    async def lock_table(self) -> None:
        table = self.chance.choice(
            ["open_jobs", "ended_jobs", "checkpoints", "job_events", "flushes", "queues"]
        )
        seconds = self.chance.uniform(*LOCK_SECONDS)
        self._tell(f"lock the table {table} for {seconds:.1f} s")
        await asyncio.to_thread(
            self._execute,
            f"LOCK TABLE ledger.{table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds})",
        )

    async def restore_postgres(self) -> None:
        seconds = self.chance.uniform(*OLDER_SECONDS)
        self._tell(f"put Postgres back to what it was {seconds:.1f} s ago")
        postgres = self._stack.postgres
        for change in (self._stack.copy_postgres, self._stack.put_postgres_back):
            await asyncio.to_thread(postgres.kill)
            try:
                await asyncio.to_thread(change)
            finally:
                await asyncio.to_thread(postgres.start)
            await asyncio.sleep(seconds)

    def _execute(self, query: str) -> None:
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(self._stack.postgres.dsn, connect_timeout=10) as connection,
        ):
            connection.execute(query.encode())

    # --- Network: F31 ----------------------------------------------------------------------------
    async def cut(self) -> None:
        await self._network("is cut", Wire.cut)

    async def one_way_cut(self) -> None:
        way = cast(Way, self.chance.choice(["to the server", "to the client"]))
        await self._network(f"passes nothing {way}", lambda wire: wire.hold(way))

    async def silence(self) -> None:
        await self._network(
            "passes nothing", lambda wire: wire.hold("to the server", "to the client")
        )

    async def delay(self) -> None:
        seconds = self.chance.uniform(*DELAY_SECONDS)
        await self._network(f"is {seconds * 1000:.0f} ms slow", lambda wire: wire.delay(seconds))

    async def half_open(self) -> None:
        await self._network("is half-open", Wire.half_open)

    async def truncate(self) -> None:
        await self._network("breaks off in the middle of answers", Wire.truncate)

    async def _network(self, what: str, strike: Callable[[Wire], None]) -> None:
        wire = self.chance.choice(self._stack.wires)
        seconds = self.chance.uniform(*NETWORK_SECONDS)
        self._tell(f"the wire to {wire.name} {what} for {seconds:.1f} s")
        strike(wire)
        try:
            await asyncio.sleep(seconds)
        finally:
            wire.heal()

    # --- Mischief: F19, F34, F35 -----------------------------------------------------------------
    async def rebalance_storm(self) -> None:
        self._tell(f"an owner joins and leaves {STORM_TIMES} times in {STORM_SECONDS:g} s")
        child = self._stack.cluster.start(
            "restless",
            *("-m", "tests.support.restless_owner", str(STORM_TIMES), str(STORM_SECONDS)),
        )
        try:
            with suppress(EmbeddedError):
                await asyncio.to_thread(child.wait, name="restless", seconds=3 * STORM_SECONDS)
        finally:
            child.stop(signal.SIGTERM, seconds=10)

    async def poison(self) -> None:
        self._tell("poison in every topic")
        async with self._outbox() as outbox:
            topics = self._stack.cluster.topics
            for topic, partitions in (
                (topics.requests, PARTITIONS),
                (topics.commands, PARTITIONS),
                (topics.events, PARTITIONS),
                (topics.replies, 1),
                (topics.assigned(QueueName(QUEUES[0])), 1),
                (topics.dead(topics.requests), PARTITIONS),
            ):
                for record in self._poison(topic):
                    partition = self.chance.randrange(partitions)
                    with suppress(LogError):
                        await outbox.send_one(topic, partition, record)

    def _poison(self, topic: str) -> list[Outgoing]:
        event = "ledger.job.requested.v1" if "events" in topic else "ledger.job.request.v1"

        def named(kind: str) -> list[tuple[str, bytes]]:
            headers = {
                "specversion": "1.0",
                "id": f"poison-{uuid4()}",
                "source": "poison",
                "type": kind,
            }
            return [(f"ce_{name}", value.encode()) for name, value in headers.items()]

        return [
            (b"red", b"\xff\xfe{", named(event)),  # Bad UTF-8.
            (b"red", b'{"type": 7, "queue": []}', named(event)),  # Wrong schema.
            (b"red", b'{"type": "work"}', named("ledger.job.request.v99")),  # Of the future.
            (b"red", b'{"type": "' + b"w" * 300_000 + b'"}', named(event)),  # Huge.
            (b"red", b"", named(event)),
            (b"red", None, named(event)),  # A tombstone.
            (b"red", b"[" * 5_000 + b"]" * 5_000, named(event)),  # Deep.
            (None, b"hello", []),  # Alien.
            (b"red", b'{"type": "work", "payload": {"n": NaN}}', named(event)),
            (b"red", b"{}", [("ce_id", b"\xff"), ("ce_type", b"\x00"), *named(event)]),  # Forged.
            (b"red", b"{}", [("nonce", b"\x00"), ("entry", b"-1"), *named(event)]),
        ]

    async def duplicates(self) -> None:
        """F33."""
        self._tell("what was asked and answered is asked again")
        await self._load.say_again(SAID_AGAIN)

    async def flood(self) -> None:
        self._tell(f"{FLOOD_A_SECOND} progress reports a second for {FLOOD_SECONDS} s")
        held = await self._load.held()
        if held is None:
            return
        job_id, fence = held
        place = partition_of(QueueName(FLOODED), PARTITIONS)
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), 0
        async with self._outbox() as outbox, asyncio.TaskGroup() as group:
            while sent < FLOOD_A_SECOND * FLOOD_SECONDS:
                due = int((loop.time() - began) * FLOOD_A_SECOND)
                if due - sent < FLOOD_BATCH:
                    await asyncio.sleep(FLOOD_BATCH / FLOOD_A_SECOND)
                    continue
                batch = [self._report(job_id, fence) for _ in range(FLOOD_BATCH)]
                sent += FLOOD_BATCH
                group.create_task(self._flooded(outbox, place, batch))
        await self._load.let_go(job_id, fence)

    async def _flooded(self, outbox: Outbox, partition: int, batch: list[Outgoing]) -> None:
        with suppress(LogError):
            await outbox.send(self._stack.cluster.topics.commands, partition, batch)

    def _report(self, job_id: str, fence: int) -> Outgoing:
        return command_record(
            ReportProgress(JobId(job_id), Fence(fence), percent=self.chance.uniform(0, 100)),
            CommandId(f"flood-{uuid4()}"),
            source="flood",
            reply_to="",
            sent_at=Micros(wall_clock()),
            actor=RuntimeId("flood"),
        )

    def _outbox(self) -> _Opened:
        return _Opened(Outbox(self._stack.cluster.connection))


class _Opened:
    """An outbox for the length of a block; while no broker answers there is nothing to send."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def __aenter__(self) -> Outbox:
        return self._outbox

    async def __aexit__(self, *_: object) -> None:
        await self._outbox.close()


def leave_no_room(pid: int | None) -> None:
    """For the rest of its life a server fails to write to any file, in each of its processes: as
    on a full disk, but for the number of the error."""
    if pid is None:
        return
    place = Path(f"/proc/{pid}")
    children = (place / "task" / str(pid) / "children").read_text().split()
    # Even root may have to be who runs a process to set its limits: Postgres is not run by root.
    about = place.stat()
    owner, group = (about.st_uid, about.st_gid) if os.geteuid() == 0 else (None, None)
    for each in (str(pid), *children):
        limiting = subprocess.run(
            ["prlimit", "--pid", each, "--fsize=0:"], user=owner, group=group, capture_output=True
        )
        assert limiting.returncode == 0 or each in children, limiting.stderr  # Some have ended.


Strike = Callable[[Faults], Awaitable[None]]
ROLES: tuple[Role, ...] = ("owner", "projector", "runtime", "api")
KINDS: dict[str, dict[str, Strike]] = {
    "processes": {
        **{f"kill {role}": partial(Faults.kill, role=role) for role in ROLES},
        **{f"freeze {role}": partial(Faults.pause, role=role) for role in ROLES},
    },
    "clocks": {f"clock of {role}": partial(Faults.jump, role=role) for role in ROLES},
    "brokers": {
        "kill the leader": Faults.kill_leader,
        "rolling restart": Faults.rolling_restart,
        "freeze a broker": Faults.freeze_broker,
        "two brokers down": Faults.two_down,
        "full disk of a broker": Faults.fill_disk_of_broker,
    },
    "postgres": {
        "kill postgres": Faults.kill_postgres,
        "terminate backends": Faults.terminate_backends,
        "lock a table": Faults.lock_table,
        "restore postgres": Faults.restore_postgres,
        "full disk of postgres": Faults.fill_disk_of_postgres,
    },
    "network": {
        "cut": Faults.cut,
        "one-way cut": Faults.one_way_cut,
        "silence": Faults.silence,
        "delay": Faults.delay,
        "half-open": Faults.half_open,
        "truncate": Faults.truncate,
    },
    "mischief": {
        "rebalance storm": Faults.rebalance_storm,
        "poison": Faults.poison,
        "duplicates": Faults.duplicates,
        "flood": Faults.flood,
        "out of memory": Faults.devour,
    },
}
"""By lane."""
