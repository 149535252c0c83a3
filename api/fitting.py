"""Whether payloads and outputs meet their templates, said before the log is asked.

Never is refused here what the owner would accept. So a value that does not fit is refused where it
is certain by which version the owner judges it: a version that the request or its job names, or the
newest, once the views show the log's end as of now. Where that is not certain (the views are behind
or away, or an earlier request under the same key may answer) the owner says it; of what goes to the
object store, which it cannot look at, nobody does, and the client is to say it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from msgspec import Raw, Struct, UnsetType
from msgspec.structs import replace

from api.operation import Ask, Services
from api.problems import refused, refused_by_rule
from ledger.domain.commands import Template
from ledger.domain.creation import mismatch, schema_of
from ledger.domain.events import Labels
from ledger.domain.flows import gives_the_result
from ledger.domain.ids import INLINE_BYTES_MAX, Fence, JobId, QueueName, queue_of
from ledger.domain.job import Job, quoted_step
from ledger.domain.rejections import Rejected
from ledger.log.errors import LogError
from projections.answers import TemplateVersion
from projections.reads import ReadsUnavailable

CERTAIN_SECONDS = 0.5
"""How long a value that does not fit waits for the views; then the owner says it."""

SchemaOf = Callable[[Template], Raw | UnsetType]


class Asked(Struct, frozen=True, gc=False):
    """Of a job that is asked for, what its payload's place and rules depend on."""

    queue: QueueName
    type: str
    labels: Labels
    version: int | None = None
    """Of the template, where it is not the newest."""


# --- Payloads ------------------------------------------------------------------------------------
async def require_payload(ask: Ask, asked: Asked, payload: Raw, *, is_keyed: bool) -> None:
    """Of a job that is asked for, as it goes into the log. Under a key that came before the earlier
    job answers, whatever has become of the newest version since. Raises `Refused`."""
    catalogue = ask.services.catalogue
    if asked.version is not None:
        seen = catalogue.version(asked.queue, asked.type, asked.version)
        wrong = None if seen is None else await misfit(_payload_of(seen.template), payload)
        if wrong is not None:
            raise refused_by_rule(wrong)
        return
    seen = catalogue.of(asked.queue).get(asked.type)
    if seen is None or is_keyed or await misfit(_payload_of(seen.template), payload) is None:
        return
    newest = await _newest(ask.services, asked.queue, asked.type)
    await _require(newest, payload)


async def require_moved_payload(
    ask: Ask, asked: Asked, governing: TemplateVersion | None, payload: Raw
) -> None:
    """Of one that goes to the object store; `governing` is what the views show. Raises `Refused`,
    with VIEW_BEHIND where it is not certain."""
    wrong = None if governing is None else await misfit(_payload_of(governing.template), payload)
    if governing is None or wrong is None:
        return
    if asked.version is None:
        newest = await _newest(ask.services, asked.queue, asked.type)
        if newest is None or newest.version != governing.version:
            raise refused("VIEW_BEHIND", "the views may not show the newest template: say it again")
    raise refused_by_rule(wrong)


async def require_payload_of_rerun(ask: Ask, payload: Raw) -> None:
    """A new one. The owner judges it by the version of the job, or by the newest if it holds that
    no more: certain where they are the same. Raises `Refused`."""
    if ask.key is not None or not await _is_suspect(ask, _payload_of, payload):
        return
    job = await _job(ask)
    if job is None or job.end is None:
        return
    asked = job.request
    newest = await _newest(ask.services, asked.queue, asked.type)
    if newest is not None and asked.template_version in (None, newest.version):
        await _require(newest, payload)


# --- Outputs -------------------------------------------------------------------------------------
async def require_output(ask: Ask, fence: Fence, output: Raw) -> None:
    """As it goes into the log. Only one that some template of its queue would refuse is worth
    asking which job it is of. Raises `Refused`."""
    if not await _is_suspect(ask, _output_of, output):
        return
    job = await _job(ask)
    if job is None or job.end is not None or job.request.template_version is None:
        return
    asked = job.request
    seen = ask.services.catalogue.version(asked.queue, asked.type, job.request.template_version)
    if seen is not None:
        await require_result(job, fence, seen.template, output)


async def require_result(job: Job, fence: Fence, template: Template, output: Raw) -> None:
    """By the version that the job is pinned to. In a flow only of what is to be its result. Raises
    `Refused`."""
    step = quoted_step(job, fence)
    if step is None or not gives_the_result(job, step):
        return
    wrong = await misfit(_output_of(template), output, "/output", job.id)
    if wrong is not None:
        raise refused_by_rule(wrong)


# --- Both ----------------------------------------------------------------------------------------
async def misfit(
    content: Raw | UnsetType, value: Raw, at: str = "/payload", job_id: JobId | None = None
) -> Rejected | None:
    """What a schema says against a value; a large one is looked at in a thread."""
    schema = schema_of(content)
    if schema is None:
        return None
    if len(memoryview(value)) <= INLINE_BYTES_MAX:
        wrong = mismatch(schema, value, at)
    else:
        wrong = await asyncio.to_thread(mismatch, schema, value, at)
    return None if wrong is None else replace(wrong, job_id=job_id)


def _payload_of(template: Template) -> Raw | UnsetType:
    return template.payload_schema


def _output_of(template: Template) -> Raw | UnsetType:
    return template.output_schema


async def _require(newest: TemplateVersion | None, payload: Raw) -> None:
    wrong = None if newest is None else await misfit(_payload_of(newest.template), payload)
    if wrong is not None:
        raise refused_by_rule(wrong)


async def _is_suspect(ask: Ask, schema_of: SchemaOf, value: Raw) -> bool:
    """Whether some template of the job's queue would refuse it."""
    queue = queue_of(ask.job_id)
    known = {} if queue is None else ask.services.catalogue.of(QueueName(queue))
    for its in known.values():
        if await misfit(schema_of(its.template), value) is not None:
            return True
    return False


async def _newest(services: Services, queue: QueueName, job_type: str) -> TemplateVersion | None:
    """As of the log's end now. None: there is none, or it is not certain."""
    partition = services.partition_of(queue)
    with suppress(TimeoutError, LogError, ReadsUnavailable):
        async with asyncio.timeout(CERTAIN_SECONDS):
            end = await services.wire.events_end(partition)
            if await services.reads.reached(partition, end - 1, CERTAIN_SECONDS):
                return await services.reads.template(queue, job_type)
    return None


async def _job(ask: Ask) -> Job | None:
    """As the view has it, which may be behind. None: not there, or not in time."""
    with suppress(TimeoutError, ReadsUnavailable):
        async with asyncio.timeout(CERTAIN_SECONDS):
            stored = await ask.services.reads.job(ask.job_id)
            return None if stored is None else stored.job
    return None
