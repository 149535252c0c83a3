"""`ledger config`: every setting, its value, and where it comes from."""

from __future__ import annotations

from typing import Any

import typer
from pydantic import SecretStr

from cli.outcome import EXIT_CODES
from cli.output import AsJson, print_json, table
from cli.settings import PREFIX, Settings, load_settings, source_of


def register(app: typer.Typer) -> None:
    @app.command(
        "config",
        help=(
            "Show every setting, its value and where it comes from. Passwords are hidden.\n\n"
            "Example: LEDGER_KAFKA=10.0.0.1:9092 ledger config"
        ),
        epilog=EXIT_CODES,
    )
    def config(as_json: AsJson = False) -> None:
        settings = load_settings()
        names = Settings.model_fields
        if as_json:
            print_json(
                {name: {"value": shown(settings, name), "from": source_of(name)} for name in names}
            )
            return
        table(
            ("variable", "value", "from"),
            [
                (f"{PREFIX}{name.upper()}", _text(shown(settings, name)), source_of(name))
                for name in names
            ],
        )


def shown(settings: Settings, name: str) -> Any:
    """As JSON; a secret as stars, and the password inside an address too."""
    value = getattr(settings, name)
    match value:
        case SecretStr():
            return _without_password(value.get_secret_value())
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def _without_password(secret: str) -> str:
    """`postgresql://user:***@host/name`; anything else is all stars."""
    scheme, separator, rest = secret.partition("://")
    user, at, place = rest.rpartition("@")
    if not separator or not at:
        return "***"
    name = user.partition(":")[0]
    # What follows `?` may hold a password too.
    return f"{scheme}://{name}:***@{place.partition('?')[0]}"


def _text(value: Any) -> str:
    return "" if value is None else str(value)
