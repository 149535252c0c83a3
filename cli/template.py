"""`ledger template put`: how jobs of a type behave, straight into the log."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, line, print_json
from cli.servers import kafka_of
from cli.settings import load_settings


def register(app: typer.Typer) -> None:
    template = typer.Typer(help="How jobs of a type behave.", no_args_is_help=True)
    app.add_typer(template, name="template")

    @template.callback()
    def templates() -> None:
        """Keeps `put` a word of its own while it is the only one."""

    @template.command(
        help=(
            "Make the next version of a template, unless the newest says the same. FILE is JSON or"
            " TOML: `type`, `queue` (default: default), and the fields that docs/kafka.md lists"
            " under Template.\n\n"
            "Example: ledger template put quiz.toml"
        ),
        epilog=EXIT_CODES,
    )
    def put(
        file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
        as_json: AsJson = False,
    ) -> None:
        content = _content(file)
        queue = content.pop("queue", "default")
        type_ = content.pop("type", None)
        if type_ is None:
            raise CommandError(
                f"{file} does not say the type of its jobs",
                fix='write: type = "quiz_generation"',
                exit_code=Exit.USAGE,
            )
        answer = asyncio.run(_put(queue, type_, content))
        if as_json:
            print_json({"queue": queue, "type": type_, **answer})
        elif answer["created"]:
            line(f"version {answer['version']} of {type_} in {queue}")
        else:
            line(f"version {answer['version']} of {type_} in {queue} says the same already")


async def _put(queue: str, type_: str, content: dict[str, Any]) -> dict[str, Any]:
    from ledger.client.producer import Producer

    settings = load_settings()
    async with Producer(
        kafka_of(settings),
        partitions=settings.partitions,
        prefix=settings.prefix,
        source="ledger/cli",
        actor="cli",
    ) as producer:
        stored = await producer.put_template(queue, type_, content)
    return {"version": stored.version, "created": stored.created}


def _content(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    try:
        content = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        raise CommandError(f"{file} cannot be read: {error}", exit_code=Exit.USAGE) from None
    if not isinstance(content, dict):
        raise CommandError(f"{file} holds no object", exit_code=Exit.USAGE)
    return content
