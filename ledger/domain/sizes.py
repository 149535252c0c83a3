"""How many bytes a job is taken to hold in memory: its texts, and a constant for the rest."""

from __future__ import annotations

from msgspec import Raw

from ledger.domain.events import Labels
from ledger.domain.failures import Failure
from ledger.domain.job import Job
from ledger.domain.steps import Step

JOB_BYTES = 700
STEP_BYTES = 500
"""Of a flow."""
LABEL_BYTES = 200
"""A label with its key, be it short or long."""


def size_of_waiting(payload: bytes | Raw, labels: Labels) -> int:
    """Of one to which nothing has happened."""
    return JOB_BYTES + len(payload) + LABEL_BYTES * len(labels)


def size_of(job: Job) -> int:
    asked = job.request
    size = size_of_waiting(asked.payload, asked.labels)
    for step in job.steps:
        if step.failure is not None or step.progress is not None:
            size += size_of_said(step)
        if step.part is not None:
            size += STEP_BYTES + len(step.part.output or b"") + len(step.part.item or b"")
    if job.failure is not None:
        size += _size_of_failure(job.failure)
    result = job.result
    return size if result is None else size + len(result.output or b"")


def size_of_said(step: Step) -> int:
    """What its runtime said of a step: why it failed, how far it is."""
    failure, progress = step.failure, step.progress
    size = 0
    if failure is not None:
        size += _size_of_failure(failure)
    if progress is not None:
        size += len(progress.phase or "") + len(progress.message or "")
    return size


def _size_of_failure(failure: Failure) -> int:
    return len(failure.message) + len(failure.details or b"")
