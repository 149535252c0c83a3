"""What `ledger verify` says while it reads, and then."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from cli.output import err, fields, line, table

if TYPE_CHECKING:
    from ledger.audit.log_check import Report
    from ledger.domain.invariants import Violation

SHOWN_MAX = 20
"""Violations and differences that are shown; all are counted."""


class Meter:
    """A bar with its rate, on standard error."""

    def __init__(self, what: str, *, total: int | None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), _Rate(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=err(), transient=True)
        self._task = self._progress.add_task(what, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def add(self, records: int) -> None:
        self._progress.advance(self._task, records)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = "" if task.speed is None else f", {task.speed:,.0f}/s"
        return Text(f"{task.completed:,.0f} records{speed}")


# --- Then ----------------------------------------------------------------------------------------
def as_builtins(report: Report) -> dict[str, Any]:
    """A report as JSON has it: what the rules say beside what the chain says."""
    verdict: dict[str, Any] = msgspec.to_builtins(report.verdict)
    said = msgspec.to_builtins(report)
    del said["verdict"]
    verdict["violations"] = [_violation(one) for one in report.verdict.violations]
    return {**said, **verdict}


def _violation(violation: Violation) -> dict[str, Any]:
    number, offset = violation.before
    return {
        "rule": violation.rule,
        "job_id": violation.job_id,
        "detail": violation.detail,
        "entry": violation.position,
        "offset": violation.offset,
        "before": {"entry": number, "offset": offset} if number else None,
        "look": look_at(violation),
    }


def look_at(violation: Violation) -> str:
    """The command that shows more of it."""
    return "" if violation.job_id is None else f"ledger job history {violation.job_id}"


def show(reports: list[Report], differences: list[str] | None) -> None:
    """`differences` of the read models; None: they were not compared."""
    table(
        ("partition", "entries", "events", "take-overs", "ignored", "last entry", "its hash"),
        [_row(report) for report in reports if report.verdict.entries or not report.is_sound],
    )
    fields([(name, _listed(counts)) for name, counts in _sums(reports).items() if counts])
    broken = [report for report in reports if report.broken]
    for report in broken:
        line(f"  {report.broken}")
    violations = [(report, one) for report in reports for one in report.verdict.violations]
    for report, violation in violations[:SHOWN_MAX]:
        line(f"  {_sentence(report.partition, violation)}")
        if command := look_at(violation):
            line(f"    {command}")
    for text in (differences or [])[:SHOWN_MAX]:
        line(f"  {text}")
    events = sum(report.verdict.events for report in reports)
    many = sum(report.verdict.violation_count for report in reports)
    if broken or many or differences:
        said = f"{len(broken)} logs broken, {many} violations, {len(differences or [])} rows differ"
        line(f"verify: FAILED {said}")
        return
    rows = "not compared" if differences is None else "equal to the fold"
    line(f"verify: ok {events:,} events in {len(reports)} partitions; read models {rows}")


def _row(report: Report) -> tuple[Any, ...]:
    verdict = report.verdict
    return (
        report.partition,
        verdict.entries,
        verdict.events,
        verdict.take_overs,
        _listed(report.ignored),
        report.entry,
        report.hash[:16],
    )


def _sums(reports: list[Report]) -> dict[str, Counter[str]]:
    sums: dict[str, Counter[str]] = {"events": Counter(), "jobs": Counter(), "commands": Counter()}
    for report in reports:
        sums["events"].update(report.verdict.types)
        sums["jobs"].update(report.verdict.jobs)
        sums["commands"].update(report.verdict.commands)
    return sums


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _sentence(partition: int, violation: Violation) -> str:
    number, offset = violation.before
    where = f"partition {partition}, entry {violation.position} at offset {violation.offset}"
    if number:
        where += f", after entry {number} at offset {offset}"
    job = "" if violation.job_id is None else f" job {violation.job_id}:"
    return f"{violation.rule} in {where}:{job} {violation.detail}"
