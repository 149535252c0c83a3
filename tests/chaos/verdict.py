"""What must hold when the storm is over: read from the log, from the read models, and from what
producers and handlers wrote down for themselves."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from msgspec import UNSET

from ledger.domain.entries import command_of
from ledger.domain.events import (
    AttemptExpired,
    CancelRequested,
    CommandDuplicated,
    CommandRejected,
    InputQuarantined,
    JobCancelled,
    JobFailed,
    JobRequested,
    JobSucceeded,
    LeaseGranted,
    RetryScheduled,
    ScheduleFired,
    StepSucceeded,
)
from ledger.log.connection import Bounds
from tests.chaos.journal import Journal
from tests.chaos.load import FLOODED
from tests.chaos.stack import PARTITIONS, Stack
from tests.support.verdicts import History, read_history

SHOWN_MAX = 20
VERIFY_SECONDS = 300.0
PATIENT = Bounds(connect_seconds=60.0, request_seconds=60.0, offsets_seconds=60.0)
"""A busy machine is no reason to have no verdict."""
OPEN = """
SELECT id, status, ready_at::text FROM ledger.open_jobs ORDER BY id
"""


@dataclass
class Verdict:
    violations: list[str] = field(default_factory=list)
    jobs: int = 0
    events: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """Hard states that were reached: a storm that never comes to them proves nothing."""

    def must_be_empty(self, what: str, found: Iterable[object]) -> None:
        all_found = [str(one) for one in found]
        self.violations += [f"{what}: {one}" for one in all_found[:SHOWN_MAX]]
        if len(all_found) > SHOWN_MAX:
            self.violations.append(f"{what}: {len(all_found) - SHOWN_MAX} more")


async def until_quiet(stack: Stack, seconds: float) -> list[str]:
    """Until the read models know of no open job; what is open when time is up."""
    deadline = asyncio.get_running_loop().time() + seconds
    while found := await asyncio.to_thread(_open, stack.postgres.dsn):
        if asyncio.get_running_loop().time() > deadline:
            return found
        await asyncio.sleep(0.5)
    return []


def _open(dsn: str) -> list[str]:
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        rows = connection.execute(OPEN).fetchall()
    return [f"{job_id} is {status}, ready at {ready_at}" for job_id, status, ready_at in rows]


async def judge(stack: Stack, journal: Journal) -> Verdict:
    verdict = Verdict()
    topics = stack.cluster.topics
    connection = replace(stack.cluster.connection, bounds=PATIENT)
    history = await read_history(connection, topics, PARTITIONS, strictly=False)
    _judge_asks(verdict, journal, history)
    _judge_ends(verdict, history, stack.directory / "effects")
    _judge_operations(verdict, journal, history)
    verdict.violations += journal.violations
    verdict.must_be_empty("a process said", stack.broken())
    _look_back(verdict, history, stack)
    verdict.seen.update(journal.seen)
    await _verify(verdict, stack)
    return verdict


# --- Against the producers' own journal ----------------------------------------------------------
def _judge_asks(verdict: Verdict, journal: Journal, history: History) -> None:
    jobs: dict[str, list[str]] = {}
    refused = set()
    for proven in history.entries:
        for event in proven.entry.events:
            match event:
                case JobRequested(idempotency_key=str(key), retried_from=None):
                    jobs.setdefault(key, []).append(event.job_id)
                case CommandRejected():
                    refused.add(event.command_id)
                case _:
                    pass
    lost, doubled, other = [], [], []
    for ask in journal.asks.values():
        found = jobs.get(ask.key, [])
        if len(found) > 1:
            doubled.append(f"{ask.key} is {found}")
        if not found and ask.state in ("acknowledged", "accepted"):
            lost.append(f"{ask.key} was {ask.state}")
        if ask.job_id and found and ask.job_id not in found:
            other.append(f"{ask.key} was told to be {ask.job_id}, and is {found}")
        if found and ask.state == "refused":
            other.append(f"{ask.key} was refused with {ask.code}, and is {found}")
    verdict.must_be_empty("an acknowledged request is lost (G2)", lost)
    verdict.must_be_empty("a request was done twice (G1)", doubled)
    verdict.must_be_empty("a producer was told otherwise (I5)", other)
    verdict.must_be_empty("still unknown", (ask.key for ask in journal.open()))
    outcomes = history.outcomes()
    verdict.must_be_empty("a command has no outcome (G1)", journal.command_ids - _told(history))
    verdict.must_be_empty(
        "a command has two outcomes (G1)",
        (command_id for command_id in journal.command_ids if outcomes[command_id] > 1),
    )


def _told(history: History) -> set[str]:
    """Commands of which the log tells what became of them."""
    told: set[str] = set()
    for proven in history.entries:
        if command_id := command_of(proven.entry.cause):
            told.add(command_id)
        told.update(
            event.command_id
            for event in proven.entry.events
            if isinstance(event, CommandRejected | CommandDuplicated)
        )
    return told


def _judge_operations(verdict: Verdict, journal: Journal, history: History) -> None:
    asked_to_stop: set[str] = set()
    reruns: dict[str, str] = {}
    for proven in history.entries:
        for event in proven.entry.events:
            match event:
                case CancelRequested() | JobCancelled():
                    asked_to_stop.add(event.job_id)
                case JobRequested(retried_from=str(original)):
                    reruns[event.job_id] = original
                case _:
                    pass
    verdict.must_be_empty(
        "an accepted cancel is lost (G2)",
        (
            done.job_id
            for done in journal.done
            if done.kind == "cancel" and done.job_id not in asked_to_stop
        ),
    )
    verdict.must_be_empty(
        "an accepted rerun is lost (G2)",
        (
            done.new_job_id
            for done in journal.done
            if done.kind == "rerun" and reruns.get(done.new_job_id) != done.job_id
        ),
    )


# --- Against what handlers did -------------------------------------------------------------------
def _judge_ends(verdict: Verdict, history: History, effects: Path) -> None:
    done = _effects(effects)
    flooded: set[str] = set()
    endings = history.endings()
    stale: list[str] = []
    unfounded: list[str] = []
    for proven in history.entries:
        for event in proven.entry.events:
            if isinstance(event, JobRequested) and event.queue == FLOODED:
                flooded.add(event.job_id)
            if not isinstance(event, JobSucceeded | StepSucceeded):
                continue
            if event.job_id in flooded:
                continue
            if (str(event.job_id), int(event.fence)) not in done:
                unfounded.append(f"{event.job_id} under fence {event.fence}")
            if event.output is not UNSET and _fence_in(event.output) not in (None, event.fence):
                stale.append(f"{event.job_id}: {bytes(event.output)!r} under {event.fence}")
    jobs = history.jobs()
    verdict.must_be_empty("a result without its handler's effect (G4)", unfounded)
    verdict.must_be_empty("a stale result counts (I7)", stale)
    verdict.must_be_empty("a job has not ended (G11)", jobs - endings.keys())
    verdict.must_be_empty("a job ended twice (G6)", (job for job in jobs if endings[job] > 1))


def _fence_in(output: msgspec.Raw) -> int | None:
    said = msgspec.json.decode(output)
    return said.get("fence") if isinstance(said, dict) else None


def _effects(folder: Path) -> set[tuple[str, int]]:
    return {
        (job_id, fence)
        for place in folder.glob("*.jsonl")
        for job_id, fence in map(json.loads, place.read_text().splitlines())
    }


# --- The log's own rules, and the rows -----------------------------------------------------------
async def _verify(verdict: Verdict, stack: Stack) -> None:
    child = stack.cluster.start("verify", "-m", "cli.main", "verify", "--json")
    await stack.cluster.until(
        lambda: not child.alive, seconds=VERIFY_SECONDS, what="`ledger verify` is done"
    )
    said = child.output
    try:
        found: dict[str, Any] = json.loads(said[said.index("{") :])
    except ValueError:
        verdict.violations.append(f"`ledger verify` failed: {said[-1_000:]}")
        return
    verdict.must_be_empty("rows are not the fold (I20)", found["differences"])
    for partition in found["partitions"]:
        verdict.must_be_empty(f"partition {partition['partition']}", partition["violations"])
        if partition["broken"]:
            verdict.violations.append(f"the log is broken: {partition['broken']}")
        verdict.seen.update({f"ignored {k}": n for k, n in partition["ignored"].items()})
        verdict.seen["take-overs"] += partition["take_overs"]


def _look_back(verdict: Verdict, history: History, stack: Stack) -> None:
    verdict.jobs = len(history.jobs())
    named = {
        AttemptExpired: "attempts expired",
        RetryScheduled: "retries",
        LeaseGranted: "leases",
        CommandDuplicated: "duplicates",
        CommandRejected: "refused commands",
        InputQuarantined: "records quarantined",
        ScheduleFired: "schedules fired",
        JobSucceeded: "succeeded",
        JobFailed: "failed",
        JobCancelled: "cancelled",
    }
    for proven in history.entries:
        verdict.events += len(proven.entry.events)
        for event in proven.entry.events:
            if name := named.get(type(event)):
                verdict.seen[name] += 1
    for line in stack.logged():
        for word, name in (
            ('"owner.fenced"', "owners fenced"),
            ("OutcomeUnknown", "appends of unknown outcome"),
            ('"projector_paused"', "projectors without Postgres or log"),
            ('"log_unavailable"', "apis without log"),
            ('"views_unavailable"', "apis without Postgres"),
        ):
            verdict.seen[name] += word in line
    verdict.seen.update(stack.seen)
