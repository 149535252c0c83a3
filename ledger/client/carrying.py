"""What is too large for the log, between a client and the object store: payloads on their way to a
job, payloads and inputs on their way to a handler, outputs on their way back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec import Raw, Struct

from ledger.client.errors import Refused, StoreFailed
from ledger.client.fitting import require_fit
from ledger.client.json_values import hash_of, json_bytes
from ledger.domain.brief import Brief
from ledger.domain.commands import Limits, Template
from ledger.domain.events import Labels, Ref
from ledger.domain.extracts import extract_of_output, extract_of_payload
from ledger.domain.ids import CommandId, Fence, JobId, QueueName, StepName
from ledger.domain.object_keys import carried_key, output_key, payload_key
from ledger.domain.rejections import Rejection
from ledger.domain.wrong import Wrong
from ledger.log.crash_points import reach
from ledger.objects import ObjectError, ObjectStore, StoreUnavailable

T = TypeVar("T")

BYTES_MAX = 33_554_432
"""Of one payload or output."""
TRIES_MAX = 3
PAUSE_SECONDS = 1.0
"""Between tries of a store that gives no answer."""
_INSTANCE = re.compile(r"(.+)\[(\d+)\]")


class InForce(Struct, frozen=True, gc=False):
    """What an owner says of a request whose payload was not checked against the newest template."""

    version: int
    """Of the newest; 0: there is none."""
    template: Template | None = None
    """That governs the request."""
    limits: Limits = ()
    """All that its job will be under."""


class ToCopy(Struct, frozen=True, gc=False):
    """What an owner says of a rerun of which something lies in the store."""

    payload_ref: Ref | None
    queue: QueueName
    labels: Labels
    output_refs: dict[StepName, Ref] = {}
    """Of steps that are to be taken over."""


NOTHING_KNOWN = InForce(0)


class Carrier:
    """`bytes_max` of one object. Safe to share between the tasks of one loop."""

    def __init__(self, store: ObjectStore, *, bytes_max: int = BYTES_MAX) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._in_force: dict[tuple[str, str, int | None], InForce] = {}

    # --- Requests --------------------------------------------------------------------------------
    async def moved(
        self, body: Mapping[str, Any], command_id: CommandId, *, asks: bool
    ) -> dict[str, object]:
        """The request with a reference in place of its payload. Checked against the template that
        an owner has told of, if any has. `asks`: what does not fit that one is sent as not looked
        at, for the owner to tell of the newest. Raises `Refused` and `StoreFailed`."""
        payload = body["payload"]
        data = json_bytes(payload)
        self._require_room(data, "the payload", command_id, "/payload")
        in_force = self._in_force.get(_kind(body), NOTHING_KNOWN)
        try:
            _require_fit(in_force, data, command_id)
        except Refused:
            if not asks:
                raise
            in_force = NOTHING_KNOWN
        template = in_force.template
        content_hash = hash_of(payload, data)
        extract = extract_of_payload(orjson.loads(data), content_hash, template, in_force.limits)
        if isinstance(extract, Wrong):
            raise Refused(
                Rejection.VALIDATION_FAILED,
                extract.message,
                command_id=command_id,
                pointer=extract.pointer,
            )
        key = payload_key(QueueName(str(body["queue"])), body.get("labels") or {}, command_id)
        moved = {name: value for name, value in body.items() if name != "payload"}
        return moved | {
            "payload_ref": msgspec.to_builtins(await self.put(key, data)),
            "payload_hash": content_hash,
            "extract": extract,
            "checked_against": in_force.version,
        }

    def learn(self, body: Mapping[str, Any], told: InForce) -> None:
        """What an owner told with its refusal of such a request."""
        self._in_force[_kind(body)] = told

    async def copied(self, told: Raw, by: CommandId) -> dict[str, object]:
        """Copies for the rerun `by` of what an owner told of, as fields of its command. An output
        that is lost is left out: its step is done again. Raises `StoreFailed`."""
        old = msgspec.json.decode(told, type=ToCopy)
        fields: dict[str, object] = {}
        if old.payload_ref is not None:
            key = payload_key(old.queue, old.labels, by)
            copy = await self.put(key, await self.get(old.payload_ref))
            fields["payload_ref"] = msgspec.to_builtins(copy)
        copies: dict[str, object] = {}
        for step, ref in old.output_refs.items():
            try:
                data = await self.get(ref)
            except StoreFailed as failed:
                if failed.is_passing:
                    raise
                continue
            copy = await self.put(carried_key(old.queue, old.labels, by, step), data)
            copies[step] = msgspec.to_builtins(copy)
        if old.output_refs:
            fields["output_refs"] = copies
        return fields

    # --- Jobs ------------------------------------------------------------------------------------
    async def payload_of(self, brief: Brief) -> Any:
        """Raises `StoreFailed`."""
        assert brief.payload_ref is not None
        return msgspec.json.decode(await self.get(brief.payload_ref))

    async def inputs_of(self, brief: Brief) -> dict[str, Any]:
        """All of them, wherever they lie. Raises `StoreFailed`."""
        inputs = {name: msgspec.json.decode(output) for name, output in brief.inputs.items()}
        for name, ref in brief.input_refs.items():
            value = msgspec.json.decode(await self.get(ref))
            if instance := _INSTANCE.fullmatch(name):
                inputs[instance[1]][int(instance[2])] = value
            else:
                inputs[name] = value
        return inputs

    async def output_of(
        self, job_id: JobId, fence: Fence, brief: Brief, data: bytes
    ) -> tuple[Ref, dict[str, Any]]:
        """Reference and extract of an output. Raises `Refused` and `StoreFailed`."""
        self._require_room(data, "the output", None, "/output")
        extract: dict[str, Any] = {}
        if brief.watched:
            extract = extract_of_output(orjson.loads(data), brief.watched)
        ref = await self.put(output_key(job_id, brief.labels, fence), data)
        reach("runtime.after_upload")
        return ref, extract

    # --- The store -------------------------------------------------------------------------------
    def _require_room(
        self, data: bytes, what: str, command_id: CommandId | None, pointer: str
    ) -> None:
        if len(data) > self._bytes_max:
            detail = f"{what} takes {len(data)} bytes; {self._bytes_max} fit"
            raise Refused("PAYLOAD_TOO_LARGE", detail, command_id=command_id, pointer=pointer)

    async def put(self, key: str, data: bytes) -> Ref:
        """Raises `StoreFailed`."""
        digest = await asyncio.to_thread(lambda: sha256(data).hexdigest())
        return await _tried(lambda: self._store.put(key, data, sha256=digest, size=len(data)))

    async def get(self, ref: Ref) -> bytes:
        """Raises `StoreFailed`."""
        return await _tried(lambda: self._store.get(ref))


async def _tried(call: Callable[[], Awaitable[T]]) -> T:
    for left in reversed(range(TRIES_MAX)):
        try:
            return await call()
        except StoreUnavailable as error:
            if not left:
                raise StoreFailed(str(error), is_passing=True) from error
        except ObjectError as error:
            raise StoreFailed(str(error), is_passing=False) from error
        await asyncio.sleep(PAUSE_SECONDS)
    raise AssertionError("a last try ends in an answer or an error")


def _require_fit(in_force: InForce, data: bytes, command_id: CommandId) -> None:
    if in_force.template is not None:
        require_fit(in_force.template.payload_schema, Raw(data), command_id=command_id)


def _kind(body: Mapping[str, Any]) -> tuple[str, str, int | None]:
    return str(body.get("queue")), str(body.get("type")), body.get("template_version")
