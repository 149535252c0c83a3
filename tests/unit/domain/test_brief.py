"""What a runtime is told of a job."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain.brief import Brief, brief_of
from ledger.domain.events import JobRequested, Ref
from ledger.domain.evolve import begin
from ledger.domain.failures import Retry
from ledger.domain.ids import JobId, micros
from ledger.domain.job import Job
from ledger.domain.job_view import job_json
from tests.support.builders import JOB, QUEUE
from tests.support.clock import NOON

PLAIN = JobRequested(JOB, QUEUE, "report", Raw(b'{"n":1}'), NOON, 0)
RICH = replace(
    PLAIN,
    payload_ref=Ref("a", 70_000, "ab" * 32),
    labels={"user": "ada"},
    scope="project:1",
    priority=0,
    retry=Retry(max_attempts=7),
    timeout_us=micros(1.5),
    lease_us=micros(600),
    retried_from=JobId(f"{QUEUE}.019b7cf0-0000-7000-8000-000000000000"),
)


def told(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(brief_of(job, job.steps[0])))
    return found


def test_a_brief_says_of_a_job_what_its_view_says() -> None:
    for asked in (PLAIN, RICH):
        job = begin(asked, NOON)
        view = msgspec.json.decode(job_json(job))
        assert told(job).items() <= view.items()
    elsewhere = {"inputs", "input_refs", "item", "worker_type", "schedule", "watched"}
    elsewhere |= {"forward_headers", "sealed_for", "output_schema"}
    assert told(begin(RICH, NOON)).keys() == set(Brief.__struct_fields__) - elsewhere


def test_what_a_plain_job_does_not_say_is_left_out() -> None:
    always = {"type", "payload", "timeout_seconds", "lease_seconds", "created_at"}
    assert told(begin(PLAIN, NOON)).keys() == always
