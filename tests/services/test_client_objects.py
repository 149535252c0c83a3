"""Producers and runtimes with an object store: what is too large for the log goes by the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ledger.client import Context, JobFailure, Producer, Runtime
from ledger.client.errors import Refused, StoreFailed
from ledger.client.producer import Accepted
from ledger.domain.events import Event, JobFailed, JobSucceeded, StepSkipped, StepSucceeded
from ledger.domain.ids import JobId, StepName
from ledger.objects import FolderStore
from tests.support.ledger import Ledger, ledger_on

pytestmark = [pytest.mark.services, pytest.mark.rule("S3.7")]

LARGE = {"text": "é" * 100_000, "n": 1.5}
Handler = Callable[[Context], Any]


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger, ledger.owner():
        yield ledger


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FolderStore]:
    store = FolderStore(tmp_path / "objects")
    yield store
    await store.close()


@pytest.fixture
async def producer(ledger: Ledger, store: FolderStore) -> AsyncIterator[Producer]:
    async with Producer(
        ledger.connection,
        partitions=ledger.partitions,
        prefix=ledger.topics.prefix,
        wait_seconds=30,
        objects=store,
    ) as producer:
        yield producer


@asynccontextmanager
async def runtime_of(
    ledger: Ledger, handlers: dict[str, Handler], store: FolderStore | None
) -> AsyncIterator[None]:
    runtime = Runtime(
        "r",
        ledger.connection,
        partitions=ledger.partitions,
        prefix=ledger.topics.prefix,
        beat_seconds=0.5,
        objects=store,
    )
    for job_type, handler in handlers.items():
        runtime.job(job_type)(handler)
    serving = asyncio.create_task(runtime.serve())
    try:
        yield
    finally:
        runtime.stop()
        await serving


async def ended(ledger: Ledger, job_id: JobId) -> Event:
    def end_of(events: list[Event]) -> list[Event]:
        ends = JobSucceeded | JobFailed
        return [e for e in events if isinstance(e, ends) and e.job_id == job_id]

    return end_of(await ledger.until(lambda events: bool(end_of(events))))[0]


async def keys(store: FolderStore) -> set[str]:
    return {found.key for found in (await store.listing("")).objects}


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_large_payload_reaches_its_handler_and_a_large_output_the_store(
    ledger: Ledger, store: FolderStore, producer: Producer, is_async: bool
) -> None:
    def double(ctx: Context) -> object:
        return [ctx.payload, ctx.payload]

    async def double_in_loop(ctx: Context) -> object:
        return double(ctx)

    handler = double_in_loop if is_async else double
    async with runtime_of(ledger, {"double": handler}, store):
        job = await producer.submit("double", LARGE, labels={"user": "ada"})
        end = await ended(ledger, job.job_id)
    assert isinstance(end, JobSucceeded)
    assert end.output_ref is not None
    assert await keys(store) == {job.job["payload_ref"]["key"], end.output_ref.key}
    assert json.loads(await store.get(end.output_ref)) == [LARGE, LARGE]


@pytest.mark.rule("S2.2")
async def test_an_owner_tells_by_which_template_a_payload_is_to_be_checked(
    store: FolderStore, producer: Producer
) -> None:
    schema = {"properties": {"n": {"type": "number"}}}
    template: Any = {
        "payload_schema": schema,
        "dedupe_keys": ["/payload/n"],
        "concurrency_policy": "share_in_flight",
    }
    await producer.put_template("default", "t", template)
    first = await producer.submit("t", LARGE)
    second = await producer.submit("t", {**LARGE, "text": "x" * 100_000})
    small = await producer.submit("t", {"n": 1.5})
    assert {second.job_id, small.job_id} == {first.job_id}
    with pytest.raises(Refused) as refused:
        await producer.submit("t", {**LARGE, "n": "no number"})
    assert (refused.value.code, refused.value.pointer) == ("VALIDATION_FAILED", "/payload/n")


@pytest.mark.rule("S2.1")
async def test_what_a_newer_template_accepts_is_not_refused_by_an_older_one(
    ledger: Ledger, producer: Producer
) -> None:
    await producer.put_template("default", "t", of_n("number"))
    await producer.submit("t", LARGE)
    async with Producer(
        ledger.connection,
        partitions=ledger.partitions,
        prefix=ledger.topics.prefix,
        wait_seconds=30,
    ) as other:
        await other.put_template("default", "t", of_n("string"))
    changed = await producer.submit("t", {**LARGE, "n": "a text"})
    assert changed.job["template_version"] == 2
    with pytest.raises(Refused) as refused:
        await producer.submit("t", LARGE)
    assert refused.value.pointer == "/payload/n"


@pytest.mark.rule("S2.1")
async def test_what_a_version_that_is_named_and_known_refuses_is_not_sent(
    ledger: Ledger, producer: Producer
) -> None:
    await producer.put_template("default", "t", of_n("number"))
    with pytest.raises(Refused) as by_owner:
        await producer.submit("t", {"n": "a text"})
    before = await ledger.events()
    with pytest.raises(Refused) as refused:
        await producer.submit("t", {"n": "a text"}, template_version=1)
    assert str(refused.value) == str(by_owner.value)
    assert await ledger.events() == before
    fits = await producer.submit("t", {"n": 1}, template_version=1)
    assert fits.job["template_version"] == 1


def of_n(kind: str) -> Any:
    """A template whose payloads have an `n` of that type."""
    return {"payload_schema": {"properties": {"n": {"type": kind}}}}


async def test_the_same_command_again_is_the_same_job(
    store: FolderStore, producer: Producer
) -> None:
    first = await producer.submit("t", LARGE, command_id="c-1")
    again = await producer.submit("t", LARGE, command_id="c-1")
    assert (again.job_id, again.replayed) == (first.job_id, True)
    assert len(await keys(store)) == 1


@pytest.mark.rule("S1.9")
async def test_a_rerun_copies(store: FolderStore, producer: Producer) -> None:
    job = await producer.submit("t", LARGE)
    await producer.cancel(job.job_id)
    again = await producer.rerun(job.job_id, labels={"user": "bob"})
    old, new = job.job["payload_ref"], again.job["payload_ref"]
    assert (new["sha256"], new["key"].startswith("users/bob/")) == (old["sha256"], True)
    assert await keys(store) == {old["key"], new["key"]}


@pytest.mark.rule("S1.9", "S2.5")
async def test_a_rerun_from_where_it_failed_takes_large_outputs_along(
    ledger: Ledger, store: FolderStore, producer: Producer
) -> None:
    steps = [{"name": "one", "worker_type": "make"}, {"name": "two", "worker_type": "fail"}]
    template: Any = {"steps": steps, "retry": {"max_attempts": 1}}
    await producer.put_template("default", "flow", template)
    made: list[JobId] = []
    seen: list[object] = []

    async def make(ctx: Context) -> object:
        made.append(ctx.job_id)
        return LARGE

    def fail(ctx: Context) -> object:
        seen.append(ctx.inputs["one"])
        raise JobFailure("X", retryable=False)

    async with runtime_of(ledger, {"make": make, "fail": fail}, store):
        first = await producer.submit("flow", LARGE)
        await ended(ledger, first.job_id)
        again = await producer.rerun(first.job_id, from_failed=True)
        await ended(ledger, again.job_id)
    assert (made, seen) == ([first.job_id], [LARGE, LARGE])
    assert len(await keys(store)) == 4
    async with Producer(
        ledger.connection,
        partitions=ledger.partitions,
        prefix=ledger.topics.prefix,
        wait_seconds=30,
    ) as poor:
        anew = await poor.rerun(again.job_id, from_failed=True, payload={})
    assert [step["status"] for step in anew.job["steps"]] == ["pending", "pending"]


@pytest.mark.rule("S2.5")
async def test_steps_hand_large_outputs_on_and_conditions_see_what_they_name(
    ledger: Ledger, store: FolderStore, producer: Producer
) -> None:
    steps = [
        {"name": "one", "worker_type": "make"},
        {"name": "two", "worker_type": "measure", "when": "steps.one.output.n > 1.0"},
        {"name": "three", "needs": ["one"], "when": "steps.one.output.n < 1.0"},
    ]
    template: Any = {"steps": steps, "success_when": "steps.two.output > 3"}
    await producer.put_template("default", "flow", template)

    async def make(ctx: Context) -> object:
        return LARGE

    def measure(ctx: Context) -> object:
        return len(ctx.inputs["one"]["text"])

    async with runtime_of(ledger, {"make": make, "measure": measure}, store):
        job = await producer.submit("flow")
        assert isinstance(await ended(ledger, job.job_id), JobSucceeded)
    events = await ledger.events()
    outputs = {e.step: e.output for e in events if isinstance(e, StepSucceeded)}
    assert bytes(outputs[StepName("two")]) == b"100000"  # type: ignore[arg-type]
    assert [e.step for e in events if isinstance(e, StepSkipped)] == ["three"]


async def test_an_output_must_meet_its_schema_wherever_it_lies(
    ledger: Ledger, store: FolderStore, producer: Producer
) -> None:
    schema = {"properties": {"n": {"type": "string"}}}
    await producer.put_template("default", "t", {"output_schema": schema})

    async def make(ctx: Context) -> object:
        return LARGE

    async with runtime_of(ledger, {"t": make}, store):
        job = await producer.submit("t")
        end = await ended(ledger, job.job_id)
    assert isinstance(end, JobFailed)
    assert end.code == "INVALID_OUTPUT"
    assert await keys(store) == set()


async def test_a_payload_that_was_lost_fails_the_attempt(
    ledger: Ledger, store: FolderStore, producer: Producer
) -> None:
    job = await producer.submit("t", LARGE)
    await store.delete(job.job["payload_ref"]["key"])
    async with runtime_of(ledger, {"t": lambda ctx: ctx.payload}, store):
        end = await ended(ledger, job.job_id)
    assert isinstance(end, JobFailed)
    assert end.code == "OBJECT_LOST"


async def test_without_a_store_nothing_large_is_sent_or_begun(
    ledger: Ledger, producer: Producer
) -> None:
    async with Producer(
        ledger.connection, partitions=ledger.partitions, prefix=ledger.topics.prefix
    ) as poor:
        with pytest.raises(Refused) as refused:
            await poor.submit("t", LARGE)
        assert refused.value.code == "PAYLOAD_TOO_LARGE"
    job: Accepted = await producer.submit("t", LARGE, retry={"max_attempts": 1})
    async with runtime_of(ledger, {"t": lambda ctx: ctx.payload}, None):
        end = await ended(ledger, job.job_id)
    assert isinstance(end, JobFailed)
    assert end.code == "NO_OBJECT_STORE"


async def test_while_the_store_is_away_nothing_is_sent(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.client.carrying.PAUSE_SECONDS", 0.01)
    (tmp_path / "file").write_text("no folder")
    away = FolderStore(tmp_path / "file" / "objects")
    async with Producer(
        ledger.connection,
        partitions=ledger.partitions,
        prefix=ledger.topics.prefix,
        objects=away,
    ) as producer:
        with pytest.raises(StoreFailed) as failed:
            await producer.submit("t", LARGE)
    assert failed.value.is_passing
    assert await ledger.events() == []
