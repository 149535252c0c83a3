"""`ledger api`: the HTTP side."""

from __future__ import annotations

import signal
from contextlib import suppress
from types import FrameType
from typing import Annotated

import typer

from cli import logs
from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import LogIsJson, say
from cli.servers import kafka_of, objects_of, postgres_of
from cli.settings import Settings, load_settings

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def register(app: typer.Typer) -> None:
    @app.command(
        "api",
        help=(
            "Run the HTTP api until Ctrl-C or SIGTERM.\n\n"
            "It asks nobody who they are: let it listen beyond loopback only behind a gateway that"
            " does.\n\n"
            "Example: ledger api --port 8080"
        ),
        epilog=EXIT_CODES,
    )
    def api(
        host: Annotated[str | None, typer.Option(help="Where to listen.")] = None,
        port: Annotated[int | None, typer.Option(help="0: any free one.")] = None,
        as_json: LogIsJson = False,
    ) -> None:
        settings = load_settings(api_host=host, api_port=port)
        logs.configure(settings.log_level)
        serve(settings)


def serve(settings: Settings) -> None:
    from api.app import create_app
    from api.settings import Settings as ApiSettings
    from cli.api_server import ApiServer

    if settings.api_host not in LOOPBACK:
        say(f"warning: {settings.api_host} is not loopback, and the api asks nobody who they are")
    app = create_app(
        ApiSettings(
            connection=kafka_of(settings),
            dsn=postgres_of(settings),
            topics=settings.topics,
            schema=settings.postgres_schema,
            partitions=settings.partitions,
            objects=objects_of(settings),
            object_bytes_max=settings.object_bytes_max,
            connections_max=settings.postgres_connections_max,
            in_flight_max=settings.in_flight_max,
            keyring=settings.keyring,
        )
    )
    server = ApiServer(app, host=settings.api_host, port=settings.api_port)

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn raises a signal that it was stopped by once more when it is done; then it lands here,
    # and a stop that was asked for ends with 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with suppress(SystemExit):  # What uvicorn does where it cannot listen; it has said why.
        server.run()
    if not server.started:
        raise CommandError(
            f"the api could not start at {settings.api_host}:{settings.api_port}",
            fix="the lines above say why; --port takes another port",
            exit_code=Exit.UNAVAILABLE,
        )
