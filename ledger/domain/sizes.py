"""How many bytes a job is taken to hold in memory: its texts, and a constant for the rest."""

from __future__ import annotations

from ledger.domain.events import JobRequested
from ledger.domain.job import Job
from ledger.domain.steps import Step

JOB_BYTES = 700
LABEL_BYTES = 110


def size_of(job: Job) -> int:
    result = job.result.output if job.result is not None else None
    said = sum(map(size_of_said, job.steps))
    return size_of_request(job.request) + said + (0 if result is None else len(memoryview(result)))


def size_of_request(asked: JobRequested) -> int:
    labels = asked.labels
    size = JOB_BYTES + len(memoryview(asked.payload))
    if labels:
        size += LABEL_BYTES * len(labels) + sum(map(len, labels)) + sum(map(len, labels.values()))
    return size


def size_of_said(step: Step) -> int:
    """What its runtime said of a step: why it failed, how far it is."""
    failure, progress = step.failure, step.progress
    size = 0
    if failure is not None:
        details = failure.details
        size += len(failure.message) + (0 if details is None else len(memoryview(details)))
    if progress is not None:
        size += len(progress.phase or "") + len(progress.message or "")
    return size
