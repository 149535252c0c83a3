"""`ledger schedule …`: jobs that come by themselves, through the HTTP api."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from cli.api_client import ApiUrl, Json, api_client
from cli.content import given, json_of, labels_of
from cli.outcome import EXIT_CODES
from cli.output import AsJson, compact, fields, line, print_json, short_time, table

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
QueueOption = Annotated[str, typer.Option(help="Where its jobs go.")]


def register(app: typer.Typer) -> None:
    schedule = typer.Typer(help="Jobs that come by themselves.", no_args_is_help=True)
    app.add_typer(schedule, name="schedule")
    _register_put(schedule)
    _register_list(schedule)
    for word, does in (
        ("enable", "Let a schedule come again, from now on."),
        ("disable", "Let a schedule rest."),
    ):
        _register_switch(schedule, word, does)
    _register_run(schedule)
    _register_delete(schedule)


def _register_put(schedule: typer.Typer) -> None:
    @schedule.command(
        help=(
            "Say when jobs of a type are to be. What is not said has its default, whatever the"
            " schedule said before.\n\n"
            "Example: ledger schedule put nightly --type report --cron '0 3 * * *'"
            " --timezone Europe/Berlin"
        ),
        epilog=EXIT_CODES,
    )
    def put(
        name: NameArgument,
        type: Annotated[str, typer.Option(help="Of its jobs.", show_default=False)],
        cron: Annotated[str, typer.Option(help="Five fields.", show_default=False)],
        queue: QueueOption = "default",
        timezone: Annotated[str | None, typer.Option(help="Such as Europe/Berlin.")] = None,
        payload: Annotated[
            str | None,
            typer.Option("--payload", metavar="JSON", help="JSON, @FILE, or - for standard input."),
        ] = None,
        label: Annotated[
            list[str] | None,
            typer.Option("--label", metavar="KEY=VALUE", help="May be repeated."),
        ] = None,
        scope: Annotated[str | None, typer.Option(help="Such as project:42.")] = None,
        catch_up: Annotated[
            Literal["none", "last", "all"] | None, typer.Option(help="Of missed occurrences.")
        ] = None,
        disabled: Annotated[bool, typer.Option("--disabled", help="It rests at first.")] = False,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        body = {
            "type": type,
            "cron": cron,
            "timezone": timezone,
            "payload": json_of(payload),
            "labels": labels_of(label),
            "scope": scope,
            "catch_up": catch_up,
            "enabled": not disabled,
        }
        with api_client(api_url) as api:
            _show(api.put(_path(queue, name), given(body)), as_json)


def _register_list(schedule: typer.Typer) -> None:
    @schedule.command(
        "list",
        help="List schedules by queue and name.\n\nExample: ledger schedule list --queue ai",
        epilog=EXIT_CODES,
    )
    def list_schedules(
        queue: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
        type: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
        enabled: Annotated[bool | None, typer.Option("--enabled/--disabled")] = None,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        params = [("queue", one) for one in queue or []] + [("type", one) for one in type or []]
        if enabled is not None:
            params.append(("enabled", "true" if enabled else "false"))
        with api_client(api_url) as api:
            items = api.all_of("/v1/schedules", params)
        if as_json:
            print_json({"items": items})
            return
        table(
            ("queue", "name", "type", "cron", "timezone", "next run", "last run"),
            [
                (
                    item["queue"],
                    item["name"],
                    item["type"],
                    item["cron"],
                    item["timezone"],
                    short_time(item["next_run_at"]) if item["enabled"] else "(disabled)",
                    short_time(item["last_run_at"]),
                )
                for item in items
            ],
        )


def _register_switch(schedule: typer.Typer, word: str, does: str) -> None:
    @schedule.command(
        word, help=f"{does}\n\nExample: ledger schedule {word} nightly", epilog=EXIT_CODES
    )
    def switch(
        name: NameArgument,
        queue: QueueOption = "default",
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        with api_client(api_url) as api:
            _show(api.post(f"{_path(queue, name)}/{word}"), as_json)


def _register_run(schedule: typer.Typer) -> None:
    @schedule.command(
        help=(
            "Make a schedule's job now, whatever the time; prints its id. Also of a disabled one."
            "\n\nExample: ledger schedule run nightly"
        ),
        epilog=EXIT_CODES,
    )
    def run(
        name: NameArgument,
        queue: QueueOption = "default",
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        with api_client(api_url) as api:
            made = api.post(f"{_path(queue, name)}/run")
        if as_json:
            print_json(made)
        else:
            line(made["id"])


def _register_delete(schedule: typer.Typer) -> None:
    @schedule.command(
        help=("Delete a schedule; its jobs stay.\n\nExample: ledger schedule delete nightly"),
        epilog=EXIT_CODES,
    )
    def delete(
        name: NameArgument,
        queue: QueueOption = "default",
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        with api_client(api_url) as api:
            answer = api.delete(_path(queue, name))
        if as_json:
            print_json(answer)
        else:
            line(f"{name} in {queue} is gone")


def _path(queue: str, name: str) -> str:
    return f"/v1/queues/{queue}/schedules/{name}"


def _show(schedule: Json, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    rows: list[tuple[str, Any]] = [
        (name, schedule[name]) for name in ("queue", "name", "type", "cron", "timezone", "catch_up")
    ]
    rows += [
        ("enabled", "yes" if schedule["enabled"] else "no"),
        ("payload", compact(schedule["payload"])),
        ("next runs", ", ".join(map(short_time, schedule["next_runs"]))),
        ("last run", short_time(schedule["last_run_at"])),
    ]
    if schedule["stopped"]:
        rows.append(("stopped", schedule["stopped"]))
    fields(rows)
