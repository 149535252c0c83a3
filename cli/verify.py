"""`ledger verify`: is the log whole, does it keep the rules, do the read models say the same?"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, print_json
from cli.servers import kafka_of, postgres_of
from cli.settings import Settings, load_settings
from cli.verify_report import Meter, as_builtins, show

if TYPE_CHECKING:
    from ledger.audit.log_check import Noted, Report
    from ledger.audit.processes import Task
    from ledger.audit.sources import Source
    from ledger.log.connection import Connection
    from projections.rebuild import Progress as Rebuilt

SMALL_RECORDS = 50_000
"""A log of no more is checked in this process: another takes longer to start."""
ARCHIVED_RECORD_BYTES = 50
"""About what a record takes in an archive."""

File = Annotated[
    list[Path] | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="An archive instead of the broker; no read models; may be repeated.",
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="What --json said before: is that still there?"),
]


def register(app: typer.Typer) -> None:
    @app.command(
        "verify",
        help=(
            "Read the whole log and check it: the hash chain, the sequence of entries, one outcome"
            " a command, one ending a job, every other rule; then fold it again beside the read"
            " models (in a scratch schema) and compare row by row. May run beside everything else,"
            " and takes every core."
            "\n\nExample: ledger verify --json > verified.json, later: ledger verify --against"
            " verified.json"
        ),
        epilog=EXIT_CODES,
    )
    def verify(
        partition: Annotated[
            list[int] | None,
            typer.Option(min=0, help="Only this log, no read models; may be repeated."),
        ] = None,
        file: File = None,
        from_: Annotated[
            int,
            typer.Option(
                "--from", min=0, help="Tell only of what lies from this offset of a partition on."
            ),
        ] = 0,
        to: Annotated[
            int | None, typer.Option(min=1, help="Read only what lies before this offset.")
        ] = None,
        deep: Annotated[
            bool, typer.Option(help="Also what spans the whole log: it is sorted on disk.")
        ] = False,
        against: Against = None,
        rows: Annotated[bool, typer.Option(help="Compare the read models too.")] = True,
        processes: Annotated[
            int | None, typer.Option(min=1, help="At most; one a core if not said.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        settings = load_settings()
        began = time.monotonic()
        sources = _sources(settings, partition, file)
        if (from_ or to is not None) and len(sources) != 1:
            fix = "name it by --partition, or give the archives of one"
            raise CommandError(
                "--from and --to are of one partition", fix=fix, exit_code=Exit.USAGE
            )
        compares = rows and not partition and not file and not from_ and to is None
        noted = [*_noted_in(against), *(_noted_by_rows(settings) if compares else ())]
        with ExitStack() as closing:
            deep_in = None
            if deep:
                directory = closing.enter_context(TemporaryDirectory(prefix="ledger-verify-"))
                deep_in = Path(directory)
            tasks = _tasks(settings, sources, noted, told_from=from_, until=to, deep_in=deep_in)
            reports = _check(settings, tasks, processes or os.cpu_count() or 1)
        is_whole = not any(report.broken for report in reports)
        differences = asyncio.run(_compare(settings)) if compares and is_whole else []
        is_sound = all(report.is_sound for report in reports) and not differences
        if as_json:
            print_json(
                {
                    "ok": is_sound,
                    "partitions": [as_builtins(report) for report in reports],
                    "deep": deep,
                    "rows_compared": compares and is_whole,
                    "differences": differences,
                    "seconds": round(time.monotonic() - began, 3),
                }
            )
        else:
            show(reports, differences if compares and is_whole else None)
        raise typer.Exit(Exit.OK if is_sound else Exit.BAD)


def connection() -> Connection:
    """For processes that read beside this one: they look up the settings themselves."""
    return kafka_of(load_settings())


def _sources(
    settings: Settings, partitions: list[int] | None, files: list[Path] | None
) -> dict[int, Source]:
    from ledger.audit.sources import BrokerSource, archive_sources
    from ledger.log.archive import NoArchive

    if files is None:
        wanted = partitions or range(settings.partitions)
        return {n: BrokerSource(connection, settings.topics, n) for n in wanted}
    try:
        found = archive_sources(files)
    except NoArchive as error:
        raise CommandError(str(error), exit_code=Exit.USAGE) from None
    return {n: source for n, source in found.items() if partitions is None or n in partitions}


def _tasks(
    settings: Settings,
    sources: dict[int, Source],
    noted: list[Noted],
    *,
    told_from: int,
    until: int | None,
    deep_in: Path | None,
) -> list[Task]:
    from ledger.audit.processes import Task

    return [
        Task(
            topic=settings.topics.events,
            partition=partition,
            source=source,
            bounds=settings.bounds,
            told_from=told_from,
            until=until,
            noted=tuple(one for one in noted if one.partition == partition),
            deep_in=deep_in,
        )
        for partition, source in sources.items()
    ]


def _check(settings: Settings, tasks: list[Task], processes: int) -> list[Report]:
    from ledger.audit.processes import check_all

    sizes = _sizes(settings, tasks)
    many = processes if sum(sizes.values()) > SMALL_RECORDS else 1
    # The longest first: or the last one keeps one core busy alone.
    in_turn = sorted(tasks, key=lambda task: -sizes[task.partition])
    with Meter("the log", total=sum(sizes.values())) as meter:
        reports = check_all(in_turn, processes=many, show=lambda told: meter.add(told.records))
    return sorted(reports, key=lambda report: report.partition)


def _sizes(settings: Settings, tasks: list[Task]) -> dict[int, int]:
    """In records, about."""
    from ledger.audit.sources import ArchiveSource
    from ledger.log.offsets import Offsets

    async def ends(partitions: list[int]) -> dict[int, int]:
        async with Offsets(kafka_of(settings)) as offsets:
            return await offsets.ends(settings.topics.events, partitions)

    sizes: dict[int, int] = {}
    for task in tasks:
        if isinstance(task.source, ArchiveSource):
            bytes_of_all = sum(path.stat().st_size for path in task.source.paths)
            sizes[task.partition] = bytes_of_all // ARCHIVED_RECORD_BYTES
    if left := [task.partition for task in tasks if task.partition not in sizes]:
        sizes |= asyncio.run(ends(left))
    return sizes


# --- What was seen before ------------------------------------------------------------------------
class _Seen(msgspec.Struct):
    partition: int
    entry: int
    hash: str


class _Reported(msgspec.Struct):
    partitions: list[_Seen]


def _noted_in(path: Path | None) -> list[Noted]:
    from ledger.audit.log_check import Noted

    if path is None:
        return []
    try:
        before = msgspec.json.decode(path.read_bytes(), type=_Reported)
    except msgspec.DecodeError as error:
        what = f"{path} is no report of `ledger verify --json`: {error}"
        raise CommandError(what, exit_code=Exit.USAGE) from None
    return [Noted(p.partition, p.entry, p.hash, str(path)) for p in before.partitions if p.entry]


def _noted_by_rows(settings: Settings) -> list[Noted]:
    from ledger.audit.log_check import Noted
    from projections.checkpoints import cursors

    found = cursors(
        postgres_of(settings), topic=settings.topics.events, schema=settings.postgres_schema
    )
    return [
        Noted(partition, cursor.entry, cursor.hash.hex(), "the read models' checkpoint")
        for partition, cursor in found.items()
        if cursor.entry
    ]


async def _compare(settings: Settings) -> list[str]:
    from projections.log_source import log_source
    from projections.rebuild import verify

    with Meter("the read models", total=None) as meter:
        offsets: dict[int, int] = {}

        def tell(step: Rebuilt) -> None:
            meter.add(step.offset - offsets.get(step.partition, 0))
            offsets[step.partition] = step.offset

        found = await verify(
            postgres_of(settings),
            topic=settings.topics.events,
            source=log_source(kafka_of(settings), settings.topics),
            schema=settings.postgres_schema,
            progress=tell,
        )
    return [str(difference) for difference in found]
