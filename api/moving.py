"""The claim check: a payload or output too large for the log goes to the object store before its
command, which carries a reference, the hash and what rules look at. So a reference in the log leads
to bytes that are there; bytes whose command is refused belong to nobody, and are swept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NoReturn

import structlog
from msgspec import UNSET, Raw, Struct

from api.fitting import Asked, require_moved_payload, require_result
from api.input import too_large
from api.operation import Ask
from api.problems import invalid, refused
from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import Limits
from ledger.domain.events import JobRequested, Labels, Ref
from ledger.domain.extracts import (
    extract_of_output,
    extract_of_payload,
    pointers_into_outputs,
)
from ledger.domain.flows import stored_outputs
from ledger.domain.ids import INLINE_BYTES_MAX, CommandId, Fence, QueueName, StepName
from ledger.domain.job import Job
from ledger.domain.object_keys import carried_key, is_output_of, output_key, payload_key
from ledger.domain.wrong import Wrong
from ledger.objects import (
    ObjectConflict,
    ObjectDamaged,
    ObjectNotFound,
    ObjectStore,
    copied,
    require_there,
)

log = structlog.get_logger(__name__)


class Moved(Struct, frozen=True, gc=False):
    """What a command says of bytes that lie in the store."""

    ref: Ref
    content_hash: str
    """Over the RFC 8785 bytes of the value."""
    extract: dict[str, Any]
    checked_against: int = 0


# --- Payloads -------------------------------------------------------------------------------------
async def moved_payload(
    ask: Ask, asked: Asked, value: object, payload: Raw, command_id: CommandId
) -> Moved:
    """Raises `Refused`, and `StoreUnavailable`."""
    store = _store_for(ask, "payload", payload)
    reads = ask.services.reads
    newest = await reads.template(asked.queue, asked.type)
    governing = newest
    if asked.version is not None:
        governing = await reads.template(asked.queue, asked.type, asked.version)
    template = None if governing is None else governing.template
    limits: Limits = () if newest is None else newest.template.limits
    for queue in (await reads.queues([asked.queue])).items:
        limits = (*limits, *queue.settings.limits)
    await require_moved_payload(ask, asked, governing, payload)
    content_hash = await asyncio.to_thread(sha256_hex, value)
    extract = extract_of_payload(value, content_hash, template, limits)
    if isinstance(extract, Wrong):
        raise invalid(extract.pointer, extract.message)
    key = payload_key(asked.queue, asked.labels, command_id)
    version = 0 if newest is None else newest.version
    return Moved(await _put(store, key, bytes(payload)), content_hash, extract, version)


async def copied_payload(
    ask: Ask, original: JobRequested, labels: Labels, command_id: CommandId
) -> Ref:
    """For a rerun: the payload of the old job may go with it, that of the new one stays."""
    assert original.payload_ref is not None
    return await _copied(ask, original.payload_ref, original.queue, labels, command_id)


async def copied_again(
    ask: Ask, copy: Ref, original: JobRequested, labels: Labels, command_id: CommandId
) -> Ref:
    """The same for a second command in the first one's place."""
    return await _copied(ask, copy, original.queue, labels, command_id)


async def copied_outputs(
    ask: Ask, job: Job, labels: Labels, command_id: CommandId
) -> dict[StepName, Ref]:
    """For a rerun from where `job` failed, by step: outputs in the object store that it takes over.
    One that cannot be had any more is left out: its step is done again."""
    store, queue = ask.services.objects, job.request.queue
    if store is None or job.withdrawn:
        return {}

    async def copy(step: StepName, ref: Ref) -> tuple[StepName, Ref] | None:
        try:
            return step, await copied(store, ref, carried_key(queue, labels, command_id, step))
        except (ObjectNotFound, ObjectDamaged) as error:
            log.warning("output_not_taken_over", job_id=job.id, step=step, reason=str(error))
            return None
        except ObjectConflict:
            _refuse_conflict("the command")

    copies = await asyncio.gather(*(copy(*one) for one in stored_outputs(job).items()))
    return dict(filter(None, copies))


async def _copied(
    ask: Ask, ref: Ref, queue: QueueName, labels: Labels, command_id: CommandId
) -> Ref:
    store = ask.services.objects
    if store is None:
        raise too_large("payload", "it lies in an object store, and none is set up here")
    key = payload_key(queue, labels, command_id)
    try:
        return await copied(store, ref, key)
    except (ObjectNotFound, ObjectDamaged) as error:
        raise invalid("/payload", f"the job's own cannot be had any more: {error}") from None
    except ObjectConflict:
        _refuse_conflict("the command")


# --- Outputs --------------------------------------------------------------------------------------
async def moved_output(
    ask: Ask, job: Job, fence: Fence, value: object, output: Raw, command_id: CommandId
) -> Moved:
    """Raises `Refused`, and `StoreUnavailable`."""
    store = _store_for(ask, "output", output)
    asked = job.request
    if asked.template_version is not None:
        found = await ask.services.reads.template(asked.queue, asked.type, asked.template_version)
        if found is not None:
            await require_result(job, fence, found.template, output)
    extract = extract_of_output(value, pointers_into_outputs(asked.flow))
    content_hash = await asyncio.to_thread(sha256_hex, value)
    key = output_key(job.id, asked.labels, command_id)
    return Moved(await _put(store, key, bytes(output)), content_hash, extract)


async def require_its_own(ask: Ask, job: Job, ref: Ref, fence: Fence) -> None:
    """Of an output that its runtime has put in the store itself."""
    store = ask.services.objects
    if store is None or not is_output_of(ref.key, job.id, job.request.labels, fence):
        return  # The owner says so.
    try:
        await require_there(store, ref)
    except (ObjectNotFound, ObjectDamaged) as error:
        raise invalid("/output_ref", str(error)) from None


# --- Both -----------------------------------------------------------------------------------------
def _store_for(ask: Ask, name: str, sent: Raw) -> ObjectStore:
    store, bytes_max = ask.services.objects, ask.services.settings.object_bytes_max
    size = len(memoryview(sent))
    if store is None:
        raise too_large(
            name, f"has {size} bytes; {INLINE_BYTES_MAX} fit, and no object store is set up"
        )
    if size > bytes_max:
        raise too_large(name, f"has {size} bytes; {bytes_max} fit")
    return store


async def _put(store: ObjectStore, key: str, data: bytes) -> Ref:
    digest = await asyncio.to_thread(lambda: sha256(data).hexdigest())
    try:
        return await store.put(key, data, sha256=digest, size=len(data))
    except ObjectConflict:
        _refuse_conflict("the value")


def _refuse_conflict(what: str) -> NoReturn:
    """Under one key only the same value comes so far: it was written otherwise."""
    raise refused(
        "IDEMPOTENCY_KEY_REUSED",
        f"{what} came before under the same key in other bytes: repeat it byte for byte",
    )


def labels_of(labels: Any, otherwise: Mapping[str, str]) -> Labels:
    return dict(otherwise) if labels is UNSET else labels
