"""`ledger queue …`: what a queue holds and may hold, through the HTTP api."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.api_client import ApiUrl, Json, api_client
from cli.content import given, json_of
from cli.outcome import EXIT_CODES
from cli.output import AsJson, compact, fields, print_json, short_time

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]
ReasonOption = Annotated[str, typer.Option(help="Kept in the history.")]


def register(app: typer.Typer) -> None:
    queue = typer.Typer(help="What queues hold, and may hold.", no_args_is_help=True)
    app.add_typer(queue, name="queue")

    @queue.command(
        help="Show a queue, and who holds its limits.\n\nExample: ledger queue get ai",
        epilog=EXIT_CODES,
    )
    def get(queue: QueueArgument, api_url: ApiUrl = None, as_json: AsJson = False) -> None:
        with api_client(api_url) as api:
            found = api.get(f"/v1/queues/{queue}")
        _show(found, as_json)

    @queue.command(
        help=(
            "Say how much a queue may hold. What is not said is no bound any more.\n\n"
            "Example: ledger queue put ai --depth-max 1000"
            ' --limits \'[{"key": ["/labels/user"], "max": 2}]\''
        ),
        epilog=EXIT_CODES,
    )
    def put(
        queue: QueueArgument,
        depth_max: Annotated[
            int | None, typer.Option(min=0, help="Pending jobs; then QUEUE_FULL.")
        ] = None,
        limits: Annotated[
            str | None, typer.Option(metavar="JSON", help="JSON, @FILE, or - for standard input.")
        ] = None,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        body = given({"depth_max": depth_max, "limits": json_of(limits, "--limits")})
        with api_client(api_url) as api:
            _show(api.put(f"/v1/queues/{queue}", body), as_json)

    @queue.command(
        help=(
            "Lease nothing of a queue any more; it goes on to accept jobs.\n\n"
            "Example: ledger queue pause ai --reason deploy"
        ),
        epilog=EXIT_CODES,
    )
    def pause(
        queue: QueueArgument,
        reason: ReasonOption = "",
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        with api_client(api_url) as api:
            _show(api.post(f"/v1/queues/{queue}/pause", {"reason": reason}), as_json)

    @queue.command(
        help="Lease a queue's jobs again.\n\nExample: ledger queue resume ai", epilog=EXIT_CODES
    )
    def resume(
        queue: QueueArgument,
        reason: ReasonOption = "",
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        with api_client(api_url) as api:
            _show(api.post(f"/v1/queues/{queue}/resume", {"reason": reason}), as_json)


def _show(queue: Json, as_json: bool) -> None:
    if as_json:
        print_json(queue)
        return
    paused = queue["paused"]
    rows: list[tuple[str, Any]] = [
        ("queue", queue["name"]),
        ("depth max", queue["depth_max"]),
        ("limits", compact(queue["limits"])),
    ]
    if paused:
        rows.append(("paused", f"{short_time(paused['at'])} {paused['by']}: {paused['reason']}"))
    counts = queue.get("counts", {})
    rows += [(status, count) for status, count in counts.items() if count]
    if queue.get("oldest_pending_at"):
        rows.append(("oldest pending", short_time(queue["oldest_pending_at"])))
    rows += [
        (f"held {compact(held['key'])}", f"{held['held']}/{held['max']} {compact(held['value'])}")
        for held in queue.get("held_limits", [])
    ]
    fields(rows)
