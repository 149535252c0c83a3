"""Results, collected: from then on they are kept for as long as their jobs say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from msgspec import Struct
from starlette.responses import Response

from api.answers import accepted_response, written_response
from api.bodies import JobIds
from api.decisions import Decided, caught_up, data_of, decide, refuse_if_match
from api.gateway import Undecided
from api.jobs import ACCEPTED
from api.operation import Answer, Ask, Operation
from api.positions import Seen
from api.views import CollectedItem, CollectedList, collected_item
from ledger.domain.commands import CollectJob
from ledger.domain.ids import queue_of
from ledger.domain.job import Job, Status
from ledger.domain.retention import closing_of
from projections.answers import Stored

AT_ONCE_MAX = 50
"""Commands of one request that wait for their decisions."""
Found = Mapping[str, Stored]


class _Collected(Struct, frozen=True, gc=False):
    """What the owner says: whoever collected it first."""

    collected_at: str | None
    result_expires_at: str | None


async def collect_jobs(ask: Ask) -> Response:
    refuse_if_match(ask)
    body: JobIds = ask.body
    found = await _found(ask, dict.fromkeys(body.ids))
    decisions = await _collect(ask, found)
    undecided = next((d for d in decisions.values() if isinstance(d, Undecided)), None)
    if undecided is not None:
        return accepted_response(undecided)
    decided = {job_id: d for job_id, d in decisions.items() if isinstance(d, Decided)}
    items = tuple(_item(ask, job_id, found, decided) for job_id in body.ids)
    replayed = bool(decided) and all(decision.replayed for decision in decided.values())
    return written_response(
        CollectedList(items), position=_position(found, decided), replayed=replayed
    )


async def _found(ask: Ask, job_ids: Iterable[str]) -> Found:
    """What has not ended in the view may have since: that is looked at once more, when the view
    shows all that was there when this was asked."""
    reads = ask.services.reads
    wanted = [job_id for job_id in job_ids if queue_of(job_id) is not None]
    found = await reads.jobs_by_id(wanted)
    open_ = [job_id for job_id in wanted if _is_open(found.get(job_id))]
    if open_:
        queues = {queue for job_id in open_ if (queue := queue_of(job_id)) is not None}
        partitions = {ask.services.partition_of(queue) for queue in queues}
        await asyncio.gather(*(caught_up(ask, partition) for partition in partitions))
        found = {**found, **await reads.jobs_by_id(open_)}
    return found


def _is_open(stored: Stored | None) -> bool:
    return stored is None or stored.job.end is None


async def _collect(ask: Ask, found: Found) -> dict[str, Decided | Undecided]:
    """Those that succeeded, of which nobody knows yet that they were collected. Under a key all
    are asked for again: their owners know what was answered."""
    room = asyncio.Semaphore(AT_ONCE_MAX)

    async def collect(job: Job) -> Decided | Undecided:
        async with room:
            return await decide(ask, CollectJob(job.id, closing_of(job)), part=f"#{job.id}")

    jobs = [
        stored.job
        for stored in found.values()
        if stored.job.end is Status.SUCCEEDED
        and (stored.job.collected_at is None or ask.key is not None)
    ]
    # All come to their end, or one that fails would leave the others to nobody.
    decisions = await asyncio.gather(*map(collect, jobs), return_exceptions=True)
    decided: dict[str, Decided | Undecided] = {}
    for job, decision in zip(jobs, decisions, strict=True):
        if isinstance(decision, BaseException):
            raise decision
        decided[job.id] = decision
    return decided


def _item(ask: Ask, job_id: str, found: Found, decided: Mapping[str, Decided]) -> CollectedItem:
    stored = found.get(job_id)
    if stored is None:
        return CollectedItem(job_id)
    item = collected_item(stored.job, ask.services.now())
    decision = decided.get(job_id)
    if decision is None or decision.data is None or item.collected_at is not None:
        return item
    said = data_of(decision, _Collected)
    return CollectedItem(
        item.id,
        item.status,
        item.output,
        item.output_ref,
        said.collected_at,
        said.result_expires_at,
    )


def _position(found: Found, decided: Mapping[str, Decided]) -> str:
    seen = Seen()
    for stored in found.values():
        seen.note_one(stored.partition, stored.offset)
    for decision in decided.values():
        seen.note(decision.position)
    return seen.text()


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/jobs/collect",
        name="collectJobs",
        tag="jobs",
        summary="Collect results: succeeded jobs are collected, others say how they stand",
        endpoint=collect_jobs,
        body=JobIds,
        is_command=True,
        answers={
            200: Answer(content=CollectedList, description="Items in the order asked"),
            202: ACCEPTED,
        },
        codes=("VIEW_BEHIND",),
    ),
)
