"""`ledger model …`: HTTP targets that jobs call, through the HTTP api."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.api_client import ApiUrl, api_client
from cli.content import content_of, text_of
from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, line, print_json, table


def register(app: typer.Typer) -> None:
    model = typer.Typer(help="HTTP targets that jobs call.", no_args_is_help=True)
    app.add_typer(model, name="model")

    @model.command(
        help=(
            "Say where a model is called, and how. FILE is JSON or TOML: `name`, and the fields"
            " that docs/kafka.md lists under Model. Without an API key the one before it is"
            " kept.\n\n"
            "Example: ledger model put gpt.toml --api-key @key.txt"
        ),
        epilog=EXIT_CODES,
    )
    def put(
        file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
        api_key: Annotated[
            str | None,
            typer.Option(metavar="@FILE", help="Where the key is: @FILE, or - (standard input)."),
        ] = None,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        content = content_of(file)
        name = content.pop("name", None)
        if not isinstance(name, str):
            raise CommandError(
                f"{file} does not say the model's name",
                fix='write: name = "gpt"',
                exit_code=Exit.USAGE,
            )
        if api_key is not None:
            content["api_key"] = _key(api_key)
        with api_client(api_url) as api:
            answer = api.put(f"/v1/models/{name}", content)
        if as_json:
            print_json(answer)
        else:
            key = "with" if answer["has_api_key"] else "without"
            line(f"{name} at {answer['base_url']}{answer['route']}, {key} a key")

    @model.command("list", help="List models.\n\nExample: ledger model list", epilog=EXIT_CODES)
    def list_models(api_url: ApiUrl = None, as_json: AsJson = False) -> None:
        with api_client(api_url) as api:
            items = api.all_of("/v1/models")
        if as_json:
            print_json({"items": items})
            return
        table(
            ("name", "method", "address", "key", "at once"),
            [
                (
                    item["name"],
                    item["method"],
                    item["base_url"] + item["route"],
                    "yes" if item["has_api_key"] else "no",
                    item["max_concurrency"],
                )
                for item in items
            ],
        )

    @model.command(
        help="Delete a model: no new calls of it.\n\nExample: ledger model delete gpt",
        epilog=EXIT_CODES,
    )
    def delete(
        name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        with api_client(api_url) as api:
            answer = api.delete(f"/v1/models/{name}")
        if as_json:
            print_json(answer)
        else:
            line(f"{name} is gone")


def _key(place: str) -> str:
    """Never the key itself: on a command line everybody could read it."""
    if place != "-" and not place.startswith("@"):
        raise CommandError(
            "--api-key names where the key is, not the key",
            fix="--api-key @key.txt, or --api-key - and the key on standard input",
            exit_code=Exit.USAGE,
        )
    return text_of(place).strip()
