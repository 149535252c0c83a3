"""`ledger dev`: everything on this machine, until Ctrl-C."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from cli.outcome import EXIT_CODES
from cli.output import AsJson, line, print_json, say
from cli.settings import load_settings

LOOK_SECONDS = 0.5
KAFKA_PORT = 9092
"""If it is free: clients know it by heart."""


def register(app: typer.Typer) -> None:
    @app.command(
        "dev",
        help=(
            "Run everything here until Ctrl-C: Kafka, Postgres, a worker, one that calls models"
            " (public and on loopback), the api; on loopback. Data is kept in .ledger/"
            " (LEDGER_DATA). Prints each address when it is ready.\n\n"
            "Example: ledger dev --port 8080"
        ),
        epilog=EXIT_CODES,
    )
    def dev(
        port: Annotated[int, typer.Option(help="Of the api; 0: any free one.")] = 8080,
        ephemeral: Annotated[
            bool, typer.Option("--ephemeral", help="Keep no data: it goes at the end.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        # Only here: the embedded servers are of no use to the other commands.
        from cli.local import LocalLedger, interruptible, require_running

        settings = load_settings()

        def tell(name: str, where: str) -> None:
            if as_json:
                print_json({"ready": name, "at": where})
            else:
                line(f"{name} {where}")

        with interruptible():
            try:
                say("starting Kafka and Postgres")
                with LocalLedger(
                    settings,
                    directory=None if ephemeral else settings.data,
                    api_port=port,
                    kafka_port=KAFKA_PORT,
                    calls_models=True,
                    tell=tell,
                ) as ledger:
                    say(f"ready; logs in {ledger.directory}; Ctrl-C stops it")
                    while True:
                        require_running(ledger)
                        time.sleep(LOOK_SECONDS)
            except KeyboardInterrupt:
                say("stopped")
