"""`ledger worker`: owns partitions, projects, reacts; with `--only model-calls`, calls models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli import logs
from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import LogIsJson
from cli.servers import kafka_of, objects_of, postgres_of
from cli.settings import Settings, load_settings

if TYPE_CHECKING:
    from processors.app import WorkerSettings
    from processors.model_calls.service import ModelCallsSettings

Only = Literal["owner", "projector", "model-calls"]


def register(app: typer.Typer) -> None:
    @app.command(
        "worker",
        help=(
            "Run a worker until Ctrl-C or SIGTERM: it shares the partitions with other workers,"
            " decides what is asked, keeps the read models up to date, and removes results and"
            " objects whose time is over. Logs JSON to standard"
            " error. On SIGTERM it hands over and leaves; an exit code other than 0 means that a"
            " part of it failed.\n\n"
            "Calls of models are made by a process of its own, `--only model-calls`: it alone opens"
            " secrets (LEDGER_SEALING_KEYS), and writes answers to LEDGER_OBJECTS.\n\n"
            "Example: ledger worker --health-port 8081"
        ),
        epilog=EXIT_CODES,
    )
    def worker(
        only: Annotated[
            Only | None, typer.Option(help="Run this part alone; the others run elsewhere.")
        ] = None,
        health_port: Annotated[
            int | None,
            typer.Option(help="Answer /healthz, /readyz and /metrics here, on loopback."),
        ] = None,
        as_json: LogIsJson = False,
    ) -> None:
        settings = load_settings(health_port=health_port)
        logs.configure(settings.log_level)
        raise typer.Exit(run(settings, only))


def run(settings: Settings, only: Only | None) -> int:
    # Faust takes half a second to import, which no other command should pay.
    from processors.app import run_worker

    return run_worker(worker_settings(settings, only), only)


def worker_settings(settings: Settings, only: Only | None) -> WorkerSettings:
    """Raises `CommandError`, and `SettingsError`, for what no worker could run with."""
    from processors.app import WorkerSettings
    from processors.owner.service import OwnerSettings

    return WorkerSettings(
        owner=OwnerSettings(
            connection=kafka_of(settings),
            topics=settings.topics,
            partitions=settings.partitions,
            ledger_id=settings.ledger_id,
            mode=settings.mode,
            bounds=settings.bounds,
            objects=objects_of(settings),
            snapshot_events=settings.snapshot_events,
        ),
        dsn="" if only == "owner" else postgres_of(settings),
        schema=settings.postgres_schema,
        objects=objects_of(settings),
        clean_seconds=settings.clean_seconds,
        orphan_seconds=settings.orphan_hours * 3600,
        health_port=settings.health_port,
        model_calls=model_calls_of(settings) if only == "model-calls" else None,
        processing_guarantee=settings.processing_guarantee,
    )


def model_calls_of(settings: Settings) -> ModelCallsSettings:
    """Raises `CommandError`, and `SettingsError`, for what no model could be called with."""
    from processors.model_calls.service import ModelCallsSettings

    if not settings.objects:
        raise CommandError(
            "no object store: what models answer goes there",
            fix="set LEDGER_OBJECTS to a folder or s3://bucket, as the api has it",
            exit_code=Exit.USAGE,
        )
    return ModelCallsSettings(
        connection=kafka_of(settings),
        topics=settings.topics,
        partitions=settings.partitions,
        dsn=postgres_of(settings),
        schema=settings.postgres_schema,
        objects=objects_of(settings),
        keyring=settings.keyring,
        allowed=settings.allowed_addresses,
        slots=settings.model_slots,
        answer_bytes_max=settings.model_answer_bytes_max,
        redirects_max=settings.model_redirects_max,
    )
