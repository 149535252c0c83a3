"""`ledger projection status|rebuild`: the read models."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, err, line, print_json, table
from cli.servers import kafka_of, postgres_of
from cli.settings import Settings, load_settings

if TYPE_CHECKING:
    from projections.rebuild import PartitionStatus
    from projections.rebuild import Progress as Step


def register(app: typer.Typer) -> None:
    projection = typer.Typer(help="The read models in Postgres.", no_args_is_help=True)
    app.add_typer(projection, name="projection")

    @projection.command(
        help=(
            "Show how far the read models are, in records of the log. Exits with 1 if they are"
            " behind.\n\nExample: ledger projection status --json"
        ),
        epilog=EXIT_CODES,
    )
    def status(as_json: AsJson = False) -> None:
        found = asyncio.run(statuses(load_settings()))
        behind = sum(one.behind for one in found)
        if as_json:
            rows = [
                {
                    "partition": one.partition,
                    "offset": one.offset,
                    "end": one.end,
                    "behind": one.behind,
                    "entry": one.entry,
                    "misfits": one.misfits,
                    "unknown": one.unknown,
                }
                for one in found
            ]
            print_json({"behind": behind, "partitions": rows})
        else:
            table(
                ("partition", "offset", "end of the log", "behind", "entry", "misfits", "unknown"),
                [
                    (
                        one.partition,
                        one.offset,
                        one.end,
                        one.behind,
                        one.entry,
                        one.misfits,
                        one.unknown,
                    )
                    for one in found
                ],
            )
            line(f"{behind} records behind" if behind else "up to date")
        raise typer.Exit(Exit.BAD if behind else Exit.OK)

    @projection.command(
        help=(
            "Make the read models anew from the log, beside the live ones, then put them in their"
            " place. Nothing stops meanwhile; if it is interrupted, run it again.\n\n"
            "Example: ledger projection rebuild"
        ),
        epilog=EXIT_CODES,
    )
    def rebuild(as_json: AsJson = False) -> None:
        from projections.rebuild import SwitchGivenUp

        settings = load_settings()
        try:
            asyncio.run(_rebuild(settings))
        except SwitchGivenUp as error:
            raise CommandError(
                f"the new read models are built, and could not be put in place: {error}",
                fix="again in a moment; what is built is kept",
            ) from None
        found = asyncio.run(statuses(settings))
        entries = sum(one.entry for one in found)
        if as_json:
            print_json({"rebuilt": True, "partitions": len(found), "entries": entries})
        else:
            line(f"rebuilt from {entries} entries in {len(found)} partitions")


async def statuses(settings: Settings) -> list[PartitionStatus]:
    """Of every partition that was begun."""
    from ledger.log.offsets import Offsets
    from projections.rebuild import status

    async with Offsets(kafka_of(settings)) as offsets:
        ends = await offsets.ends(settings.topics.events, range(settings.partitions))
    return list(
        await asyncio.to_thread(
            status, postgres_of(settings), ends, schema=settings.postgres_schema
        )
    )


async def _rebuild(settings: Settings) -> None:
    from ledger.log.offsets import Offsets
    from projections.log_source import log_source
    from projections.rebuild import Rebuild

    connection, topic = kafka_of(settings), settings.topics.events
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    async with Offsets(connection) as offsets:
        ends = await offsets.ends(topic, range(settings.partitions))
        with Progress(*columns, console=err(), transient=True) as progress:
            task = progress.add_task("rebuilding", total=sum(ends.values()))
            reached: dict[int, int] = {}

            def show(step: Step) -> None:
                reached[step.partition] = step.offset
                progress.update(task, completed=sum(reached.values()))

            await Rebuild(
                postgres_of(settings),
                topic=topic,
                partitions=settings.partitions,
                source=log_source(connection, settings.topics),
                end_of=lambda partition: offsets.end(topic, partition),
                schema=settings.postgres_schema,
                progress=show,
            ).run()
