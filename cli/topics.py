"""`ledger topics apply|check|lost`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import typer

from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, line, print_json, say
from cli.servers import kafka_of
from cli.settings import Settings, load_settings

DECLARE_SECONDS = 20.0
"""An owner may have to search what lies behind a gap for the declaration."""

Intake = Literal["commands", "requests"]


def register(app: typer.Typer) -> None:
    topics = typer.Typer(help="The ledger's topics in Kafka.", no_args_is_help=True)
    app.add_typer(topics, name="topics")

    @topics.command(
        help=(
            "Create what is missing and set what differs. Never changes a partition count.\n\n"
            "Example: LEDGER_MODE=production ledger topics apply"
        ),
        epilog=EXIT_CODES,
    )
    def apply(as_json: AsJson = False) -> None:
        settings = load_settings()
        connection = kafka_of(settings)
        say(f"applying the topics at {connection.bootstrap}, mode {settings.mode}")
        asyncio.run(
            settings.topics.apply(connection, partitions=settings.partitions, mode=settings.mode)
        )
        raise typer.Exit(_check(as_json))

    @topics.command(
        help=(
            "Say which settings of the topics could lose or misplace what the ledger keeps.\n\n"
            "Example: ledger topics check --json"
        ),
        epilog=EXIT_CODES,
    )
    def check(as_json: AsJson = False) -> None:
        raise typer.Exit(_check(as_json))

    _register_lost(topics)


def _register_lost(topics: typer.Typer) -> None:
    @topics.command(
        help=(
            "Declare that records of an intake are lost for good, so that their partition goes on"
            " behind them. The worker's log and /healthz name what is missing, and say this"
            " command. Whatever was asked by those records is never decided; nothing brings it"
            " back, so first look for a replica or a copy that still has them.\n\n"
            "Example: ledger topics lost --partition 3 --topic requests --first 120 --end 150 --yes"
        ),
        epilog=EXIT_CODES,
    )
    def lost(
        partition: Annotated[int, typer.Option(min=0, show_default=False)],
        topic: Annotated[Intake, typer.Option(show_default=False)],
        first: Annotated[
            int, typer.Option(min=0, help="The first offset that is missing.", show_default=False)
        ],
        end: Annotated[
            int, typer.Option(min=1, help="The first that is there again.", show_default=False)
        ],
        yes: Annotated[bool, typer.Option("--yes", help="Nothing is declared without it.")] = False,
        as_json: AsJson = False,
    ) -> None:
        settings = load_settings()
        name = f"{getattr(settings.topics, topic)}[{partition}]"
        _require_sense(settings, partition, first, end)
        asyncio.run(_require_gone(settings, partition, topic, end))
        what = f"{end - first} records of {name}, offsets {first} to {end - 1}"
        if not yes:
            raise CommandError(
                f"this gives up {what}, for good",
                fix="say it again with --yes",
                exit_code=Exit.USAGE,
            )
        asyncio.run(_declare(settings, partition, topic, first, end))
        if as_json:
            print_json(
                {"partition": partition, "topic": topic, "first": first, "end": end, "lost": True}
            )
        else:
            line(f"declared lost: {what}; partition {partition} goes on at {end}")


def _require_sense(settings: Settings, partition: int, first: int, end: int) -> None:
    if partition >= settings.partitions:
        raise CommandError(
            f"there is no partition {partition}: the ledger has {settings.partitions}, from 0 on",
            exit_code=Exit.USAGE,
        )
    if first >= end:
        raise CommandError(
            f"no offset lies from {first} to {end}: --end is not included, so it is the larger one",
            exit_code=Exit.USAGE,
        )


async def _require_gone(settings: Settings, partition: int, topic: Intake, end: int) -> None:
    """The owner looks again; yet it may be busy with a gap, and this can be told at once."""
    from ledger.log.offsets import Offsets

    name = getattr(settings.topics, topic)
    async with Offsets(kafka_of(settings)) as offsets:
        there = await offsets.first(name, partition)
    if end != there:
        raise CommandError(
            f"the first record of {name}[{partition}] that is there is {there}, not {end}",
            fix="what is missing stands in the worker's log and in /healthz, under gaps",
            exit_code=Exit.REFUSED,
        )


async def _declare(settings: Settings, partition: int, topic: Intake, first: int, end: int) -> None:
    from ledger.client.producer import Producer

    async with Producer(
        kafka_of(settings),
        partitions=settings.partitions,
        prefix=settings.prefix,
        wait_seconds=DECLARE_SECONDS,
        source="ledger/cli",
        actor="cli",
    ) as producer:
        await producer.declare_input_lost(partition, topic, first=first, end=end)


def _check(as_json: bool) -> Exit:
    settings = load_settings()
    problems = asyncio.run(
        settings.topics.check(
            kafka_of(settings), partitions=settings.partitions, mode=settings.mode
        )
    )
    if as_json:
        rows = [
            {name: getattr(problem, name) for name in problem.__struct_fields__}
            for problem in problems
        ]
        print_json({"safe": not problems, "problems": rows})
    else:
        for problem in problems:
            line(str(problem))
        line("the topics are not safe" if problems else "the topics are safe")
    return Exit.BAD if problems else Exit.OK
