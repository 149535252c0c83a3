"""From a request to its command, and from the owner's decision to an answer.

An owner forgets a job some time after its end. What it then calls unknown is answered from the
read model, by the same pure rules.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.responses import Response

from api.answers import accepted_response, job_response
from api.conditions import tags_from
from api.gateway import Undecided
from api.idempotency import fresh_id, keyed_id
from api.moving import copied_again, labels_of
from api.operation import Ask, Services
from api.positions import parse_positions, position_text
from api.problems import Refused, refused, refused_by_owner, refused_by_rule
from api.wire import Sent
from ledger.domain.commands import Command, RerunJob, SubmitResult
from ledger.domain.ids import CommandId, JobId, QueueName, queue_of
from ledger.domain.job import Job
from ledger.domain.job_view import job_json
from ledger.domain.leases import hash_of, refuse_closed, refuse_other_version, result_again
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.strict_json import MalformedJson, check
from ledger.log.errors import LogError
from ledger.log.replies import Reply
from projections.answers import Stored

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

ACTOR_LENGTH_MAX = 600
_UNPRINTABLE = re.compile(r"[^ -~]|%")


class Decided(Struct, frozen=True, gc=False):
    """Accepted, or answered before: with the job as JSON where the owner sent it."""

    position: str
    job: bytes | Raw | None = None
    job_id: JobId | None = None
    data: Raw | None = None
    replayed: bool = False
    is_duplicate: bool = False
    undecided: Undecided | None = None
    """How to answer if the view cannot show the job in time."""


# --- Asking --------------------------------------------------------------------------------------
def sent_by(
    ask: Ask, command: Command, *, part: str = "", command_id: CommandId | None = None
) -> Sent:
    """The command with its id: the same for a repeat under the same key, unless `command_id` is
    its own. `part` sets several commands of one request apart."""
    if command_id is None:
        command_id = id_of(ask, ask.value, part=part)
    return Sent(command, command_id, _actor(ask), ask.traceparent)


def id_of(ask: Ask, content: object, *, part: str = "") -> CommandId:
    if ask.key is None:
        return fresh_id()
    route = f"{ask.operation.method} {ask.request.url.path}{part}"
    return keyed_id(ask.services.settings.tenant, route, ask.key, content)


def _actor(ask: Ask) -> str:
    """Who asked, as a header can carry it."""
    actor = ask.services.principal(ask.request)
    runtime = ask.path.get("rid") or getattr(ask.body, "runtime_id", None)
    if runtime:
        actor = f"{actor}:{runtime}"
    return _UNPRINTABLE.sub(_percent, actor)[:ACTOR_LENGTH_MAX]


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode())


async def decide(
    ask: Ask,
    command: Command,
    *,
    part: str = "",
    command_id: CommandId | None = None,
    gives_back: bool = False,
) -> Decided | Undecided:
    """Raises `Refused` with the owner's code."""
    sent = sent_by(ask, command, part=part, command_id=command_id)
    gateway = ask.services.gateway
    decision = await gateway.decide(sent, ask.decision_seconds, gives_back=gives_back)
    if isinstance(decision, Undecided):
        return decision
    if decision.reply.code == Rejection.JOB_NOT_FOUND:
        try:
            return await _forgotten(ask, command, decision.reply)
        except Refused as refusal:
            if decision.reply.replayed:
                refusal.headers["Idempotency-Replayed"] = "true"
            raise
    return decided(decision.reply, decision.undecided)


def decided(reply: Reply, undecided: Undecided | None = None) -> Decided:
    """Raises `Refused` for a rejection."""
    if reply.outcome == "rejected":
        raise refused_by_owner(reply)
    return Decided(
        position=reply.position,
        job=reply.job,
        job_id=reply.job_id,
        data=reply.data,
        replayed=reply.replayed,
        is_duplicate=reply.outcome == "duplicate",
        undecided=undecided,
    )


def data_of(decision: Decided, kind: type[S]) -> S:
    """What the owner told beside the job. Raises `Refused` where it told nothing of that kind."""
    try:
        return msgspec.json.decode(decision.data or b"{}", type=kind)
    except msgspec.ValidationError:
        raise refused("VIEW_BEHIND", "accepted; what came of it is to be read") from None


