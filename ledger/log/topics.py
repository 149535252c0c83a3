"""Names and settings of every topic, in one place; made by `apply`, judged by `check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from ledger.domain.ids import QueueName
from ledger.log.admin import Admin, TopicFound, TopicWanted
from ledger.log.connection import RECORD_BYTES_MAX, Connection
from ledger.log.errors import UnsafeTopics
from ledger.log.partitions import INBOX_PARTITIONS, REPLIES_PARTITIONS

Mode = Literal["development", "production"]
REPLICAS = {"development": 1, "production": 3}
IN_SYNC_MIN = {"development": 1, "production": 2}

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Problem(Struct, frozen=True, gc=False):
    """One unsafe setting, as a sentence."""

    topic: str
    setting: str
    value: str
    wanted: str
    why: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.setting} is {self.value}, wanted {self.wanted}: {self.why}"


class TopicSpec(Struct, frozen=True, gc=False):
    name: str
    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Topics:
    """`prefix` sets several ledgers on one cluster apart."""

    prefix: str = ""

    @property
    def requests(self) -> str:
        return f"{self.prefix}ledger.requests.v1"

    @property
    def commands(self) -> str:
        return f"{self.prefix}ledger.commands.v1"

    @property
    def events(self) -> str:
        return f"{self.prefix}ledger.events.v1"

    @property
    def replies(self) -> str:
        return f"{self.prefix}ledger.replies.v1"

    def assigned(self, queue: QueueName) -> str:
        """The inbox of the runtimes of a queue."""
        return f"{self.prefix}ledger.assigned.{queue}.v1"

    def dead(self, intake: str) -> str:
        """The dead-letter topic of an intake."""
        return f"{self.prefix}dlq.{intake.removeprefix(self.prefix)}"

    @property
    def owners_group(self) -> str:
        return f"{self.prefix}ledger.owners.v1"

    def specs(self, *, partitions: int, mode: Mode) -> list[TopicSpec]:
        """Of all topics but the inboxes, which are made at a queue's first Kafka runtime."""
        kept = {**_settings(mode), "retention.ms": "-1"}
        dead = {**_settings(mode), "retention.ms": str(30 * DAY_MS)}
        replies = {**_settings(mode), "retention.ms": str(HOUR_MS)}
        return [
            TopicSpec(self.requests, partitions, kept),
            TopicSpec(self.commands, partitions, kept),
            TopicSpec(self.events, partitions, kept),
            TopicSpec(self.dead(self.requests), partitions, dead),
            TopicSpec(self.dead(self.commands), partitions, dead),
            TopicSpec(self.replies, REPLIES_PARTITIONS, replies),
        ]

    def assigned_spec(self, queue: QueueName, *, mode: Mode) -> TopicSpec:
        settings = {**_settings(mode), "retention.ms": str(DAY_MS)}
        return TopicSpec(self.assigned(queue), INBOX_PARTITIONS, settings)

    async def apply(self, connection: Connection, *, partitions: int, mode: Mode) -> None:
        """Create what is missing and set what differs; return once every leader is there.

        Changes no partition count: that would send queues elsewhere. `check` names what is left.
        """
        async with Admin(connection) as admin:
            specs = self.specs(partitions=partitions, mode=mode)
            found = await admin.find([spec.name for spec in specs])
            if missing := [spec for spec in specs if spec.name not in found]:
                await _create(admin, missing, mode)
            for spec in specs:
                topic = found.get(spec.name)
                if topic is not None and (changed := _differing(spec, topic)):
                    await admin.set(spec.name, changed)
            await admin.wait_for_leaders(*(spec.name for spec in specs))

    async def check(self, connection: Connection, *, partitions: int, mode: Mode) -> list[Problem]:
        """Every setting that can lose or misplace what the ledger promises to keep."""
        async with Admin(connection) as admin:
            specs = self.specs(partitions=partitions, mode=mode)
            found = await admin.find([spec.name for spec in specs])
        return [problem for spec in specs for problem in problems_of(spec, found.get(spec.name))]

    async def require_safe(self, connection: Connection, *, partitions: int, mode: Mode) -> None:
        """Raises `UnsafeTopics` with a sentence for each problem."""
        problems = await self.check(connection, partitions=partitions, mode=mode)
        if problems:
            raise UnsafeTopics("\n".join(map(str, problems)))

    async def ensure_assigned(
        self, connection: Connection, queue: QueueName, *, mode: Mode
    ) -> None:
        """Make a queue's inbox topic if it is not there; ready for use on return."""
        spec = self.assigned_spec(queue, mode=mode)
        async with Admin(connection) as admin:
            if not await admin.find([spec.name]):
                await _create(admin, [spec], mode)
            await admin.wait_for_leaders(spec.name)


async def _create(admin: Admin, specs: Sequence[TopicSpec], mode: Mode) -> None:
    await admin.create(
        [TopicWanted(spec.name, spec.partitions, REPLICAS[mode], spec.settings) for spec in specs]
    )


def _settings(mode: Mode) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        # What we send carries no time of its own: without the broker's, all of it would be older
        # than any retention.
        "message.timestamp.type": "LogAppendTime",
        "retention.bytes": "-1",
        "max.message.bytes": str(RECORD_BYTES_MAX),
        "min.insync.replicas": str(IN_SYNC_MIN[mode]),
        "unclean.leader.election.enable": "false",
        "compression.type": "producer",
    }


_WHY = {
    "cleanup.policy": "compaction removes records, and every record counts",
    "retention.ms": "records must be kept as long as somebody needs them, and no longer",
    "retention.bytes": "a full partition would delete records that are still needed",
    "max.message.bytes": "an entry must fit one batch, and a fetch must fit it too",
    "min.insync.replicas": "fewer copies can lose what was acknowledged",
    "unclean.leader.election.enable": "a replica that lags behind would drop what was acknowledged",
    "message.timestamp.type": "a producer's clock must not say how old a record is",
}
_AT_LEAST = {"min.insync.replicas", "max.message.bytes", "retention.ms"}


def problems_of(spec: TopicSpec, found: TopicFound | None) -> list[Problem]:
    """What `check` says of one topic."""
    if found is None:
        why = "it does not exist; `ledger topics apply` makes it"
        return [Problem(spec.name, "the topic", "missing", "present", why)]
    problems = []
    if found.partitions != spec.partitions:
        why = "queues lie by it: it is fixed for the life of a ledger"
        problems.append(
            Problem(spec.name, "partitions", str(found.partitions), str(spec.partitions), why)
        )
    replicas = int(spec.settings["min.insync.replicas"])
    wanted = replicas + 1 if replicas > 1 else 1
    if found.replicas < wanted:
        why = "a lost disk would take what was acknowledged with it"
        problems.append(
            Problem(spec.name, "replicas", str(found.replicas), f"{wanted} at least", why)
        )
    for setting in _differing(spec, found):
        if setting not in _WHY:
            continue  # A matter of cost, not of safety.
        value, wanted_value = found.settings.get(setting, "unset"), spec.settings[setting]
        problems.append(Problem(spec.name, setting, value, wanted_value, _WHY[setting]))
    return problems


def _differing(spec: TopicSpec, found: TopicFound) -> dict[str, str]:
    return {
        setting: wanted
        for setting, wanted in spec.settings.items()
        if not _satisfies(setting, found.settings.get(setting), wanted)
    }


def _satisfies(setting: str, value: str | None, wanted: str) -> bool:
    if setting in _AT_LEAST and value not in (None, "-1") and wanted != "-1":
        return int(value) >= int(wanted)
    if setting == "retention.ms" and value == "-1":
        return True
    return value == wanted
