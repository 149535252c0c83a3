"""`ledger topics apply|check`."""

from __future__ import annotations

import asyncio

import typer

from cli.outcome import EXIT_CODES, Exit
from cli.output import AsJson, line, print_json, say
from cli.servers import kafka_of
from cli.settings import load_settings


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
