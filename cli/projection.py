"""`ledger projection status|rebuild`: the read models."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import typer

from cli.outcome import EXIT_CODES, Exit
from cli.output import AsJson, line, print_json, table
from cli.servers import kafka_of, postgres_of
from cli.settings import Settings, load_settings


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the views of a partition are."""

    partition: int
    position: int
    """Offset of the last record that they include; -1: none."""
    end: int
    """Of the log: the offset after its last record."""

    @property
    def behind(self) -> int:
        return max(0, self.end - 1 - self.position)


def register(app: typer.Typer) -> None:
    projection = typer.Typer(help="The read models in Postgres.", no_args_is_help=True)
    app.add_typer(projection, name="projection")

    @projection.command(
        help=(
            "Show how far the read models are, in records of the log.\n\n"
            "Example: ledger projection status --json"
        ),
        epilog=EXIT_CODES,
    )
    def status(as_json: AsJson = False) -> None:
        found = asyncio.run(standings(load_settings()))
        behind = sum(one.behind for one in found)
        if as_json:
            rows = [
                {
                    "partition": one.partition,
                    "position": one.position,
                    "end": one.end,
                    "behind": one.behind,
                }
                for one in found
            ]
            print_json({"behind": behind, "partitions": rows})
        else:
            table(
                ("partition", "position", "end of the log", "behind"),
                [(one.partition, one.position, one.end, one.behind) for one in found],
            )
            line(f"{behind} records behind" if behind else "up to date")
        raise typer.Exit(Exit.BAD if behind else Exit.OK)

    _register_rebuild(projection)


def _register_rebuild(projection: typer.Typer) -> None:
    pass


async def standings(settings: Settings) -> list[Standing]:
    from ledger.log.offsets import Offsets
    from projections.reads import open_reads

    partitions = range(settings.partitions)
    async with (
        Offsets(kafka_of(settings)) as offsets,
        open_reads(postgres_of(settings), schema=settings.postgres_schema) as reads,
    ):
        # The positions first: what is appended in between then only makes them look behind.
        positions = await reads.positions()
        ends = await offsets.ends(settings.topics.events, partitions)
    return [Standing(p, positions.get(p, -1), ends[p]) for p in partitions]
