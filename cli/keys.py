"""`ledger keys …`: what secrets are sealed under."""

from __future__ import annotations

from secrets import token_hex
from typing import Annotated

import typer

from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, line, print_json

ID_BYTES = 4


def register(app: typer.Typer) -> None:
    keys = typer.Typer(help="Keys that secrets are sealed under.", no_args_is_help=True)
    app.add_typer(keys, name="keys")

    @keys.command(
        help=(
            "Print a new key as a line for the file that LEDGER_SEALING_KEYS names. Put it first:"
            " the first one seals, all open. How to take an old one away: docs/model-calls.md.\n\n"
            "Example: (umask 077; ledger keys generate > sealing.keys)"
        ),
        epilog=EXIT_CODES,
    )
    def generate(
        key_id: Annotated[
            str | None, typer.Option("--id", help="Its name, in what is sealed under it.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        from ledger.sealing.keyring import KeyringInvalid, generate_key, keyring_from

        key_id = key_id or f"key-{token_hex(ID_BYTES)}"
        key = generate_key()
        try:
            keyring_from(f"{key_id}:{key}")
        except KeyringInvalid as error:
            raise CommandError(f"--id {key_id}: {error}", exit_code=Exit.USAGE) from None
        if as_json:
            print_json({"id": key_id, "key": key})
        else:
            line(f"{key_id}:{key}")
