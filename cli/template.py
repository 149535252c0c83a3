"""`ledger template …`: how jobs of a type behave; put straight into the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.api_client import ApiUrl, api_client
from cli.content import content_of
from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, line, print_json, short_time, table
from cli.servers import kafka_of
from cli.settings import load_settings


def register(app: typer.Typer) -> None:
    template = typer.Typer(help="How jobs of a type behave.", no_args_is_help=True)
    app.add_typer(template, name="template")

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
        content = content_of(file)
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

    @template.command(
        help=(
            "Show a template as JSON, the newest version or the one named.\n\n"
            "Example: ledger template get quiz_generation --queue ai --version 2"
        ),
        epilog=EXIT_CODES,
    )
    def get(
        type: Annotated[str, typer.Argument(metavar="TYPE", show_default=False)],
        queue: Annotated[str, typer.Option()] = "default",
        version: Annotated[int | None, typer.Option(min=1)] = None,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        path = f"/v1/queues/{queue}/templates/{type}"
        if version is not None:
            path += f"/versions/{version}"
        with api_client(api_url) as api:
            print_json(api.get(path))

    @template.command(
        "list",
        help="List templates by queue and type.\n\nExample: ledger template list --queue ai",
        epilog=EXIT_CODES,
    )
    def list_templates(
        queue: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        with api_client(api_url) as api:
            items = api.all_of("/v1/templates", [("queue", name) for name in queue or []])
        if as_json:
            print_json({"items": items})
            return
        table(
            ("queue", "type", "version", "enabled", "put", "by", "title"),
            [
                (
                    item["queue"],
                    item["type"],
                    item["version"],
                    "yes" if item["enabled"] else "no",
                    short_time(item["put_at"]),
                    item["put_by"],
                    item["title"],
                )
                for item in items
            ],
        )


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
