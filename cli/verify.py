"""`ledger verify`: is the log whole, does it keep the rules, do the read models say the same?"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cli.outcome import EXIT_CODES, Exit
from cli.output import AsJson, err, line, print_json, table
from cli.servers import kafka_of, postgres_of
from cli.settings import Settings, load_settings

if TYPE_CHECKING:
    from ledger.log.entries_reader import EntriesReader
    from projections.rebuild import Progress as Rebuilt

SHOWN_MAX = 20
"""Violations and differences that are shown; all are counted."""


@dataclass
class Verdict:
    """One partition's log."""

    partition: int
    entries: int = 0
    events: int = 0
    take_overs: int = 0
    hash: str = ""
    """The chain's last: whoever noted it can tell later that nothing before it was changed."""
    ignored: dict[str, int] = field(default_factory=dict)
    """Records that count for no reader, by reason: zombies' appends, doubled take-overs."""
    violations: list[str] = field(default_factory=list)
    broken: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.broken and not self.violations


def register(app: typer.Typer) -> None:
    @app.command(
        "verify",
        help=(
            "Read the whole log and check it: the hash chain, the sequence of entries, one outcome"
            " a command, one ending a job, every other rule; then fold it again beside the read"
            " models (in a scratch schema) and compare row by row. May run beside everything else."
            "\n\nExample: ledger verify --json"
        ),
        epilog=EXIT_CODES,
    )
    def verify(
        partition: Annotated[
            list[int] | None, typer.Option(help="Only this log, no read models; may be repeated.")
        ] = None,
        rows: Annotated[bool, typer.Option(help="Compare the read models too.")] = True,
        as_json: AsJson = False,
    ) -> None:
        settings = load_settings()
        wanted = partition or list(range(settings.partitions))
        compares = rows and not partition
        verdicts, differences = asyncio.run(_verify(settings, wanted, compares))
        is_sound = all(verdict.is_sound for verdict in verdicts) and not differences
        if as_json:
            print_json(
                {
                    "ok": is_sound,
                    "partitions": [asdict(verdict) for verdict in verdicts],
                    "rows_compared": compares,
                    "differences": differences,
                }
            )
        else:
            _show(verdicts, differences if compares else None)
        raise typer.Exit(Exit.OK if is_sound else Exit.BAD)


async def _verify(
    settings: Settings, partitions: list[int], compares: bool
) -> tuple[list[Verdict], list[str]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err(), transient=True) as progress:
        verdicts = [await _verify_log(settings, partition, progress) for partition in partitions]
        is_whole = not any(verdict.broken for verdict in verdicts)
        differences = await _compare(settings, progress) if compares and is_whole else []
    return verdicts, differences


async def _verify_log(settings: Settings, partition: int, progress: Progress) -> Verdict:
    """Chain and sequence are the reader's to check; the rules are those of `invariants`."""
    from ledger.domain.entries import Proven
    from ledger.domain.invariants import Invariants, Violation
    from ledger.domain.partition import Partition
    from ledger.log.entries_reader import EntriesReader
    from ledger.log.errors import LogBroken
    from ledger.log.partitions import partition_of

    verdict = Verdict(partition)
    invariants = Invariants(
        Partition(partition, settings.bounds),
        home=lambda queue: partition_of(queue, settings.partitions),
    )

    def note(violations: list[Violation]) -> None:
        verdict.violations += [
            f"{v.rule} in entry {v.position}{f' on {v.job_id}' if v.job_id else ''}: {v.detail}"
            for v in violations
        ]

    async with EntriesReader(kafka_of(settings), settings.topics, partition) as reader:
        end = await reader.end()
        task = progress.add_task(f"log {partition}", total=end)
        try:
            async for items in reader.batches(until=end):
                for item in items:
                    if isinstance(item, Proven):
                        verdict.entries += 1
                        verdict.events += len(item.entry.events)
                        note(invariants.check(item.entry))
                    else:
                        verdict.take_overs += 1
                        note(invariants.take_over(item.take_over))
                progress.update(task, completed=reader.position)
            note(invariants.settle())
        except LogBroken as error:
            verdict.broken = str(error)
        _finish(verdict, reader)
        progress.remove_task(task)
    return verdict


def _finish(verdict: Verdict, reader: EntriesReader) -> None:
    ignored = reader.effective.ignored
    counts = {name: getattr(ignored, name) for name in ignored.__struct_fields__}
    verdict.ignored = {name: count for name, count in counts.items() if count}
    verdict.hash = reader.cursor.hash.hex()


async def _compare(settings: Settings, progress: Progress) -> list[str]:
    from projections.log_source import log_source
    from projections.rebuild import verify

    task = progress.add_task("read models", total=None)

    def show(step: Rebuilt) -> None:
        progress.update(task, description=f"read models {step.partition}", completed=step.offset)

    found = await verify(
        postgres_of(settings),
        topic=settings.topics.events,
        source=log_source(kafka_of(settings), settings.topics),
        schema=settings.postgres_schema,
        progress=show,
    )
    return [str(difference) for difference in found]


def _show(verdicts: list[Verdict], differences: list[str] | None) -> None:
    table(
        ("partition", "entries", "events", "take-overs", "ignored", "chain's last hash"),
        [_row(verdict) for verdict in verdicts if verdict.entries or not verdict.is_sound],
    )
    violations = [text for verdict in verdicts for text in verdict.violations]
    broken = [verdict.broken for verdict in verdicts if verdict.broken]
    for text in [*broken, *violations[:SHOWN_MAX], *(differences or [])[:SHOWN_MAX]]:
        line(f"  {text}")
    events = sum(verdict.events for verdict in verdicts)
    if broken or violations or differences:
        line(
            f"verify: FAILED {len(broken)} logs broken, {len(violations)} violations,"
            f" {len(differences or [])} rows differ"
        )
        return
    rows = "not compared" if differences is None else "equal to the fold"
    line(f"verify: ok {events:,} events in {len(verdicts)} partitions; read models {rows}")


def _row(verdict: Verdict) -> tuple[Any, ...]:
    ignored = ", ".join(f"{count} {name}" for name, count in verdict.ignored.items())
    return (
        verdict.partition,
        verdict.entries,
        verdict.events,
        verdict.take_overs,
        ignored,
        verdict.hash[:16],
    )
