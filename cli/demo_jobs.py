"""The jobs of `ledger demo`, and how each ought to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

QUEUE = "demo"
LEASE_SECONDS = 3.0
"""Short, so that a killed runtime's jobs are soon another's."""
FLAKY_EVERY = 20
"""One job in so many fails at its first attempt."""

GREETING = "greeting"
FLAKY = "flaky"
DOOMED = "doomed"
PATIENT = "patient"
CRASHING = "crashing"

ENDS_AS = {
    GREETING: "succeeded",
    FLAKY: "succeeded",
    DOOMED: "failed",
    PATIENT: "cancelled",
    CRASHING: "succeeded",
}
"""By type: the last three are one job each."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A job as the api lists it, as far as the demo looks."""

    id: str
    type: str
    status: str
    attempt: int


def requests(count: int) -> Iterator[dict[str, object]]:
    """Bodies of `POST /v1/jobs`: first the three that take time."""
    for type_ in (CRASHING, PATIENT, DOOMED):
        yield _request(type_, 0)
    for number in range(1, count - 2):
        yield _request(FLAKY if number % FLAKY_EVERY == 0 else GREETING, number)


def _request(type_: str, number: int) -> dict[str, object]:
    urgent = type_ in (CRASHING, PATIENT, DOOMED)
    return {
        "type": type_,
        "queue": QUEUE,
        "payload": {"number": number},
        "priority": 0 if urgent else 5,
        "lease_seconds": LEASE_SECONDS,
        "retry": {"max_attempts": 3, "backoff_seconds": [0.2]},
    }


def ended(job: Mapping[str, Any]) -> Ended:
    return Ended(job["id"], job["type"], job["status"], job["attempt"])


def complaints(jobs: list[Ended], count: int) -> list[str]:
    """A sentence for each thing that is not as it ought to be; none: all is well."""
    found = [
        f"{job.id} ({job.type}) is {job.status}, not {ENDS_AS[job.type]}"
        for job in jobs
        if job.status != ENDS_AS[job.type]
    ]
    if len(jobs) != count:
        found.append(f"there are {len(jobs)} jobs, not {count}")
    if len({job.id for job in jobs}) != len(jobs):
        found.append("a job is listed twice")
    found += [
        f"{job.id} ({job.type}) ended in attempt {job.attempt}, so nothing made it retry"
        for job in jobs
        if job.type in (FLAKY, CRASHING) and job.attempt < 2
    ]
    found += [
        f"{job.id} ({job.type}) failed in attempt {job.attempt} of 3"
        for job in jobs
        if job.type == DOOMED and job.attempt != 3
    ]
    return found


def counts_text(jobs: list[Ended]) -> str:
    """`1000 jobs: 998 succeeded, 1 cancelled, 1 failed`."""
    counts = Counter(job.status for job in jobs)
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"{count} {status}" for status, count in ordered]
    return f"{len(jobs)} jobs: {', '.join(parts)}"
