"""The runtime against a real owner: jobs run once, leases hold, and ends are told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ledger.client import (
    Auditor,
    AwaitCompletion,
    Bounds,
    Context,
    GiveBack,
    JobCancelled,
    JobFailure,
    Producer,
    Runtime,
)
from ledger.client.requests import RetryFields
from ledger.domain.commands import Asked, Beat, Report, ReportedResult
from ledger.domain.events import (
    AttemptExpired,
    AttemptFailed,
    AttemptStarted,
    Event,
    JobFailed,
    JobProgressed,
    JobSucceeded,
    LeaseGranted,
    LeaseReleased,
    LeasesExtended,
    RuntimeEnded,
    RuntimeStarted,
    WaitStarted,
)
from ledger.domain.events import (
    JobCancelled as CancelledEvent,
)
from ledger.embedded import Kafka
from ledger.log.command_codec import command_from
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from tests.support.ledger import Ledger, ledger_on

pytestmark = pytest.mark.services

PATIENCE_SECONDS = 30.0
QUEUE = "q"


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


@pytest.fixture
async def producer(ledger: Ledger) -> AsyncIterator[Producer]:
    async with producer_of(ledger) as producer:
        yield producer


def producer_of(ledger: Ledger) -> Producer:
    return Producer(ledger.connection, prefix=ledger.topics.prefix, wait_seconds=PATIENCE_SECONDS)


def runtime_of(ledger: Ledger, name: str = "r1", **options: Any) -> Runtime:
    options = {"queue": QUEUE, "beat_seconds": 1.0, **options}
    return Runtime(name, ledger.connection, prefix=ledger.topics.prefix, **options)


@asynccontextmanager
async def serving(runtime: Runtime, *, ready: bool = True) -> AsyncIterator[Runtime]:
    """Until the end of the block, then it leaves; its failure fails the test."""
    running = asyncio.create_task(runtime.serve())
    await asyncio.sleep(0)
    try:
        if ready:
            await runtime.ready(PATIENCE_SECONDS)
        yield runtime
    finally:
        runtime.stop()
        await running


async def ended(ledger: Ledger, count: int) -> list[Event]:
    kinds = (JobSucceeded, JobFailed, CancelledEvent)
    return await ledger.until(lambda events: sum(isinstance(e, kinds) for e in events) == count)


def of(kind: type[Event], events: Sequence[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def job_of(ledger: Ledger, job_id: str) -> dict[str, Any]:
    async with Auditor(ledger.connection, prefix=ledger.topics.prefix) as auditor:
        job = await auditor.job(job_id)
    assert job is not None
    return job


# --- Jobs run -------------------------------------------------------------------------------------
async def test_types_come_and_go_while_it_serves(ledger: Ledger, producer: Producer) -> None:
    runtime = runtime_of(ledger)
    ran: list[str] = []

    async def handler(ctx: Context) -> None:
        ran.append(ctx.type)

    runtime.job("old")(handler)
    async with ledger.owner(), serving(runtime):
        await producer.submit("new", queue=QUEUE)
        await producer.submit("old", queue=QUEUE)
        await ended(ledger, 1)
        assert ran == ["old"]
        runtime.job("new")(handler)
        await ended(ledger, 2)
        runtime.forget("old")
        offered = [("old",), ("new", "old"), ("new",)]
        await ledger.until(
            lambda events: [started.types for started in of(RuntimeStarted, events)] == offered
        )
        await producer.submit("old", queue=QUEUE)
        await producer.submit("new", queue=QUEUE)
        await ended(ledger, 3)
    assert ran == ["old", "new", "new"]


async def test_handlers_in_loop_and_threads_run_their_jobs(
    ledger: Ledger, producer: Producer
) -> None:
    runtime = runtime_of(ledger)

    @runtime.job("in_loop")
    async def in_loop(ctx: Context) -> object:
        return {"twice": 2 * ctx.payload["n"], "attempt": ctx.attempt, "fence": ctx.fence}

    @runtime.job("in_thread")
    def in_thread(ctx: Context) -> object:
        return threading.current_thread().name

    async with ledger.owner(), serving(runtime):
        first = await producer.submit("in_loop", {"n": 21}, queue=QUEUE)
        second = await producer.submit("in_thread", queue=QUEUE)
        events = await ended(ledger, 2)
    assert [type(event).__name__ for event in events if getattr(event, "job_id", 0)].count(
        "AttemptStarted"
    ) == 2
    done = await job_of(ledger, first.job_id)
    assert done["result"]["output"] == {"twice": 42, "attempt": 1, "fence": 1}
    assert done["version"] == 4
    assert (await job_of(ledger, second.job_id))["result"]["output"].startswith("ledger-job")


async def test_a_burst_runs_once_each_and_is_reported_in_few_records(
    ledger: Ledger, producer: Producer
) -> None:
    count = 2_000
    runtime = runtime_of(ledger, slots=200)
    runs: Counter[int] = Counter()

    @runtime.job("echo")
    async def echo(ctx: Context) -> None:
        runs[ctx.payload["n"]] += 1

    async with ledger.owner():
        await producer.submit_many(
            [{"type": "echo", "queue": QUEUE, "payload": {"n": n}} for n in range(count)]
        )
        async with serving(runtime, ready=False):
            events = await ended(ledger, count)
    assert runs == Counter(range(count))
    assert len(of(LeaseGranted, events)) == len(of(JobSucceeded, events)) == count
    said = await commands_of(ledger)
    words = [word for command in said if isinstance(command, Report) for word in command.reports]
    # On a busy machine some run long enough for a start to be said.
    assert len([word for word in words if isinstance(word, ReportedResult)]) == count
    assert len(said) < count / 10


async def commands_of(ledger: Ledger) -> list[Beat | Report]:
    """All that runtimes said."""
    topic = ledger.topics.commands
    said: list[Beat | Report] = []
    intake = Intake(ledger.connection, topic, isolation="read_uncommitted", buffered_max=100_000)
    await intake.start()
    async with Offsets(ledger.connection) as offsets, asyncio.timeout(PATIENCE_SECONDS):
        for partition, end in (await offsets.ends(topic, range(ledger.partitions))).items():
            intake.follow(partition, 0)
            while intake.position(partition) < end:
                await asyncio.sleep(0.01)  # Between two looks.
                for record in intake.take(partition, 100_000):
                    found = command_from(record)
                    if isinstance(found, Asked) and isinstance(found.command, Beat | Report):
                        said.append(found.command)
    await intake.close()
    return said


async def test_progress_is_on_record(ledger: Ledger, producer: Producer) -> None:
    runtime = runtime_of(ledger)
    go = asyncio.Event()

    @runtime.job("slow")
    async def slow(ctx: Context) -> None:
        ctx.progress(30, "reading", "page 3")
        await go.wait()

    async with ledger.owner(), serving(runtime):
        await producer.submit("slow", queue=QUEUE)
        (said,) = of(JobProgressed, await ledger.until(lambda events: _has(JobProgressed, events)))
        go.set()
        await ended(ledger, 1)
    assert (said.percent, said.phase, said.message) == (30, "reading", "page 3")


def _has(kind: type[Event], events: Sequence[Event]) -> bool:
    return bool(of(kind, events))


async def test_failures_are_tried_again_or_not_as_the_handler_says(
    ledger: Ledger, producer: Producer
) -> None:
    runtime = runtime_of(ledger)
    retry: RetryFields = {"max_attempts": 2, "backoff_seconds": [0], "jitter": 0.0}

    @runtime.job("again")
    async def again(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise JobFailure("MODEL_TIMEOUT", "slow", details={"waited": 3})
        return ctx.attempt

    @runtime.job("never")
    async def never(ctx: Context) -> None:
        raise JobFailure("INVALID_SNAPSHOT", retryable=False)

    @runtime.job("bug")
    async def bug(ctx: Context) -> None:
        raise KeyError("missing")

    @runtime.job("back")
    async def back(ctx: Context) -> int:
        if ctx.fence == 1:
            raise GiveBack("not here")
        return ctx.attempt

    async with ledger.owner(), serving(runtime):
        jobs = {
            kind: (await producer.submit(kind, queue=QUEUE, retry=retry)).job_id
            for kind in ("again", "never", "bug", "back")
        }
        events = await ended(ledger, 4)
    failed = [(event.code, event.attempt, event.retryable) for event in of(AttemptFailed, events)]
    assert sorted(failed) == [
        ("HANDLER_ERROR", 1, True),
        ("HANDLER_ERROR", 2, True),
        ("INVALID_SNAPSHOT", 1, False),
        ("MODEL_TIMEOUT", 1, True),
    ]
    assert (await job_of(ledger, jobs["again"]))["result"]["output"] == 2
    assert (await job_of(ledger, jobs["bug"]))["error"]["message"] == "KeyError: 'missing'"
    back_again = await job_of(ledger, jobs["back"])
    assert (back_again["result"]["output"], back_again["attempt"]) == (1, 1)
    assert [event.reason for event in of(LeaseReleased, events)] == ["not here"]


async def test_a_job_can_wait_for_a_completion_from_outside(
    ledger: Ledger, producer: Producer
) -> None:
    runtime = runtime_of(ledger, slots=1)

    @runtime.job("ask")
    async def ask(ctx: Context) -> None:
        raise AwaitCompletion(60)

    async with ledger.owner(), serving(runtime):
        await producer.submit("ask", queue=QUEUE)
        await producer.submit("ask", queue=QUEUE)
        await ledger.until(lambda events: len(of(WaitStarted, events)) == 2)


# --- Leases ---------------------------------------------------------------------------------------
async def test_a_handler_that_blocks_the_loop_keeps_its_lease(
    ledger: Ledger, producer: Producer
) -> None:
    runtime = runtime_of(ledger)

    @runtime.job("busy")
    async def busy(ctx: Context) -> int:
        time.sleep(3.5)  # noqa: ASYNC251 (what is tested is a handler that does this)
        return ctx.attempt

    async with owner_in_thread(ledger), serving(runtime):
        job = await producer.submit("busy", queue=QUEUE, lease_seconds=1)
        events = await ended(ledger, 1)
    assert of(AttemptExpired, events) == []
    assert len(of(LeasesExtended, events)) >= 3
    assert (await job_of(ledger, job.job_id))["result"]["output"] == 1


async def test_a_runtime_that_is_cut_off_stops_its_work_in_time(
    ledger: Ledger, producer: Producer
) -> None:
    runtime = runtime_of(ledger, drain_seconds=0.1)
    began, stopped = asyncio.Event(), asyncio.Event()
    seen: list[tuple[bool, str]] = []

    @runtime.job("long")
    async def long(ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append((ctx.cancelled.is_lost, ctx.cancelled.reason))
            stopped.set()

    async with AsyncExitStack() as stack:
        async with ledger.owner():
            serves = await stack.enter_async_context(serving(runtime))
            await producer.submit("long", queue=QUEUE, lease_seconds=1)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await began.wait()
        # Nobody extends the lease any more.
        async with asyncio.timeout(PATIENCE_SECONDS):
            await stopped.wait()
        assert seen == [(True, "no extension of the lease came in time")]
        async with ledger.owner():
            events = await ledger.until(lambda events: len(of(LeaseGranted, events)) >= 2)
            serves.stop()
            await ledger.until(lambda events: _has(RuntimeEnded, events))
    assert of(AttemptExpired, events) == []
    assert len(of(LeaseReleased, events)) == 1


async def test_a_killed_runtimes_job_goes_to_another(
    ledger: Ledger, producer: Producer, tmp_path: Path
) -> None:
    async with ledger.owner(), program(ledger, tmp_path, "doomed") as doomed:
        job = await producer.submit("sleep", {"seconds": 60}, queue=QUEUE, lease_seconds=1)
        await ledger.until(lambda events: _has(AttemptStarted, events))
        doomed.send_signal(signal.SIGKILL)
        runtime = runtime_of(ledger, "heir")

        @runtime.job("sleep")
        async def sleep(ctx: Context) -> int:
            return ctx.attempt

        async with serving(runtime):
            events = await ended(ledger, 1)
            await ledger.until(lambda events: _has(RuntimeEnded, events))
    assert [event.code for event in of(AttemptExpired, events)] == ["LEASE_EXPIRED"]
    assert (await job_of(ledger, job.job_id))["result"]["output"] == 2


async def test_a_frozen_runtimes_late_result_counts_for_nothing(
    ledger: Ledger, producer: Producer, tmp_path: Path
) -> None:
    async with ledger.owner(), program(ledger, tmp_path, "frozen") as frozen:
        job = await producer.submit("sleep", {"seconds": 1.5}, queue=QUEUE, lease_seconds=1)
        await ledger.until(lambda events: _has(AttemptStarted, events))
        frozen.send_signal(signal.SIGSTOP)
        await ledger.until(lambda events: _has(AttemptExpired, events))
        runtime = runtime_of(ledger, "heir")

        @runtime.job("sleep")
        async def sleep(ctx: Context) -> str:
            return "heir"

        async with serving(runtime):
            await ended(ledger, 1)
            frozen.send_signal(signal.SIGCONT)
            # It offers its slots again and does further jobs.
            runtime.stop()
        await producer.submit("sleep", {"seconds": 0}, queue=QUEUE)
        await ended(ledger, 2)
    assert (await job_of(ledger, job.job_id))["result"]["output"] == "heir"


@pytest.mark.parametrize(
    "point", ["runtime.before_call", "runtime.after_call", "runtime.after_report"]
)
async def test_wherever_a_runtime_dies_its_job_is_done(
    ledger: Ledger, producer: Producer, tmp_path: Path, point: str
) -> None:
    async with (
        ledger.owner(),
        program(ledger, tmp_path, "doomed", LEDGER_CRASH_AT=f"{point}:1") as doomed,
    ):
        await producer.submit("sleep", {"seconds": 0}, queue=QUEUE, lease_seconds=1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await doomed.wait() == -signal.SIGKILL
        async with program(ledger, tmp_path, "heir"):
            events = await ended(ledger, 1)
            await ledger.until(lambda events: _has(RuntimeEnded, events))
    assert len(of(JobSucceeded, events)) == 1
    assert len(of(LeaseGranted, events)) == (1 if point == "runtime.after_report" else 2)


# --- Cancel ---------------------------------------------------------------------------------------
async def test_a_cancelled_job_stops_by_itself_or_is_stopped(
    ledger: Ledger, producer: Producer
) -> None:
    runtime = runtime_of(ledger, beat_seconds=0.2)

    @runtime.job("polite")
    async def polite(ctx: Context) -> None:
        assert await ctx.cancelled == "enough"
        raise JobCancelled

    @runtime.job("stubborn")
    async def stubborn(ctx: Context) -> None:
        await asyncio.Event().wait()

    @runtime.job("thread")
    def thread(ctx: Context) -> None:
        assert ctx.cancelled.wait(PATIENCE_SECONDS)
        raise JobCancelled

    async with ledger.owner(), serving(runtime):
        await producer.put_template(QUEUE, "stubborn", {"cancel": {"grace_seconds": 1}})
        jobs = [
            (await producer.submit(kind, queue=QUEUE)).job_id
            for kind in ("polite", "stubborn", "thread")
        ]
        await ledger.until(lambda events: len(of(AttemptStarted, events)) == 3)
        for job_id in jobs:
            await producer.cancel(job_id, "enough")
        events = await ended(ledger, 3)
    assert [event.how for event in of(CancelledEvent, events)] == ["acknowledged"] * 3


# --- Leaving --------------------------------------------------------------------------------------
async def test_a_leaving_runtime_finishes_or_gives_back(ledger: Ledger, producer: Producer) -> None:
    runtime = runtime_of(ledger, drain_seconds=1.0)
    go = asyncio.Event()

    @runtime.job("quick")
    async def quick(ctx: Context) -> None:
        await go.wait()

    @runtime.job("slow")
    async def slow(ctx: Context) -> None:
        await asyncio.Event().wait()

    @runtime.job("deaf")
    def deaf(ctx: Context) -> None:
        time.sleep(60)

    async with ledger.owner():
        async with serving(runtime):
            for kind in ("quick", "slow", "deaf"):
                await producer.submit(kind, queue=QUEUE)
            await ledger.until(lambda events: len(of(AttemptStarted, events)) == 3)
            runtime.stop()
            go.set()
        events = await ledger.until(lambda events: _has(RuntimeEnded, events))
    assert len(of(JobSucceeded, events)) == 1
    assert [event.spent for event in of(LeaseReleased, events)] == [False, False]
    assert [event.why for event in of(RuntimeEnded, events)] == ["left"]
    assert events[-1] == of(RuntimeEnded, events)[0]


async def test_sigterm_drains_a_process(ledger: Ledger, producer: Producer, tmp_path: Path) -> None:
    async with ledger.owner(), program(ledger, tmp_path, "r1") as process:
        await producer.submit("sleep", {"seconds": 1}, queue=QUEUE)
        await ledger.until(lambda events: _has(AttemptStarted, events))
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await process.wait() == 0
        events = await ended(ledger, 1)
        assert len(of(JobSucceeded, events)) == 1
        await ledger.until(lambda events: _has(RuntimeEnded, events))


async def test_a_runtime_without_a_ledger_can_be_stopped(bootstrap: str, topic_prefix: str) -> None:
    runtime = Runtime("r1", bootstrap, prefix=topic_prefix)
    runtime.job("echo")(lambda ctx: None)
    with capture_logs() as logs:
        serving = asyncio.create_task(runtime.serve())
        await logged(logs, "runtime.disconnected")
        runtime.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await serving
    assert "ledger topics apply" in str(logs)


async def test_a_runtime_can_be_stopped_before_it_has_begun(
    bootstrap: str, topic_prefix: str
) -> None:
    runtime = Runtime("r1", bootstrap, prefix=topic_prefix)
    runtime.job("echo")(lambda ctx: None)
    runtime.stop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await runtime.serve()


async def logged(logs: Sequence[Mapping[str, Any]], event: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if any(line["event"] == event for line in logs):
                return
            await asyncio.sleep(0.01)  # Between two looks.


async def test_two_runtimes_of_one_id_are_told_apart(ledger: Ledger, producer: Producer) -> None:
    first, second = (runtime_of(ledger, "twin", beat_seconds=0.2) for _ in range(2))
    ran = []
    for name, runtime in (("first", first), ("second", second)):
        runtime.job("echo")(lambda ctx, name=name: ran.append(name))
    with capture_logs() as logs:
        async with ledger.owner(), serving(first), serving(second):
            await producer.submit("echo", queue=QUEUE)
            await ended(ledger, 1)
            await logged(logs, "runtime.id_in_use")
    assert ran == ["second"]


async def test_a_runtime_that_is_cancelled_leaves_too(ledger: Ledger, producer: Producer) -> None:
    runtime = runtime_of(ledger)
    began = asyncio.Event()

    @runtime.job("long")
    async def long(ctx: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    async with ledger.owner():
        serving = asyncio.create_task(runtime.serve())
        await producer.submit("long", queue=QUEUE)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await began.wait()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
        events = await ledger.until(lambda events: _has(RuntimeEnded, events))
    assert len(of(LeaseReleased, events)) == 1


# --- Owners, queues, brokers ----------------------------------------------------------------------
async def test_a_new_owner_is_found_without_a_restart(ledger: Ledger, producer: Producer) -> None:
    runtime = runtime_of(ledger)

    @runtime.job("echo")
    async def echo(ctx: Context) -> None:
        pass

    async with serving(runtime, ready=False):
        for count in (1, 2, 3):
            async with ledger.owner():
                await producer.submit("echo", queue=QUEUE)
                await ended(ledger, count)


async def test_queues_share_the_slots_of_a_runtime(ledger: Ledger, producer: Producer) -> None:
    queues = ["a", "b", "c"]
    runtime = runtime_of(ledger, queue=queues, slots=2, beat_seconds=0.3)
    running, most = 0, 0

    @runtime.job("echo")
    async def echo(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)  # The work.
        running -= 1

    async with ledger.owner(), serving(runtime):
        await producer.submit_many([{"type": "echo", "queue": q} for q in queues for _ in range(8)])
        await ended(ledger, 24)
    assert most == 2


async def test_a_broker_that_was_away_is_found_again(server_directory: Path) -> None:
    bounds = Bounds(connect_seconds=3, request_seconds=2, append_seconds=2, offsets_seconds=2)
    with Kafka(server_directory, fast_start=True) as kafka:
        async with (
            ledger_on(kafka.bootstrap, "t.", bounds=bounds) as ledger,
            producer_of(ledger) as producer,
        ):
            runtime = runtime_of(ledger)

            @runtime.job("echo")
            async def echo(ctx: Context) -> int:
                return ctx.attempt

            async with serving(runtime, ready=False):
                async with ledger.owner():
                    await producer.submit("echo", queue=QUEUE)
                    await ended(ledger, 1)
                await asyncio.to_thread(kafka.kill)
                await asyncio.to_thread(kafka.restart)
                async with ledger.owner(), producer_of(ledger) as again:
                    await again.submit("echo", queue=QUEUE)
                    await ended(ledger, 2)


async def test_what_cannot_be_right_is_said_at_once(bootstrap: str) -> None:
    with pytest.raises(ValueError, match="handler"):
        await Runtime("r1", bootstrap).serve()
    wrongs: list[dict[str, Any]] = [
        {"id": ""},
        {"queue": "UPPER"},
        {"queue": []},
        {"slots": 0},
        {"slots": 10_000},
        {"beat_seconds": 0.0},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"."):
            Runtime(**{"id": "r1", "bootstrap": bootstrap, **wrong})
    runtime = Runtime("r1", bootstrap)
    runtime.job("echo")(lambda ctx: None)
    with pytest.raises(ValueError, match="already"):
        runtime.job("echo")(lambda ctx: None)


@asynccontextmanager
async def owner_in_thread(ledger: Ledger) -> AsyncIterator[None]:
    """Where the test itself blocks its loop."""
    loop = asyncio.get_running_loop()
    there, stop = asyncio.Event(), threading.Event()

    async def own() -> None:
        async with ledger.owner():
            loop.call_soon_threadsafe(there.set)
            await asyncio.to_thread(stop.wait)

    owning = asyncio.create_task(asyncio.to_thread(asyncio.run, own()))
    await there.wait()
    try:
        yield
    finally:
        stop.set()
        await owning


# --- A runtime in a process of its own ------------------------------------------------------------
PROGRAM = """
import asyncio, sys
from ledger.client import Context, Runtime
name, bootstrap, prefix, ready = sys.argv[1:]
runtime = Runtime(name, bootstrap, queue="q", prefix=prefix, beat_seconds=0.5)

@runtime.job("sleep")
async def sleep(ctx: Context) -> str:
    await asyncio.sleep(ctx.payload["seconds"])
    return name

runtime.run()
"""


@asynccontextmanager
async def program(
    ledger: Ledger, directory: Path, name: str, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    bootstrap = ledger.connection.bootstrap
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        name,
        bootstrap,
        ledger.topics.prefix,
        str(directory),
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
