"""The JSON that a job looks like."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ledger.domain.events import JobCollected
from ledger.domain.evolve import begin
from ledger.domain.failures import START_TIMEOUT
from ledger.domain.ids import micros
from ledger.domain.job_view import job_json, job_view
from tests.support.builders import (
    BOB,
    JOB,
    cancel_asked,
    cancelled,
    evenly,
    failed,
    gave_up,
    instant,
    job_expired,
    job_failed,
    leased,
    progressed,
    requested,
    retried,
    started,
    succeeded,
)
from tests.support.clock import NOON, after
from tests.support.given import at_its_time, given

READ = (
    "id type queue status payload payload_ref labels scope priority idempotency_key run_at"
    " delay_seconds start_timeout_seconds timeout_seconds lease_seconds retry result_ttl_seconds"
    " failed_ttl_seconds template_version attempt max_attempts progress steps lease cancel result"
    " degraded error retried_from replaced_by schedule created_at ready_at started_at finished_at"
    " collected_at result_expires_at version"
)


def seen(*facts: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job_json(given(*facts).job))
    return found


@pytest.mark.rule("S1.3")
def test_a_job_shows_every_field_of_the_contract() -> None:
    assert " ".join(seen(requested())) == READ


@pytest.mark.rule("S1.3")
def test_a_new_job() -> None:
    job = seen(requested(payload=Raw(b'{"a": 1}'), labels={"user": "1"}, scope="s"))
    assert (job["id"], job["type"], job["queue"], job["status"]) == (
        JOB,
        "report",
        "default",
        "pending",
    )
    assert (job["payload"], job["labels"], job["scope"]) == ({"a": 1}, {"user": "1"}, "s")
    assert (job["timeout_seconds"], job["lease_seconds"], job["priority"]) == (120, 60, 5)
    assert job["retry"] == {
        "max_attempts": 4,
        "backoff_seconds": [1, 5, 30],
        "jitter": 0,
        "position": "keep",
        "retryable_codes": [],
        "fatal_codes": [],
    }
    assert (job["attempt"], job["max_attempts"], job["version"]) == (0, 4, 1)
    assert job["created_at"] == job["ready_at"] == "2026-03-01T12:00:00.000Z"
    absent = ("run_at", "delay_seconds", "lease", "cancel", "result", "error", "progress")
    assert [job[name] for name in absent] == [None] * len(absent)
    [step] = job["steps"]
    assert step == {
        "name": "main",
        "status": "pending",
        "worker_type": "report",
        "attempt": 0,
        "percent": None,
        "runtime_id": None,
        "started_at": None,
        "finished_at": None,
        "error": None,
        "lease": None,
    }


def test_a_delayed_job_shows_when_it_may_begin() -> None:
    job = seen(requested(delay=90))
    assert job["run_at"] == job["ready_at"] == "2026-03-01T12:01:30.000Z"
    assert (job["delay_seconds"], job["created_at"]) == (90, "2026-03-01T12:00:00.000Z")


@pytest.mark.rule("S1.4")
def test_a_held_job_shows_its_lease() -> None:
    job = seen(requested(), after(1), leased(BOB))
    assert job["lease"] == {
        "runtime_id": "bob",
        "step": "main",
        "fence": 1,
        "since": "2026-03-01T12:00:01.000Z",
        "expires_at": "2026-03-01T12:01:01.000Z",
    }
    assert (job["status"], job["attempt"], job["steps"][0]["runtime_id"]) == ("leased", 1, "bob")


def test_a_waiting_job_shows_none() -> None:
    job = seen(requested(), leased(), started(), gave_up())
    assert (job["status"], job["lease"], job["steps"][0]["status"]) == ("waiting", None, "waiting")


def test_a_running_job_shows_how_far_it_is() -> None:
    job = seen(requested(), leased(), started(), progressed(50, "load", "half"))
    assert job["status"] == job["steps"][0]["status"] == "running"
    assert job["progress"] == {
        "percent": 50,
        "phase": "load",
        "message": "half",
        "at": "2026-03-01T12:00:00.000Z",
    }
    assert (job["steps"][0]["percent"], job["started_at"]) == (50, "2026-03-01T12:00:00.000Z")


@pytest.mark.rule("S1.6")
def test_a_job_that_waits_again_shows_why() -> None:
    broken = failed("BROKEN", "it broke", details=Raw(b"[1]"))
    job = seen(requested(), leased(), started(), after(2), broken, retried(1))
    assert job["error"] == {
        "code": "BROKEN",
        "message": "it broke",
        "retryable": True,
        "attempt": 1,
        "details": [1],
    }
    assert job["steps"][0]["error"] == job["error"]
    assert (job["status"], job["attempt"]) == ("pending", 1)
    assert job["ready_at"] == "2026-03-01T12:00:03.000Z"
    assert job["finished_at"] is None


def test_a_job_that_succeeded_shows_its_result_and_no_error() -> None:
    tried = (requested(), leased(), started(), failed(), retried(1), after(1), leased(fence=2))
    job = seen(*tried, after(4), succeeded(fence=2))
    assert (job["status"], job["error"], job["lease"]) == ("succeeded", None, None)
    assert job["result"]["output"] == {"ok": True}
    assert (job["result"]["attempt"], job["finished_at"]) == (2, "2026-03-01T12:00:05.000Z")
    assert job["steps"][0]["status"] == "succeeded"


def test_a_job_that_failed_shows_its_last_error() -> None:
    once = requested(retry=evenly(max_attempts=1))
    job = seen(once, leased(), started(), failed("BROKEN"), job_failed("BROKEN"))
    assert (job["status"], job["error"]["code"]) == ("failed", "BROKEN")
    assert job["steps"][0]["status"] == "failed"


def test_a_job_that_nobody_started_in_time_shows_that() -> None:
    job = seen(requested(start_timeout_us=micros(1)), after(1), job_expired(START_TIMEOUT))
    assert (job["status"], job["error"]["code"]) == ("expired", START_TIMEOUT)
    assert (job["steps"][0]["status"], job["start_timeout_seconds"]) == ("failed", 1)


@pytest.mark.rule("S1.10")
def test_a_job_that_is_cancelled_shows_who_asked_and_why() -> None:
    job = seen(requested(), leased(), cancel_asked("no consent"))
    assert job["status"] == "cancelling"
    assert job["cancel"] == {
        "requested_at": "2026-03-01T12:00:00.000Z",
        "reason": "no consent",
        "by": "tester",
        "deadline": "2026-03-01T12:00:30.000Z",
    }
    gone = seen(requested(), after(1), cancelled("at_once", "why"))
    assert (gone["status"], gone["cancel"]["deadline"]) == ("cancelled", None)
    assert gone["steps"][0]["status"] == "cancelled"


def test_a_collected_job_shows_until_when() -> None:
    history = (requested(result_ttl_us=60_000_000), leased(), succeeded())
    job = seen(*history, after(1), JobCollected(JOB, instant(61)))
    assert job["collected_at"] == "2026-03-01T12:00:01.000Z"
    assert job["result_expires_at"] == "2026-03-01T12:01:01.000Z"


@pytest.mark.rule("S1.9")
def test_a_rerun_shows_of_what() -> None:
    other = "default.019ca945-0a00-7000-8000-000000000001"
    assert seen(requested(retried_from=other))["retried_from"] == other


def test_instants_that_no_rule_makes_are_shown_still() -> None:
    asked = at_its_time(requested(), NOON)
    for ready_at in (10**30, -(10**30)):
        odd = msgspec.structs.replace(asked, ready_at=ready_at)
        assert job_view(begin(odd, NOON)).ready_at.endswith("Z")  # type: ignore[arg-type]
