"""`ledger demo`: real servers, a worker, an api, two runtimes, and a thousand jobs through all of
them: some fail and are retried, one is cancelled, one outlives the runtime that ran it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli import demo_jobs
from cli.api_client import ApiClient, Json, api_client
from cli.demo_jobs import Ended, complaints, counts_text
from cli.failures import explained
from cli.job import ENDED, print_history
from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, err, line, print_json, say, table
from cli.servers import kafka_of
from cli.settings import Settings, load_settings

if TYPE_CHECKING:
    from cli.local import LocalLedger
    from ledger.embedded.processes import Child

RUNTIMES = ("runtime-1", "runtime-2")
JOBS_SECONDS = 90.0
"""For all jobs to end; a few seconds are enough where nothing is broken."""
LOOK_SECONDS = 0.05
RUNTIME_STOP_SECONDS = 5.0
MEASURED_PART = 0.8
"""Of the jobs: the first so many say how fast it was."""


class DemoFailed(Exception):
    """What was to happen did not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    jobs: list[Ended]
    complaints: list[str]
    history: list[Json]
    """Of the job whose runtime was killed."""
    killed: str
    """The runtime."""
    jobs_per_second: float


def register(app: typer.Typer) -> None:
    @app.command(
        "demo",
        help=(
            "See it work: starts real servers in a temporary directory, runs jobs through two"
            " runtimes, kills one of them, and checks how every job ended. Leaves nothing behind."
            "\n\nExample: ledger demo --jobs 5000"
        ),
        epilog=EXIT_CODES,
    )
    def demo(
        jobs: Annotated[int, typer.Option(min=50, max=20_000, help="How many.")] = 1_000,
        as_json: AsJson = False,
    ) -> None:
        try:
            outcome = _run(load_settings(), jobs)
        except Exception as error:
            if not isinstance(error, CommandError | DemoFailed) and explained(error) is None:
                raise
            if as_json:
                print_json({"ok": False, "complaints": [str(error)]})
            else:
                line(f"demo: FAILED {error}")
            raise typer.Exit(Exit.BAD) from None
        _show(outcome, as_json)
        raise typer.Exit(Exit.BAD if outcome.complaints else Exit.OK)


def _run(settings: Settings, count: int) -> Outcome:
    from cli.local import LocalLedger, interruptible

    def tell(name: str, where: str) -> None:
        say(f"{name} {where}")

    say("starting Kafka and Postgres")

    with (
        interruptible(),
        LocalLedger(settings, directory=None, api_port=0, tell=tell) as ledger,
    ):
        runtimes = {
            name: ledger.start_child(
                name, ["-m", "cli.demo_runtime", name], stop_seconds=RUNTIME_STOP_SECONDS
            )
            for name in RUNTIMES
        }
        with api_client(ledger.api_url) as api, _progress(count) as show:
            return _Demo(ledger, runtimes, api, count).run(show)


