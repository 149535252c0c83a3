"""examples/plain_kafka_runtime.py, which knows nothing but aiokafka, against the real owner."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ledger.client import Producer
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    JobSucceeded,
    LeaseReleased,
    LeasesExtended,
    RuntimeEnded,
)
from tests.support.ledger import Ledger, ledger_on

pytestmark = pytest.mark.services

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_kafka_runtime.py"
QUEUE = "plain"
LINES_MAX = 150


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


@pytest.fixture
def plain() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain_kafka_runtime", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def running(plain: ModuleType, ledger: Ledger, **handlers: Any) -> AsyncIterator[None]:
    runtime = plain.PlainRuntime(
        ledger.connection.bootstrap, "plain-1", QUEUE, ledger.topics.prefix
    )
    runtime.handlers |= handlers
    stop = asyncio.Event()
    runs = asyncio.create_task(runtime.run(stop))
    try:
        yield
    finally:
        stop.set()
        await runs


def of(kind: type, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_it_is_short_and_needs_nothing_of_ours() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= LINES_MAX
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    ours = ("ledger", "processors", "projections", "api", "cli")
    assert not [name for name in imported if name.partition(".")[0] in ours]


async def test_what_it_asks_for_it_does(plain: ModuleType, ledger: Ledger) -> None:
    async with ledger.owner():
        await plain.submit(ledger.connection.bootstrap, QUEUE, 30, ledger.topics.prefix)
        async with running(plain, ledger):
            events = await ledger.until(lambda events: len(of(JobSucceeded, events)) == 30)
        await ledger.until(lambda events: len(of(RuntimeEnded, events)) == 1)
    outputs = sorted(bytes(memoryview(event.output)) for event in of(JobSucceeded, events))
    assert outputs == sorted(b'{"echo": {"number": %d}}' % number for number in range(30))


async def test_it_fails_keeps_its_leases_and_gives_back(plain: ModuleType, ledger: Ledger) -> None:
    plain.PERIOD, plain.MARGIN = 0.2, 0.1  # type: ignore[attr-defined]

    async def fail(payload: object) -> None:
        raise ValueError("no")

    async def sleep(payload: dict[str, float]) -> None:
        await asyncio.sleep(payload["seconds"])

    async with (
        ledger.owner(),
        Producer(ledger.connection, prefix=ledger.topics.prefix, wait_seconds=20) as producer,
    ):
        async with running(plain, ledger, fail=fail, sleep=sleep):
            await producer.submit("fail", queue=QUEUE, retry={"max_attempts": 1})
            await producer.submit("sleep", {"seconds": 2.5}, queue=QUEUE, lease_seconds=1)
            await ledger.until(lambda events: len(of(JobSucceeded, events)) == 1)
            await producer.submit("sleep", {"seconds": 60}, queue=QUEUE)
            await ledger.until(lambda events: len(of(AttemptStarted, events)) >= 2)
        events = await ledger.until(lambda events: len(of(RuntimeEnded, events)) == 1)
    assert [event.message for event in of(AttemptFailed, events)] == ["no"]
    assert of(AttemptExpired, events) == []
    assert of(LeasesExtended, events) != []
    assert len(of(LeaseReleased, events)) == 1


async def test_it_finds_a_new_owner(plain: ModuleType, ledger: Ledger) -> None:
    async with ledger.owner(), running(plain, ledger):
        await plain.submit(ledger.connection.bootstrap, QUEUE, 1, ledger.topics.prefix)
        await ledger.until(lambda events: len(of(JobSucceeded, events)) == 1)
        async with ledger.owner():
            pass
        await plain.submit(ledger.connection.bootstrap, QUEUE, 1, ledger.topics.prefix)
        await ledger.until(lambda events: len(of(JobSucceeded, events)) == 2)
