"""Runtimes over HTTP: what they may take, and who they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Raw
from starlette.responses import Response

from api.answers import accepted_response, json_response
from api.bodies import ClaimAsk, Poll, RuntimesQuery, fields_of
from api.claims import Claimed, Outcome
from api.decisions import refuse_if_match, sent_by
from api.disconnects import unless_gone
from api.gateway import Undecided
from api.grants import as_granted
from api.jobs import ACCEPTED
from api.lists import list_response
from api.operation import Answer, Ask, Operation
from api.positions import position_text
from api.problems import invalid, refused_by_owner
from api.views import ClaimView, PollView, RuntimeList, RuntimePage, RuntimeView, runtime_view
from ledger.domain.commands import Claim
from ledger.domain.ids import MODELS_QUEUE, QueueName
from ledger.domain.job_view import job_view


async def poll(ask: Ask) -> Response:
    body: Poll = ask.body
    jobs = await ask.services.reads.poll(body.queues, body.types, body.limit)
    listed = PollView(tuple(map(job_view, jobs.items)))
    return json_response(listed, position=position_text(jobs.positions))


def _refuse_calls_of_models(queues: Sequence[QueueName]) -> None:
    """A runtime over HTTP is not given the secrets that a call takes."""
    if MODELS_QUEUE in queues:
        what = "calls of models are made by `ledger worker --only model-calls` alone"
        raise invalid(f"/queues/{queues.index(MODELS_QUEUE)}", what)


async def claim(ask: Ask) -> Response:
    refuse_if_match(ask)
    _refuse_calls_of_models(ask.body.queues)
    sent = sent_by(ask, Claim(ask.runtime_id, **fields_of(ask.body)))
    gateway = ask.services.gateway

    def give_back(outcome: Outcome) -> None:
        if isinstance(outcome, Claimed) and ask.key is None:
            gateway.give_back(sent, outcome.items)

    claiming = ask.services.claims.claim(sent, ask.decision_seconds)
    outcome = await unless_gone(ask.request, claiming, give_back)
    if isinstance(outcome, Undecided):
        return accepted_response(outcome)
    if not isinstance(outcome, Claimed):
        raise refused_by_owner(outcome)
    headers = {}
    leases: Sequence[Raw] = outcome.items
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
        leases = await asyncio.gather(*(as_granted(ask, lease) for lease in leases))
    return json_response({"items": leases}, position=outcome.position, headers=headers)


async def list_runtimes(ask: Ask) -> Response:
    query: RuntimesQuery = ask.query
    runtimes = await ask.services.reads.runtimes(query.queue)
    return list_response(
        query,
        map(runtime_view, runtimes.items),
        _place,
        runtimes.positions,
        listed=RuntimeList,
        paged=RuntimePage,
    )


def _place(runtime: RuntimeView) -> str:
    return f"{runtime.queue} {runtime.runtime_id}"


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/runtimes/{rid}/claim",
        name="claimJobs",
        tag="runtimes",
        summary="Lease pending jobs, waiting for some if there are none",
        endpoint=claim,
        body=ClaimAsk,
        is_command=True,
        answers={
            200: Answer(content=ClaimView, description="Leases; empty after the wait"),
            202: ACCEPTED,
        },
        codes=("QUEUE_PAUSED",),
    ),
    Operation(
        method="POST",
        path="/v1/runtimes/{rid}/poll",
        name="pollJobs",
        tag="runtimes",
        summary="Look at pending jobs; nothing is taken (rather use claim)",
        endpoint=poll,
        body=Poll,
        is_read=True,
        answers={200: Answer(content=PollView, description="By priority, then as they wait")},
    ),
    Operation(
        method="GET",
        path="/v1/runtimes",
        name="listRuntimes",
        tag="runtimes",
        summary="List runtimes by queue: those that live, and those that ended lately",
        endpoint=list_runtimes,
        query=RuntimesQuery,
        is_read=True,
        answers={
            200: Answer(content=RuntimeList | RuntimePage, description="Runtimes by queue and id")
        },
    ),
)
