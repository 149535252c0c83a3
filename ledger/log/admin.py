"""Makes topics and asks what they are: aiokafka's admin client, typed and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from aiokafka.admin import NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from aiokafka.structs import TopicPartition
from msgspec import Struct

from ledger.log.connection import Connection
from ledger.log.errors import LogUnavailable

POLL_SECONDS = 0.05


class TopicFound(Struct, frozen=True, gc=False):
    partitions: int
    replicas: int
    """Of the partition that has the fewest."""
    settings: Mapping[str, str]


class TopicWanted(Struct, frozen=True, gc=False):
    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


class Admin:
    """`async with Admin(connection) as admin`. Raises `LogUnavailable` for what fails."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client: Any = None

    async def __aenter__(self) -> Self:
        self._client = self._connection.clients.admin(**self._connection.client("admin"))
        try:
            async with asyncio.timeout(self._connection.bounds.connect_seconds):
                await self._client.start()
        except (KafkaError, TimeoutError) as error:
            await self._client.close()
            raise LogUnavailable(f"{self._connection.bootstrap} does not answer") from error
        except BaseException:
            await self._client.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.close()

    async def find(self, names: Sequence[str]) -> dict[str, TopicFound]:
        """Those of `names` that exist."""
        described = await self._bounded(self._client.describe_topics(list(names)))
        there = {topic["topic"]: topic for topic in described if not topic["error_code"]}
        if not there:
            return {}
        settings = await self._settings(list(there))
        return {
            name: TopicFound(
                partitions=len(topic["partitions"]),
                replicas=min(len(partition["replicas"]) for partition in topic["partitions"]),
                settings=settings[name],
            )
            for name, topic in there.items()
        }

    async def create(self, topics: Sequence[TopicWanted]) -> None:
        """All in one request: one each takes a broker ten times as long. Somebody else may have
        made one meanwhile: that is as good."""
        new = [
            NewTopic(
                topic.name, topic.partitions, topic.replicas, topic_configs=dict(topic.settings)
            )
            for topic in topics
        ]
        response = await self._bounded(self._client.create_topics(new))
        for name, code, *more in response.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                said = more[0] if more else error.__name__
                raise LogUnavailable(f"the broker makes no topic {name}: {said}")

    async def set(self, name: str, settings: Mapping[str, str]) -> None:
        """These and, as the broker's request replaces all of a topic's own, all it had before.
        Returns once a broker tells them when asked: it takes them over a moment after it agreed."""
        own = await self._settings([name], own_only=True)
        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs={**own[name], **settings})
        for response in await self._bounded(self._client.alter_configs([resource])):
            for code, said, *_ in response.resources:
                if code:
                    raise LogUnavailable(f"the broker does not set {name}: {said}")
        try:
            async with asyncio.timeout(self._connection.bounds.admin_seconds):
                while not await self._has(name, settings):  # noqa: ASYNC110 - the broker tells nobody
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise LogUnavailable(f"{name} does not take its settings over") from error

    async def _has(self, name: str, settings: Mapping[str, str]) -> bool:
        return settings.items() <= (await self._settings([name]))[name].items()

    async def wait_for_leaders(self, *names: str) -> None:
        """Until every partition can be written to: the first append to a new topic would fail."""
        try:
            async with asyncio.timeout(self._connection.bounds.admin_seconds):
                while not await self._has_leaders(names):  # noqa: ASYNC110 - the broker tells nobody
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            said = f"{', '.join(names)}: some partition has no leader"
            raise LogUnavailable(said) from error

    async def delete_records(self, topic: str, below: Mapping[int, int]) -> None:
        """Delete what lies below these offsets of partitions."""
        wanted = {
            TopicPartition(topic, partition): RecordsToDelete(offset)
            for partition, offset in below.items()
        }
        await self._bounded(self._client.delete_records(wanted))

    async def _has_leaders(self, names: Sequence[str]) -> bool:
        described = await self._bounded(self._client.describe_topics(list(names)))
        return all(
            not topic["error_code"]
            and topic["partitions"]
            and all(
                not partition["error_code"] and partition["leader"] >= 0
                for partition in topic["partitions"]
            )
            for topic in described
        )

    async def _settings(
        self, names: Sequence[str], *, own_only: bool = False
    ) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        found: dict[str, dict[str, str]] = {}
        for response in await self._bounded(self._client.describe_configs(resources)):
            for code, said, _, name, entries in response.resources:
                if code:
                    raise LogUnavailable(f"the broker does not describe {name}: {said}")
                found[name] = {
                    entry[0]: entry[1]
                    for entry in entries
                    if entry[1] is not None and not (own_only and _is_default(response, entry))
                }
        return found

    async def _bounded(self, answer: Any) -> Any:
        try:
            async with asyncio.timeout(self._connection.bounds.admin_seconds):
                return await answer
        except (KafkaError, TimeoutError) as error:
            raise LogUnavailable(f"an admin request failed: {error!r}") from error


def _is_default(response: Any, entry: Any) -> bool:
    """Version 0 says so; later ones name the source, of which 1 is the topic itself."""
    return bool(entry[3]) if response.API_VERSION == 0 else entry[3] != 1
