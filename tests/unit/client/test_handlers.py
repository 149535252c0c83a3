from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator

import pytest
from msgspec import UNSET, Raw
from msgspec.structs import replace

from ledger.client.endings import HANDLER_ERROR
from ledger.client.handlers import Handler, Handlers
from ledger.client.held import AskToStop, Begin, Ending, Held, Stop, Why
from ledger.client.job_context import (
    AwaitCompletion,
    Context,
    GiveBack,
    JobCancelled,
    JobFailure,
    StoredOutput,
)
from ledger.client.json_values import NULL_HASH
from ledger.client.requests import PAYLOAD_TOO_LARGE
from ledger.client.words import INVALID_OUTPUT
from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import (
    ProgressSaid,
    ReportedCancel,
    ReportedFailure,
    ReportedRelease,
    ReportedResult,
    ReportedWait,
)
from ledger.domain.events import Ref
from ledger.domain.ids import INLINE_BYTES_MAX
from tests.unit.client.scripted_owner import INSTANT, World

PATIENCE_SECONDS = 10.0


class Desk:
    """Handlers, and what they say of each job."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers
        self.world = World(slots=100)
        self.said: asyncio.Queue[tuple[Held, Ending | ProgressSaid | None]] = asyncio.Queue()
        self._numbers = 0

    def give(self, count: int = 1) -> list[Held]:
        numbers = range(self._numbers + 1, self._numbers + count + 1)
        self._numbers += count
        helds = self.world.assign(*numbers)
        self.handlers.take([Begin(held) for held in helds])
        return helds

    async def word(self) -> Ending | ProgressSaid | None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self.said.get())[1]


class Desks:
    def __init__(self) -> None:
        self.open: list[Desk] = []
        self.failures: list[BaseException] = []

    def of(self, handler: Handler) -> Desk:
        loop = asyncio.get_running_loop()

        def say(held: Held, word: Ending | ProgressSaid | None) -> None:
            loop.call_soon_threadsafe(desk.said.put_nowait, (held, word))

        handlers = Handlers(
            {"echo": handler}, slots=100, loop=loop, say=say, failed=self.failures.append
        )
        desk = Desk(handlers)
        self.open.append(desk)
        return desk


@pytest.fixture
async def desks() -> AsyncIterator[Desks]:
    desks = Desks()
    yield desks
    for desk in desks.open:
        await desk.handlers.close()
    assert desks.failures == []


# --- What a handler says by how it ends -----------------------------------------------------------
async def output_of(desks: Desks, output: object) -> ReportedResult | ReportedFailure:
    async def handler(ctx: Context) -> object:
        return output

    desk = desks.of(handler)
    desk.give()
    word = await desk.word()
    assert isinstance(word, ReportedResult | ReportedFailure)
    return word


@pytest.mark.parametrize(
    "output", [None, 0, "text", {"a": [1, 2.5, None]}, {"b": 1, "a": 2}, [{"x": True}], "\\u0000"]
)
async def test_what_is_returned_is_the_output_with_its_hash(desks: Desks, output: object) -> None:
    word = await output_of(desks, output)
    assert isinstance(word, ReportedResult)
    assert word.output_hash == sha256_hex(output)


async def test_a_stored_output_is_reported_by_its_reference(desks: Desks) -> None:
    ref = Ref("queues/q/jobs/q.1/output/q.1~1-output.bin", 3, "ab" * 32)
    word = await output_of(desks, StoredOutput(ref))
    assert isinstance(word, ReportedResult)
    assert (word.output, word.output_ref, word.output_hash) == (UNSET, ref, None)


async def test_nothing_returned_is_null(desks: Desks) -> None:
    word = await output_of(desks, None)
    assert isinstance(word, ReportedResult)
    assert (word.output, word.output_hash) == (Raw(b"null"), NULL_HASH)


@pytest.mark.parametrize(
    "output",
    [float("nan"), {"a": float("inf")}, {1: 2}, Ellipsis, 2**60, "\0", "\ud800", {"a": [b"x"]}],
    ids=repr,
)
async def test_an_output_that_is_no_strict_json_fails_for_good(
    desks: Desks, output: object
) -> None:
    word = await output_of(desks, output)
    assert isinstance(word, ReportedFailure)
    assert (word.code, word.retryable) == (INVALID_OUTPUT, False)


@pytest.mark.rule("S2.1")
@pytest.mark.parametrize("large", ["", "x" * INLINE_BYTES_MAX])
async def test_an_output_that_does_not_meet_its_schema_fails_for_good(
    desks: Desks, large: str
) -> None:
    async def handler(ctx: Context) -> object:
        return {"n": 1, "text": large}

    desk = desks.of(handler)
    [held] = desk.world.assign(1)
    schema = Raw(b'{"properties":{"n":{"type":"string"}}}')
    held.job = replace(held.job, output_schema=schema)
    desk.handlers.take([Begin(held)])
    word = await desk.word()
    assert isinstance(word, ReportedFailure)
    assert (word.code, word.retryable) == (INVALID_OUTPUT, False)
    assert "/output/n" in word.message


async def test_an_output_beyond_64_kib_fails_for_good(desks: Desks) -> None:
    assert isinstance(await output_of(desks, "x" * (INLINE_BYTES_MAX - 2)), ReportedResult)
    word = await output_of(desks, "x" * (INLINE_BYTES_MAX - 1))
    assert isinstance(word, ReportedFailure)
    assert (word.code, word.retryable) == (PAYLOAD_TOO_LARGE, False)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            JobFailure("MODEL_TIMEOUT", "slow\0", retry_after=2.5, details={"n": 1}),
            ("MODEL_TIMEOUT", "slow\ufffd", None, 2.5, Raw(b'{"n":1}')),
        ),
        (JobFailure("X", retryable=False), ("X", "", False, None, UNSET)),
        (
            JobFailure("X", details={"n": "x" * 9_000}),
            ("X", "", None, None, Raw(b'{"omitted":"9008 bytes; 8192 fit"}')),
        ),
        (ValueError("no"), (HANDLER_ERROR, "ValueError: no", True, None, UNSET)),
        (JobCancelled(), (HANDLER_ERROR, "JobCancelled: ", True, None, UNSET)),
        (
            ValueError("\ud800" + "x" * 3000),
            (HANDLER_ERROR, "ValueError: ?" + "x" * 2035, True, None, UNSET),
        ),
    ],
    ids=["retry after", "fatal", "large details", "a bug", "no cancel was asked", "a bad text"],
)
async def test_what_is_raised_is_the_failure(
    desks: Desks, is_async: bool, raised: Exception, said: tuple[object, ...]
) -> None:
    async def in_loop(ctx: Context) -> None:
        raise raised

    def in_thread(ctx: Context) -> None:
        raise raised

    desk = desks.of(in_loop if is_async else in_thread)
    desk.give()
    word = await desk.word()
    assert isinstance(word, ReportedFailure)
    assert (
        word.code,
        word.message,
        word.retryable,
        word.retry_after_seconds,
        word.details,
    ) == said


async def test_a_job_can_be_given_back_or_wait_for_a_completion(desks: Desks) -> None:
    async def handler(ctx: Context) -> None:
        if ctx.job_id.endswith("1"):
            raise GiveBack("not now")
        raise AwaitCompletion(30)

    desk = desks.of(handler)
    desk.give(2)
    first, second = await desk.word(), await desk.word()
    assert isinstance(first, ReportedRelease)
    assert first.reason == "not now"
    assert isinstance(second, ReportedWait)
    assert second.timeout_seconds == 30


async def test_a_failure_without_a_proper_code_is_a_bug_of_the_handler() -> None:
    with pytest.raises(ValueError, match="1 to 100"):
        JobFailure("")


# --- What a handler is given ----------------------------------------------------------------------
async def test_the_context_knows_its_job(desks: Desks) -> None:
    seen: list[Context] = []

    async def handler(ctx: Context) -> None:
        seen.append(ctx)
        ctx.progress(12, "reading", "page\0 1")

    desk = desks.of(handler)
    (held,) = desk.give()
    assert await desk.word() == ProgressSaid(12.0, "reading", "page\ufffd 1")
    await desk.word()
    (ctx,) = seen
    assert (ctx.type, ctx.queue, ctx.payload, ctx.labels) == ("echo", "q", {"n": 1}, {})
    assert (ctx.attempt, ctx.fence, ctx.step) == (1, 1, "main")
    assert ctx.idempotency_key == f"{held.job_id}:1"
    assert ctx.inputs == {}
    assert (ctx.max_attempts, ctx.timeout_seconds) == (4, 120.0)
    assert ctx.job == {
        "id": held.job_id,
        "type": "echo",
        "queue": "q",
        "status": "leased",
        "payload": {"n": 1},
        "payload_ref": None,
        "labels": {},
        "scope": None,
        "priority": 5,
        "timeout_seconds": 120.0,
        "lease_seconds": 60.0,
        "attempt": 1,
        "max_attempts": 4,
        "lease": {
            "runtime_id": "r1",
            "step": "main",
            "fence": 1,
            "since": INSTANT,
            "expires_at": INSTANT,
        },
        "retried_from": None,
        "schedule": None,
        "created_at": INSTANT,
    }
    assert not ctx.cancelled
    with pytest.raises(ValueError, match="percentage"):
        ctx.progress(101)


async def test_a_handler_is_given_the_outputs_of_the_steps_that_its_own_needs(
    desks: Desks,
) -> None:
    async def handler(ctx: Context) -> object:
        return ctx.inputs["outline"]["sections"]

    desk = desks.of(handler)
    desk.world.inputs = {"outline": Raw(b'{"sections":[1,2]}')}
    desk.give()
    word = await desk.word()
    assert isinstance(word, ReportedResult)
    assert word.output == Raw(b"[1,2]")


async def test_jobs_run_side_by_side_in_loop_and_threads(desks: Desks) -> None:
    waiting = asyncio.Barrier(20)
    together = threading.Barrier(20, timeout=PATIENCE_SECONDS)

    async def in_loop(ctx: Context) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waiting.wait()

    def in_thread(ctx: Context) -> None:
        together.wait()

    for handler in (in_loop, in_thread):
        desk = desks.of(handler)
        desk.give(20)
        for _ in range(20):
            assert isinstance(await desk.word(), ReportedResult)


async def test_a_job_leaves_nothing_behind_for_the_next(desks: Desks) -> None:
    said: contextvars.ContextVar[str] = contextvars.ContextVar("said", default="nothing")

    async def handler(ctx: Context) -> str:
        before = said.get()
        said.set(ctx.job_id)
        return before

    desk = desks.of(handler)
    desk.give(5)
    desk.give(5)
    for _ in range(10):
        word = await desk.word()
        assert isinstance(word, ReportedResult)
        assert word.output == Raw(b'"nothing"')


async def test_a_handler_that_cancels_itself_harms_no_other(desks: Desks) -> None:
    async def handler(ctx: Context) -> int:
        task = asyncio.current_task()
        assert task is not None
        if ctx.job_id.endswith("1"):
            task.cancel()
            return 1
        if ctx.job_id.endswith("2"):
            raise asyncio.CancelledError
        return 3

    desk = desks.of(handler)
    desk.give(3)
    words = [await desk.word() for _ in range(3)]
    assert [type(word) for word in words] == [ReportedResult, ReportedFailure, ReportedResult]


# --- Being told to stop ---------------------------------------------------------------------------
async def test_a_cancelled_job_may_stop_by_itself(desks: Desks) -> None:
    began = asyncio.Event()

    async def handler(ctx: Context) -> None:
        began.set()
        assert await ctx.cancelled == "why"
        assert ctx.cancelled
        assert 0 < ctx.cancelled.seconds_left < float("inf")
        raise JobCancelled

    desk = desks.of(handler)
    (held,) = desk.give()
    await began.wait()
    desk.handlers.take([AskToStop(held, "why", 10_000_000_000.0)])
    assert await desk.word() == ReportedCancel(held.job_id, held.fence)


async def test_a_result_after_a_cancel_is_a_result(desks: Desks) -> None:
    async def handler(ctx: Context) -> int:
        await ctx.cancelled
        return 1

    desk = desks.of(handler)
    (held,) = desk.give()
    desk.handlers.take([AskToStop(held, "why", 0.0)])
    assert isinstance(await desk.word(), ReportedResult)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (Why.LOST, type(None)),
        (Why.RAN_OUT, ReportedRelease),
        (Why.GRACE_ENDED, ReportedCancel),
        (Why.LEAVING, ReportedRelease),
    ],
)
async def test_an_async_handler_is_cancelled(desks: Desks, why: Why, said: type) -> None:
    began = asyncio.Event()
    lost = []

    async def handler(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            lost.append(ctx.cancelled.is_lost)

    desk = desks.of(handler)
    (held,) = desk.give()
    await began.wait()
    desk.handlers.take([Stop(held, why)])
    assert type(await desk.word()) is said
    assert lost == [why in (Why.LOST, Why.RAN_OUT)]
    desk.give()  # The same task serves the next.
    began.clear()
    await began.wait()


async def test_a_job_told_to_stop_before_its_turn_never_runs(desks: Desks) -> None:
    async def handler(ctx: Context) -> None:
        raise AssertionError

    desk = desks.of(handler)
    (held,) = desk.world.assign(1)
    desk.handlers.take([Begin(held), Stop(held, Why.LOST)])
    assert await desk.word() is None


async def test_a_handler_in_a_thread_is_only_told(desks: Desks) -> None:
    began = threading.Event()

    def handler(ctx: Context) -> str:
        began.set()
        assert not ctx.cancelled.wait(0)
        assert ctx.cancelled.wait(PATIENCE_SECONDS)
        return ctx.cancelled.reason

    desk = desks.of(handler)
    (held,) = desk.give()
    await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
    desk.handlers.take([Stop(held, Why.RAN_OUT)])
    word = await desk.word()
    assert isinstance(word, ReportedResult)


async def test_idle_says_whether_all_have_come_back(desks: Desks) -> None:
    go = asyncio.Event()

    async def handler(ctx: Context) -> None:
        await go.wait()

    desk = desks.of(handler)
    assert await desk.handlers.idle(0)
    desk.give()
    assert not await desk.handlers.idle(0)
    go.set()
    assert await desk.handlers.idle(PATIENCE_SECONDS)
