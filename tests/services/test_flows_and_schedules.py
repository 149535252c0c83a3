"""Flows and schedules through a real log: an owner, runtimes that read inboxes, and a take-over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ledger.client import Auditor, Context, JobFailure, Producer, Runtime
from ledger.domain.commands import EnableSchedule, PutSchedule, RunSchedule, Schedule
from ledger.domain.events import (
    Event,
    JobFailed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    ScheduleFired,
    SentBack,
    StepExpanded,
)
from ledger.domain.ids import QueueName
from tests.services.test_client_runtime import serving
from tests.support.ledger import Ledger, ledger_on

pytestmark = pytest.mark.services

QUEUE = "media"
PIPELINE: dict[str, Any] = {
    "retry": {"max_attempts": 2, "backoff_seconds": [0.1], "jitter": 0},
    "steps": [
        {"name": "plan", "progress": [0, 20]},
        {"name": "draw", "worker_type": "artist", "each": "/plan/pages", "progress": [20, 60]},
        {
            "name": "check",
            "progress": [60, 80],
            "on_fail": {"goto": "draw", "max": 3, "then": "degrade"},
        },
        {"name": "publish", "progress": [80, 100]},
    ],
}


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


def runtime_of(ledger: Ledger, name: str) -> Runtime:
    return Runtime(
        name, ledger.connection, queue=QUEUE, slots=4, beat_seconds=1.0, prefix=ledger.topics.prefix
    )


def generator(ledger: Ledger, *, good_from: int) -> Runtime:
    """Plans two pages; its check is content with the `good_from`th drawing of them."""
    runtime = runtime_of(ledger, "generator")
    checks = 0

    @runtime.job("picture_book")
    async def work(ctx: Context) -> object:
        nonlocal checks
        if ctx.step == "plan":
            return {"pages": ["sea", "moon"]}
        if ctx.step == "check":
            checks += 1
            if checks < good_from:
                raise JobFailure("QUALITY_TOO_LOW", f"check {checks}", retryable=False)
            return {"passed": checks}
        return {"published": ctx.inputs["check"]}

    return runtime


def artist(ledger: Ledger) -> Runtime:
    runtime = runtime_of(ledger, "artist")

    @runtime.job("artist")
    async def draw(ctx: Context) -> object:
        return f"a drawing of the {ctx.item}"

    return runtime


async def run(ledger: Ledger, good_from: int) -> tuple[list[Event], dict[str, Any]]:
    async with (
        ledger.owner(),
        Producer(ledger.connection, prefix=ledger.topics.prefix) as producer,
        serving(generator(ledger, good_from=good_from)),
        serving(artist(ledger)),
    ):
        await producer.put_template(QUEUE, "picture_book", PIPELINE)
        accepted = await producer.submit("picture_book", {}, queue=QUEUE)
        events = await ledger.until(lambda found: any(isinstance(e, JobSucceeded) for e in found))
        async with Auditor(ledger.connection, prefix=ledger.topics.prefix) as auditor:
            job = await auditor.job(accepted.job_id)
    assert job is not None
    return events, job


@pytest.mark.rule("S3.2", "S3.3", "S2.5")
async def test_a_pipeline_is_sent_back_until_its_check_is_content(ledger: Ledger) -> None:
    events, job = await run(ledger, good_from=2)
    assert job["status"] == "succeeded"
    assert job["result"]["output"] == {"published": {"passed": 2}}
    assert not job["degraded"]
    assert job["progress"]["percent"] == 100
    assert [s["name"] for s in job["steps"]] == ["plan", "draw[0]", "draw[1]", "check", "publish"]
    assert len([e for e in events if isinstance(e, SentBack)]) == 1
    assert len([e for e in events if isinstance(e, StepExpanded)]) == 2
    fences = [e.fence for e in events if isinstance(e, LeaseGranted)]
    assert fences == sorted(set(fences))


@pytest.mark.rule("S3.3")
async def test_a_check_that_is_never_content_degrades_the_run(ledger: Ledger) -> None:
    events, job = await run(ledger, good_from=99)
    assert len([e for e in events if isinstance(e, SentBack)]) == 3
    assert job["status"] == "succeeded"
    assert job["degraded"]
    assert job["result"]["output"] == {"published": None}
    assert next(s for s in job["steps"] if s["name"] == "check")["status"] == "failed"


@pytest.mark.rule("S2.6")
async def test_a_schedule_goes_on_with_another_owner_and_doubles_nothing(ledger: Ledger) -> None:
    queue = QueueName(QUEUE)
    async with ledger.owner(), ledger.client() as client:
        put = PutSchedule(queue, "minutely", Schedule("* * * * *", "report", enabled=False))
        assert (await client.ask(put)).outcome == "accepted"
        by_hand = await client.ask(RunSchedule(queue, "minutely"))
        assert by_hand.job_id is not None
        assert (await client.ask(EnableSchedule(queue, "minutely"))).outcome == "accepted"
    async with ledger.owner(), ledger.client() as client:
        again = await client.ask(EnableSchedule(queue, "minutely"))
        assert again.outcome == "accepted"
        events = await ledger.events()
    fired = [event for event in events if isinstance(event, ScheduleFired)]
    assert [event.job_id for event in fired if event.manual] == [by_hand.job_id]
    nominal = [event.nominal_at for event in fired if not event.manual]
    assert len(nominal) == len(set(nominal)) <= 1
    jobs = [event for event in events if isinstance(event, JobRequested)]
    assert [job.schedule for job in jobs] == ["minutely"] * len(fired)


@pytest.mark.rule("S2.5", "S1.9")
async def test_a_rerun_from_where_it_failed_keeps_what_had_succeeded(ledger: Ledger) -> None:
    begun: list[str] = []
    runtime = runtime_of(ledger, "fragile")

    @runtime.job("two_halves")
    async def half(ctx: Context) -> object:
        begun.append(ctx.step)
        if begun == ["first", "second"]:
            raise JobFailure("BROKEN", "once", retryable=False)
        return {"of": ctx.step, "with": ctx.inputs}

    async with (
        ledger.owner(),
        Producer(ledger.connection, prefix=ledger.topics.prefix) as producer,
        serving(runtime),
    ):
        steps = [{"name": "first"}, {"name": "second"}]
        await producer.put_template(QUEUE, "two_halves", {"steps": steps})
        failed = await producer.submit("two_halves", {}, queue=QUEUE)
        await ledger.until(lambda found: any(isinstance(e, JobFailed) for e in found))
        rerun = await producer.rerun(failed.job_id, from_failed=True)
        await ledger.until(lambda found: any(isinstance(e, JobSucceeded) for e in found))
        async with Auditor(ledger.connection, prefix=ledger.topics.prefix) as auditor:
            job = await auditor.job(rerun.job_id)
    assert begun == ["first", "second", "second"]
    assert job is not None
    assert job["retried_from"] == failed.job_id
    assert job["result"]["output"] == {
        "of": "second",
        "with": {"first": {"of": "first", "with": {}}},
    }