class _Demo:
    def __init__(
        self, ledger: LocalLedger, runtimes: dict[str, Child], api: ApiClient, count: int
    ) -> None:
        self._ledger = ledger
        self._runtimes = runtimes
        self._api = api
        self._count = count
        self._killed = ""
        self._cancelled = False

    def run(self, show: Show) -> Outcome:
        asyncio.run(self._submit())
        self._wait_for_all(show)
        listed = self._listed()
        jobs = [demo_jobs.ended(job) for job in listed]
        crashing = next(job.id for job in jobs if job.type == demo_jobs.CRASHING)
        return Outcome(
            jobs=jobs,
            complaints=complaints(jobs, self._count) + self._own_complaints(),
            history=self._api.history(crashing),
            killed=self._killed,
            jobs_per_second=_rate(listed),
        )

    async def _submit(self) -> None:
        from ledger.client.producer import Accepted, Producer

        settings = self._ledger.settings
        async with Producer(
            kafka_of(settings),
            partitions=settings.partitions,
            prefix=settings.prefix,
            wait_seconds=30.0,
        ) as producer:
            outcomes = await producer.submit_many(
                demo_jobs.requests(self._count), await_decision=True
            )
        ids = []
        for outcome in outcomes:
            if not isinstance(outcome, Accepted):
                raise DemoFailed(f"a request was not accepted: {outcome}")
            ids.append(str(outcome.job_id))
        self._crashing, self._patient = ids[:2]
        say(f"{len(ids)} jobs submitted")

    def _wait_for_all(self, show: Show) -> None:
        from cli.local import require_running

        deadline = time.monotonic() + JOBS_SECONDS
        while (done := self._ended_count()) < self._count:
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"{done} of {self._count} jobs have ended after {JOBS_SECONDS:g} s;"
                    f" see {self._ledger.directory}"
                )
            require_running(self._ledger)
            show(done)
            self._interfere()
            time.sleep(LOOK_SECONDS)
        show(self._count)

    def _interfere(self) -> None:
        """Once each, while the job in question runs."""
        if not self._cancelled and self._job(self._patient)["status"] == "running":
            self._api.post(f"/v1/jobs/{self._patient}/cancel", {"reason": "the demo says so"})
            self._cancelled = True
            say("one job is running, and was cancelled")
        if not self._killed:
            job = self._job(self._crashing)
            if job["status"] == "running":
                self._killed = job["lease"]["runtime_id"]
                self._runtimes[self._killed].kill()
                say(f"{self._killed} was killed in the middle of {job['id']}")

    def _job(self, job_id: str) -> Json:
        return self._api.get(f"/v1/jobs/{job_id}")

    def _ended_count(self) -> int:
        counts = self._api.get(f"/v1/queues/{demo_jobs.QUEUE}")["counts"]
        return sum(counts.get(status, 0) for status in ENDED)

    def _listed(self) -> list[Json]:
        jobs: list[Json] = []
        cursor: str | None = None
        while True:
            params = [("queue", demo_jobs.QUEUE), ("limit", "200")]
            page = self._api.get("/v1/jobs", params + ([("cursor", cursor)] if cursor else []))
            jobs += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return jobs

    def _own_complaints(self) -> list[str]:
        found = []
        if not self._killed:
            found.append("no runtime was killed")
        if not self._cancelled:
            found.append("no job was cancelled while it ran")
        return found


class Show:
    """Takes how many have ended."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("jobs", total=total)

    def __call__(self, done: int) -> None:
        self._progress.update(self._task, completed=done)


@contextmanager
def _progress(total: int) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err()) as progress:
        yield Show(progress, total)


def _rate(jobs: list[Json]) -> float:
    """Jobs a second, from the first request on."""
    plain = [job for job in jobs if job["type"] in (demo_jobs.GREETING, demo_jobs.FLAKY)]
    first = min(datetime.fromisoformat(job["created_at"]) for job in plain)
    ends = sorted(datetime.fromisoformat(job["finished_at"]) for job in plain)
    # The killed runtime held some of them: they end one lease later, and say nothing of speed.
    most = int(len(ends) * MEASURED_PART)
    return most / max((ends[most - 1] - first).total_seconds(), 0.001)


def _show(outcome: Outcome, as_json: bool) -> None:
    counts = counts_text(outcome.jobs)
    if as_json:
        print_json(
            {
                "ok": not outcome.complaints,
                "counts": counts,
                "complaints": outcome.complaints,
                "killed_runtime": outcome.killed,
                "jobs_per_second": round(outcome.jobs_per_second),
                "history": outcome.history,
            }
        )
        return
    statuses = sorted({job.status for job in outcome.jobs})
    table(
        ("status", "jobs", "in more than one attempt"),
        [
            (
                status,
                sum(job.status == status for job in outcome.jobs),
                sum(job.status == status and job.attempt > 1 for job in outcome.jobs),
            )
            for status in statuses
        ],
    )
    line("")
    print_history(
        outcome.history, f"The job whose runtime ({outcome.killed}) was killed, from the log:"
    )
    line("")
    line(f"{outcome.jobs_per_second:,.0f} jobs a second, all processes on this machine")
    for complaint in outcome.complaints:
        line(f"  {complaint}")
    line(f"demo: FAILED {counts}" if outcome.complaints else f"demo: ok {counts}")
