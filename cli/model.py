"""`ledger model …`: HTTP targets that jobs call, through the HTTP api."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cli.api_client import ApiUrl, api_client
from cli.content import content_of, text_of
from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, line, print_json, table
from cli.servers import kafka_of, postgres_of
from cli.settings import PREFIX, Settings, SettingsError, load_settings


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

    @model.command(
        help=(
            "Seal the API keys of models anew under the first of LEDGER_SEALING_KEYS, so that"
            " another one can be taken away. Needs Kafka and Postgres, not the api; nobody should"
            " change models meanwhile.\n\n"
            "Example: ledger model reseal"
        ),
        epilog=EXIT_CODES,
    )
    def reseal(as_json: AsJson = False) -> None:
        done = asyncio.run(_resealed(load_settings()))
        if as_json:
            print_json(done)
        else:
            for name in done["resealed"]:
                line(f"{name} is sealed anew")
            for name, why in done["closed"].items():
                line(f"{name} cannot be opened: {why}; put its key again")
        if done["closed"]:
            raise typer.Exit(Exit.BAD)


async def _resealed(settings: Settings) -> dict[str, Any]:
    """Names of those that were, and why others cannot be."""
    from ledger.client import Operator
    from ledger.sealing.api_keys import open_api_key
    from ledger.sealing.sealed import SealingError, key_id_of
    from projections.reads import open_reads

    keyring = settings.keyring
    if keyring is None:
        raise SettingsError(f"{PREFIX}SEALING_KEYS is not set: there is nothing to seal with")
    resealed: list[str] = []
    closed: dict[str, str] = {}
    async with (
        open_reads(postgres_of(settings), schema=settings.postgres_schema) as reads,
        Operator(kafka_of(settings), prefix=settings.prefix, keyring=keyring) as operator,
    ):
        for state in (await reads.models()).items:
            sealed = state.model.api_key
            if not isinstance(sealed, str):
                continue
            try:
                api_key = open_api_key(keyring, sealed, model=state.name)
                if key_id_of(sealed) == keyring.newest.key_id:
                    continue
            except SealingError as error:
                closed[state.name] = str(error)
                continue
            content = msgspec.to_builtins(state.model)
            await operator.put_model(state.name, {**content, "api_key": api_key.reveal()})
            resealed.append(state.name)
    return {"resealed": resealed, "closed": closed}


def _key(place: str) -> str:
    """Never the key itself: on a command line everybody could read it."""
    if place != "-" and not place.startswith("@"):
        raise CommandError(
            "--api-key names where the key is, not the key",
            fix="--api-key @key.txt, or --api-key - and the key on standard input",
            exit_code=Exit.USAGE,
        )
    return text_of(place).strip()
