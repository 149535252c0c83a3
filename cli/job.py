"""`ledger job …`: jobs, through the HTTP api."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from cli.api_client import ApiClient, ApiUrl, Json, api_client
from cli.content import given, json_of, labels_of
from cli.outcome import EXIT_CODES, Exit
from cli.output import AsJson, clock_time, compact, fields, line, print_json, say, short_time, table

ENDED = {"succeeded", "failed", "cancelled", "expired"}

JobIdArgument = Annotated[str, typer.Argument(metavar="JOB_ID", show_default=False)]
LabelOptions = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="May be repeated.")
]
PayloadOption = Annotated[
    str | None,
    typer.Option("--payload", metavar="JSON", help="JSON, @FILE, or - for standard input."),
]
PriorityOption = Annotated[int | None, typer.Option(min=0, max=9, help="0 is first.")]
Order = Literal["-created_at", "created_at", "priority"]


def register(app: typer.Typer) -> None:
    job = typer.Typer(help="Submit, watch and cancel jobs.", no_args_is_help=True)
    app.add_typer(job, name="job")
    _register_writes(job)
    _register_reads(job)


def _register_writes(job: typer.Typer) -> None:
    @job.command(
        help=(
            "Submit a job; prints its id.\n\n"
            'Example: ledger job submit quiz_generation --payload \'{"topic": "tides"}\''
            " --label user=42 --watch"
        ),
        epilog=EXIT_CODES,
    )
    def submit(
        type: Annotated[str, typer.Argument(metavar="TYPE", show_default=False)],
        queue: Annotated[str, typer.Option(help="Jobs of one queue are kept in order.")] = (
            "default"
        ),
        payload: PayloadOption = None,
        label: LabelOptions = None,
        scope: Annotated[str | None, typer.Option(help="Such as project:42.")] = None,
        priority: PriorityOption = None,
        key: Annotated[
            str | None, typer.Option(help="Idempotency key: the same again is the same job.")
        ] = None,
        delay: Annotated[float | None, typer.Option(metavar="SECONDS")] = None,
        run_at: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339.")] = None,
        timeout: Annotated[float | None, typer.Option(metavar="SECONDS")] = None,
        lease: Annotated[float | None, typer.Option(metavar="SECONDS")] = None,
        max_attempts: Annotated[int | None, typer.Option(min=1)] = None,
        watch: Annotated[bool, typer.Option("--watch", help="Then watch it to its end.")] = False,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        body = {
            "type": type,
            "queue": queue,
            "payload": json_of(payload),
            "labels": labels_of(label),
            "scope": scope,
            "priority": priority,
            "idempotency_key": key,
            "delay_seconds": delay,
            "run_at": run_at,
            "timeout_seconds": timeout,
            "lease_seconds": lease,
            "retry": None if max_attempts is None else {"max_attempts": max_attempts},
        }
        with api_client(api_url) as api:
            made = api.post("/v1/jobs", given(body))
            if made.get("deduplicated"):
                say(f"this key was used before: {made['id']} answers")
            if watch:
                raise typer.Exit(_watch(api, made["id"], as_json))
        if as_json:
            print_json(made)
        else:
            line(made["id"])

    @job.command(
        help=(
            "Cancel a job: at once if it waits, else its runtime is asked to stop.\n\n"
            "Example: ledger job cancel JOB_ID --reason 'consent withdrawn'"
        ),
        epilog=EXIT_CODES,
    )
    def cancel(
        job_id: JobIdArgument,
        reason: Annotated[str, typer.Option(help="Kept in the history.")] = "",
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        with api_client(api_url) as api:
            _show(api.post(f"/v1/jobs/{job_id}/cancel", {"reason": reason}), as_json)

    @job.command(
        help=(
            "Run an ended job again, as a new one that names it.\n\n"
            "Example: ledger job rerun JOB_ID --priority 0"
        ),
        epilog=EXIT_CODES,
    )
    def rerun(
        job_id: JobIdArgument,
        payload: PayloadOption = None,
        label: LabelOptions = None,
        priority: PriorityOption = None,
        from_failed: Annotated[
            bool, typer.Option("--from-failed", help="Of a flow: keep the steps that succeeded.")
        ] = False,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        body = {
            "payload": json_of(payload),
            "labels": labels_of(label),
            "priority": priority,
            "from_failed": from_failed or None,
        }
        with api_client(api_url) as api:
            made = api.post(f"/v1/jobs/{job_id}/rerun", given(body))
        if as_json:
            print_json(made)
        else:
            line(made["id"])


def _register_reads(job: typer.Typer) -> None:
    @job.command(help="Show a job.\n\nExample: ledger job get JOB_ID --json", epilog=EXIT_CODES)
    def get(
        job_id: JobIdArgument,
        as_of: Annotated[
            str | None, typer.Option(metavar="TIME|VERSION", help="As it was then.")
        ] = None,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        with api_client(api_url) as api:
            params = [("as_of", as_of)] if as_of else []
            _show(api.get(f"/v1/jobs/{job_id}", params), as_json)

    @job.command(
        "list",
        help=(
            "List jobs, newest first.\n\nExample: ledger job list --status failed --label user=42"
        ),
        epilog=EXIT_CODES,
    )
    def list_jobs(
        queue: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
        type: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
        status: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
        label: LabelOptions = None,
        scope: Annotated[str | None, typer.Option()] = None,
        error_code: Annotated[str | None, typer.Option()] = None,
        order: Annotated[Order, typer.Option()] = "-created_at",
        limit: Annotated[int, typer.Option(min=1, max=200)] = 50,
        cursor: Annotated[str | None, typer.Option(help="Go on where a list ended.")] = None,
        api_url: ApiUrl = None,
        as_json: AsJson = False,
    ) -> None:
        params = [("limit", str(limit)), ("order", order)]
        params += [("queue", value) for value in queue or []]
        params += [("type", value) for value in type or []]
        params += [("status", value) for value in status or []]
        params += [(f"label.{name}", value) for name, value in (labels_of(label) or {}).items()]
        single = {"scope": scope, "error_code": error_code, "cursor": cursor}
        params += [(name, value) for name, value in single.items() if value is not None]
        with api_client(api_url) as api:
            found = api.get("/v1/jobs", params)
        if as_json:
            print_json(found)
            return
        table(
            ("id", "type", "status", "attempt", "created", "error"),
            [
                (
                    item["id"],
                    item["type"],
                    item["status"],
                    f"{item['attempt']}/{item['max_attempts']}",
                    short_time(item["created_at"]),
                    (item["error"] or {}).get("code"),
                )
                for item in found["items"]
            ],
        )
        if found["next_cursor"]:
            say(f"more: --cursor {found['next_cursor']}")

    @job.command(
        help=(
            "Watch a job to its end. Exits with 0 only if it succeeds.\n\n"
            "Example: ledger job watch JOB_ID"
        ),
        epilog=EXIT_CODES,
    )
    def watch(job_id: JobIdArgument, api_url: ApiUrl = None, as_json: AsJson = False) -> None:
        with api_client(api_url) as api:
            raise typer.Exit(_watch(api, job_id, as_json))

    @job.command(
        help=(
            "Show everything that ever happened to a job, with its place in the log.\n\n"
            "Example: ledger job history JOB_ID"
        ),
        epilog=EXIT_CODES,
    )
    def history(job_id: JobIdArgument, api_url: ApiUrl = None, as_json: AsJson = False) -> None:
        with api_client(api_url) as api:
            events = api.history(job_id)
        if as_json:
            print_json({"items": events})
        else:
            print_history(events)


def print_history(events: list[Json], title: str = "") -> None:
    table(
        ("seq", "at", "event", "by", "position", "what"),
        [
            (
                event["seq"],
                _history_time(event, events[0]),
                _short_type(event["type"]),
                event["actor"],
                event["position"],
                _facts(event["data"]),
            )
            for event in events
        ],
        title,
    )


def _history_time(event: Json, first: Json) -> str:
    """With the day at the first event, and wherever it is another day."""
    same_day = event is not first and event["at"][:10] == first["at"][:10]
    return clock_time(event["at"]) if same_day else short_time(event["at"])


def _watch(api: ApiClient, job_id: str, as_json: bool) -> Exit:
    for event in api.events(job_id):
        if as_json:
            print_json(event)
        else:
            line(
                f"{short_time(event['at'])}  {_short_type(event['type']):<18}"
                f" {event['position']:>8}  {_facts(event['data'])}"
            )
        if _short_type(event["type"]) in ENDED:
            job = api.get(f"/v1/jobs/{job_id}")
            if not as_json:
                show_job(job)
            return Exit.OK if job["status"] == "succeeded" else Exit.BAD
    raise AssertionError("a job's events have no end but the job's")


def _short_type(type: str) -> str:
    """`ledger.job.attempt_failed.v1` → `attempt_failed`."""
    return type.removeprefix("ledger.job.").removesuffix(".v1")


QUIET_FACTS = {
    "job_id",
    "queue",
    "payload",
    "retry",
    "order",
    "session",
    "number",
    "key_digest",
    "content_digest",
    "dedupe_digest",
    "flow",
    "leases",
}


def _facts(data: Json) -> str:
    """What an event says, without what every event of the job says."""
    facts = {
        name: value
        for name, value in data.items()
        if name not in QUIET_FACTS and not name.endswith(("_us", "_at", "_hash"))
    }
    facts = {n: v for n, v in facts.items() if n not in ("until", "deadline", "key_until")}
    if facts.get("step") == "main":
        del facts["step"]
    return " ".join(f"{name}={_value(value)}" for name, value in facts.items())


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else compact(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _show(job: Json, as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        show_job(job)


def show_job(job: Json) -> None:
    error, result, lease = job.get("error"), job.get("result"), job.get("lease")
    rows: list[tuple[str, object]] = [
        ("id", job["id"]),
        ("type", job["type"]),
        ("status", job["status"]),
        ("attempt", f"{job['attempt']} of {job['max_attempts']}"),
        ("payload", compact(job["payload"])),
    ]
    if job["labels"]:
        rows.append(("labels", " ".join(f"{k}={v}" for k, v in job["labels"].items())))
    if lease:
        rows.append(("lease", f"{lease['runtime_id']} until {short_time(lease['expires_at'])}"))
    if job.get("progress"):
        progress = job["progress"]
        said = (progress.get("phase"), progress.get("message"))
        rows.append(("progress", f"{progress['percent']} % {' '.join(filter(None, said))}"))
    if error:
        rows.append(("error", f"{error['code']}: {error['message']}"))
    if result:
        rows.append(("output", compact(result["output"] or result["output_ref"])))
    rows += [
        (name.removesuffix("_at"), short_time(job[name]))
        for name in ("created_at", "started_at", "finished_at")
        if job.get(name)
    ]
    fields(rows)
