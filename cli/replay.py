"""`ledger replay`: what the log itself says, without a read model."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Annotated, Any

import typer

from cli.job import print_history, show_job
from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, print_json, say, table
from cli.servers import kafka_of
from cli.settings import Settings, load_settings


def register(app: typer.Typer) -> None:
    @app.command(
        "replay",
        help=(
            "Fold the log again. With JOB_ID: that job's whole history and how it stands, or stood."
            " Without: the jobs of every partition.\n\n"
            "Example: ledger replay JOB_ID --as-of 2026-01-02T03:04:05Z"
        ),
        epilog=EXIT_CODES,
    )
    def replay(
        job_id: Annotated[
            str | None, typer.Argument(metavar="[JOB_ID]", show_default=False)
        ] = None,
        as_of: Annotated[
            str | None, typer.Option(metavar="TIME|VERSION", help="The job as it was then.")
        ] = None,
        partition: Annotated[list[int] | None, typer.Option(help="May be repeated.")] = None,
        as_json: AsJson = False,
    ) -> None:
        settings = load_settings()
        if job_id is not None:
            asyncio.run(_replay_job(settings, job_id, as_of, as_json))
        else:
            wanted = partition or list(range(settings.partitions))
            asyncio.run(_replay_all(settings, wanted, as_json))


async def _replay_job(settings: Settings, job_id: str, as_of: str | None, as_json: bool) -> None:
    import msgspec

    from ledger.client.auditor import Auditor

    when = int(as_of) if as_of is not None and as_of.isdecimal() else as_of
    async with Auditor(
        kafka_of(settings), partitions=settings.partitions, prefix=settings.prefix
    ) as auditor:
        try:
            job = await auditor.job(job_id, as_of=when)
            history = await auditor.history(job_id)
        except ValueError as error:
            raise CommandError(str(error), exit_code=Exit.USAGE) from None
    if job is None:
        raise CommandError(f"the log holds no job {job_id}", exit_code=Exit.NOT_FOUND)
    events = [msgspec.to_builtins(event) for event in history]
    if as_json:
        print_json({"job": job, "events": events})
        return
    show_job(job)
    print_history(events)


async def _replay_all(settings: Settings, partitions: list[int], as_json: bool) -> None:
    from ledger.client.auditor import Auditor
    from ledger.domain.job import status

    began = time.monotonic()
    found: list[dict[str, Any]] = []
    async with Auditor(
        kafka_of(settings), partitions=settings.partitions, prefix=settings.prefix
    ) as auditor:
        for partition in partitions:
            jobs = await auditor.jobs(partition)
            statuses = Counter(str(status(job)) for job in jobs.values())
            found.append(
                {
                    "partition": partition,
                    "jobs": len(jobs),
                    "events": sum(job.version for job in jobs.values()),
                    "statuses": dict(statuses),
                }
            )
    seconds = time.monotonic() - began
    events = sum(row["events"] for row in found)
    if as_json:
        print_json({"partitions": found, "events": events, "seconds": round(seconds, 3)})
        return
    table(
        ("partition", "jobs", "events", "by status"),
        [
            (row["partition"], row["jobs"], row["events"], _statuses(row["statuses"]))
            for row in found
            if row["jobs"]
        ],
    )
    say(f"{events:,} events of jobs in {seconds:.1f} s")


def _statuses(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
