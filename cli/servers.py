"""Where the servers are: what the settings name, else those of a `ledger dev` that runs here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cli.outcome import CommandError, Exit
from cli.settings import Settings

if TYPE_CHECKING:
    from ledger.embedded import Running
    from ledger.log.connection import Connection

API_FILE = "api-url"
"""In the data directory of `ledger dev`: where its api listens."""


def kafka_of(settings: Settings) -> Connection:
    running = None if settings.kafka else _running(settings)
    bootstrap = settings.kafka or (running.addresses.kafka if running and running.addresses else "")
    if not bootstrap:
        raise _unknown("Kafka", "LEDGER_KAFKA=host:port", settings)
    return settings.connection(bootstrap)


def postgres_of(settings: Settings) -> str:
    if settings.postgres is not None:
        return settings.postgres.get_secret_value()
    running = _running(settings)
    if running is None or running.addresses is None:
        raise _unknown("Postgres", "LEDGER_POSTGRES=postgresql://…", settings)
    return running.addresses.postgres


def objects_of(settings: Settings) -> str:
    """The address of the object store, checked as far as that goes without reaching it."""
    from ledger.objects import InvalidAddress, MissingExtra, open_store

    if settings.objects:
        try:
            open_store(settings.objects)
        except (InvalidAddress, MissingExtra) as error:
            raise CommandError(
                str(error), fix="see docs/objects.md", exit_code=Exit.USAGE
            ) from None
    return settings.objects


def api_of(settings: Settings) -> str:
    if settings.api_url is not None:
        return settings.api_url.rstrip("/")
    if _running(settings) is not None:
        try:
            return api_file(settings.data).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            pass
    return f"http://{settings.api_host}:{settings.api_port}"


def api_file(data: Path) -> Path:
    return data / API_FILE


def _running(settings: Settings) -> Running | None:
    from ledger.embedded import Stack

    return Stack.running(settings.data)


def _unknown(what: str, setting: str, settings: Settings) -> CommandError:
    return CommandError(
        f"no address of {what}: none is set, and no `ledger dev` runs in {settings.data}",
        fix=f"start one with `ledger dev`, or set {setting}",
        exit_code=Exit.USAGE,
    )