async def job_answer(
    ask: Ask,
    decision: Decided | Undecided,
    respond: Callable[[Decided, bytes | Raw], Response] | None = None,
) -> Response:
    """The job after the decision; read from the view where the owner did not send it along."""
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    job = decision.job if decision.job is not None else await _viewed(ask, decision)
    if job is None and decision.undecided is not None:
        return accepted_response(ask.services.gateway.remember(decision.undecided))
    if job is None:
        raise refused("VIEW_BEHIND", "accepted; the view does not show the job yet")
    if respond is not None:
        return respond(decision, job)
    return job_response(job, position=decision.position, replayed=decision.replayed)


async def _viewed(ask: Ask, decision: Decided) -> bytes | None:
    """None: the view does not come so far in time."""
    job_id = decision.job_id or JobId(ask.path.get("id", ""))
    partition, _, offset = decision.position.partition(":")
    reads = ask.services.reads
    if not partition or not await reads.reached(int(partition), int(offset), ask.view_seconds):
        return None
    stored = await reads.job(job_id, even_erased=True)
    if stored is not None and stored.job.erased:
        detail = f"the request was answered by the job {job_id}, which was removed since"
        raise await unknown_job(ask, job_id, detail)
    return None if stored is None else job_json(stored.job)


# --- Conditions ----------------------------------------------------------------------------------
async def if_version(ask: Ask) -> int | None:
    """The version that `If-Match` asks for, for the owner to check: a view may be behind. Of
    several the one that the view shows. Raises `Refused` where no job can have what is named."""
    text = ask.request.headers.get("if-match")
    if text is None:
        return None
    tags = tags_from(text)
    if tags.any:
        return None
    if not tags.versions:
        raise refused("PRECONDITION_FAILED", "If-Match names no version of a job")
    newest = max(tags.versions)
    if len(tags.versions) == 1:
        return newest
    assert ask.partition is not None
    await caught_up(ask, ask.partition)
    stored = await ask.services.reads.job(ask.job_id)
    shown = None if stored is None else stored.job.version
    return shown if shown in tags.versions else newest


def refuse_if_match(ask: Ask) -> None:
    """On a route whose target has no ETag nothing but `*` matches."""
    text = ask.request.headers.get("if-match")
    if text is not None and not tags_from(text).any:
        raise refused("PRECONDITION_FAILED", "what this route writes to has no ETag")


# --- Reading what was written ---------------------------------------------------------------------
async def await_position(ask: Ask) -> None:
    """Waits until the views are as far as `Ledger-Min-Position` says. Raises `Refused` with
    VIEW_BEHIND if they do not come so far in time."""
    text = ask.request.headers.get("ledger-min-position")
    if text is None:
        return
    wanted = parse_positions(text, ask.services.settings.partitions)
    reads, seconds = ask.services.reads, ask.view_seconds
    reached = await asyncio.gather(
        *(reads.reached(partition, offset, seconds) for partition, offset in wanted.items())
    )
    if not all(reached):
        current = await reads.positions()
        behind = {p: current.get(p, -1) for p in wanted}
        raise refused(
            "VIEW_BEHIND",
            f"the views are at {position_text(behind)}, not yet at {position_text(wanted)}",
            headers={"Ledger-Position": position_text(current)},
        )


# --- Finding -------------------------------------------------------------------------------------
async def find(ask: Ask, job_id: str, *, even_erased: bool = False) -> Stored | None:
    """The job; if the view has none, once the view shows all that was there when this was asked."""
    return await find_by(ask.services, job_id, even_erased=even_erased)


async def find_by(services: Services, job_id: str, *, even_erased: bool = False) -> Stored | None:
    stored = await services.reads.job(job_id, even_erased=even_erased)
    queue = queue_of(job_id)
    if stored is None and queue is not None:
        await _caught_up(services, services.partition_of(QueueName(queue)))
        stored = await services.reads.job(job_id, even_erased=even_erased)
    return stored


