"""`ledger archive`: the log's records in files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, print_json, table
from cli.servers import kafka_of
from cli.settings import Settings, load_settings
from cli.verify_report import Meter


def register(app: typer.Typer) -> None:
    @app.command(
        "archive",
        help=(
            "Write the log's records to files, one a partition, byte for byte: to keep them, or to"
            " give them to an auditor. `ledger verify --file` checks them without a broker; the"
            " format is in docs/archives.md. Files of one partition that begin where the one before"
            " ended are one log.\n\n"
            "Example: ledger archive ./log && ledger verify --file ./log/ledger.events.v1-0000-…"
        ),
        epilog=EXIT_CODES,
    )
    def archive(
        directory: Annotated[Path, typer.Argument(file_okay=False, help="Made if it is missing.")],
        partition: Annotated[
            list[int] | None, typer.Option(min=0, help="All if none is named; may be repeated.")
        ] = None,
        from_: Annotated[
            int, typer.Option("--from", min=0, help="The first offset, of one partition.")
        ] = 0,
        to: Annotated[
            int | None, typer.Option(min=1, help="The offset before which it ends.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        settings = load_settings()
        wanted = partition or list(range(settings.partitions))
        if (from_ or to is not None) and len(wanted) != 1:
            fix = "name it by --partition"
            raise CommandError(
                "--from and --to are of one partition", fix=fix, exit_code=Exit.USAGE
            )
        directory.mkdir(parents=True, exist_ok=True)
        rows = asyncio.run(_archive(settings, wanted, directory, from_, to))
        if as_json:
            names = ("partition", "file", "records", "end")
            print_json({"archives": [dict(zip(names, row, strict=True)) for row in rows]})
        else:
            table(("partition", "file", "records", "ends before"), rows)


async def _archive(
    settings: Settings, partitions: list[int], directory: Path, first: int, until: int | None
) -> list[tuple[int, str, int, int]]:
    from ledger.audit.sources import archive_log

    rows = []
    with Meter("archiving", total=None) as meter:
        for partition in partitions:
            path, many, end = await archive_log(
                kafka_of(settings),
                settings.topics,
                partition,
                directory,
                first=first,
                until=until,
                progress=lambda records, position, end: meter.add(records),
            )
            rows.append((partition, str(path), many, end))
    return rows
