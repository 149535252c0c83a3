"""How far an attempt is. Recorded at most once a second: a word that comes sooner waits, and the
last one wins. It never goes back within an attempt, and what a word leaves out stays as it was."""

from __future__ import annotations

from ledger.domain.commands import ProgressSaid
from ledger.domain.events import JobProgressed
from ledger.domain.ids import SECOND, Fence, Micros
from ledger.domain.job import Job
from ledger.domain.steps import Progress, Step

PERIOD_US = SECOND
"""Between two facts of one attempt's progress, at least."""
SILENT = ProgressSaid()


def merged(before: ProgressSaid | Progress | None, said: ProgressSaid) -> ProgressSaid:
    if before is None:
        return said
    percent = said.percent
    if percent is None or (before.percent is not None and before.percent > percent):
        percent = before.percent
    return ProgressSaid(
        percent,
        before.phase if said.phase is None else said.phase,
        before.message if said.message is None else said.message,
    )


def progressed(
    job: Job, step: Step, fence: Fence, said: ProgressSaid, at: Micros
) -> tuple[JobProgressed, ...]:
    """The fact in a word; none if it says nothing new, or comes within a second of the last."""
    last = step.progress
    if last is not None and at - last.at < PERIOD_US:
        return ()
    news = merged(last, said)
    if news == recorded(last):
        return ()
    return (JobProgressed(job.id, step.name, fence, news.percent, news.phase, news.message),)


def is_time(step: Step, at: Micros) -> bool:
    """Whether a word that came too soon may be recorded now."""
    return step.progress is None or at - step.progress.at >= PERIOD_US


def recorded(last: Progress | None) -> ProgressSaid:
    return SILENT if last is None else ProgressSaid(last.percent, last.phase, last.message)