async def found(
    ask: Ask, partition: int, read: Callable[[], Awaitable[T | None]], code: str, what: str
) -> T:
    """What operators said, with all that this process has heard said. Raises `Refused` with `code`
    if there is nothing once the view shows all that was there when this was asked."""
    await shown(ask, partition)
    item = await read()
    if item is None:
        await caught_up(ask, partition)
        item = await read()
    if item is None:
        offset = (await ask.services.reads.positions()).get(partition, -1)
        raise refused(code, what, headers={"Ledger-Position": f"{partition}:{offset}"})
    return item


async def shown(ask: Ask, partition: int | None = None) -> None:
    """Waits, for a bounded time, until the view shows what this process has heard of: whoever has
    put something here finds it here."""
    services = ask.services
    await asyncio.gather(
        *(
            services.reads.reached(number, offset, services.settings.view_seconds)
            for number, offset in services.seen.offsets(partition).items()
        )
    )


async def caught_up(ask: Ask, partition: int) -> bool:
    """Waits until the view shows the partition's end as of now, for a bounded time; whether it
    does."""
    return await _caught_up(ask.services, partition)


async def _caught_up(services: Services, partition: int) -> bool:
    with suppress(LogError):
        end = await services.wire.events_end(partition)
        seconds = services.settings.view_seconds
        return end == 0 or await services.reads.reached(partition, end - 1, seconds)
    return False


async def unknown_job(ask: Ask, job_id: str, detail: str = "") -> Refused:
    """JOB_NOT_FOUND, with how far that is true. To be raised."""
    queue = queue_of(job_id)
    headers: dict[str, str] = {}
    if queue is not None:
        partition = ask.services.partition_of(queue)
        offset = (await ask.services.reads.positions()).get(partition, -1)
        headers = {"Ledger-Position": f"{partition}:{offset}"}
    return refused(
        "JOB_NOT_FOUND",
        detail or f"the ledger knows no job {job_id[:128]}",
        job_id=job_id[:128],
        headers=headers,
    )


# --- What an owner has forgotten -----------------------------------------------------------------
async def _forgotten(ask: Ask, command: Command, reply: Reply) -> Decided | Undecided:
    job_id = JobId(getattr(command, "job_id", ""))
    stored = await find(ask, job_id)
    if stored is None:
        raise await unknown_job(ask, job_id)
    job = stored.job
    if job.end is None:
        raise refused("VIEW_BEHIND", "the views have not heard of the job's end", job_id=job_id)
    if isinstance(command, RerunJob):
        return await _rerun(ask, command, job)
    refusal = _closed(job, command)
    if refusal is not None:
        problem = refused_by_rule(refusal)
        problem.headers["Ledger-Position"] = stored.position
        raise problem
    return Decided(stored.position, job=job_json(job), job_id=job_id, replayed=reply.replayed)


def _closed(job: Job, command: Command) -> Rejected | None:
    """Why nothing can be done with an ended job; None: it has this very result already."""
    if isinstance(command, SubmitResult):
        output_hash = hash_of(command.output, command.output_ref, command.output_hash)
        decision = result_again(job, command.fence, output_hash)
        if decision is not None:
            return decision if isinstance(decision, Rejected) else None
    return refuse_closed(job)


async def _rerun(ask: Ask, command: RerunJob, job: Job) -> Decided | Undecided:
    """Again, with the job's request brought along."""
    if refusal := refuse_other_version(job, command.if_version):
        raise refused_by_rule(refusal)
    original = msgspec.json.encode(job.request)
    again = replace(command, original=Raw(original), if_version=None)
    try:
        check(msgspec.json.encode(again))
    except MalformedJson as error:
        raise refused("ENTRY_TOO_LARGE", f"the job's request cannot be sent: {error}") from None
    command_id = id_of(ask, ask.value, part="#original")
    if again.payload_ref is not None:
        labels = labels_of(command.labels, job.request.labels)
        copy = await copied_again(ask, again.payload_ref, job.request, labels, command_id)
        again = replace(again, payload_ref=copy)
    sent = sent_by(ask, again, command_id=command_id)
    decision = await ask.services.gateway.decide(sent, ask.decision_seconds)
    if isinstance(decision, Undecided):
        return decision
    return decided(decision.reply, decision.undecided)
