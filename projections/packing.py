"""A job and its history as few bytes: fields by position, in msgpack.

What is stored once is not packed again: a job's id and queue are its row's key, payload and output
have columns of their own, and the event that requested the job is the job's own request. Rows
carry `LAYOUT`, so a version with other fields refuses them instead of misreading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import astuple

from ledger.domain.events import (
    JOB_EVENTS,
    AttemptFailed,
    Event,
    Extension,
    JobEvent,
    JobRequested,
    JobSucceeded,
    LeasesExtended,
    Ref,
    Unknown,
)
from ledger.domain.failures import Failure, Retry
from ledger.domain.ids import JobId, Micros, QueueName
from ledger.domain.job import (
    Cancel,
    Job,
    Lease,
    Leased,
    Pending,
    Phase,
    Progress,
    Result,
    Running,
    Settled,
    Status,
    Step,
    Waiting,
)


class StoredByAnotherVersion(Exception):
    """A row was packed by a version with other fields: rebuild the views with this one."""


_PACKED: tuple[type[msgspec.Struct], ...] = (
    *(Job, JobRequested, Retry, Step, Pending, Leased, Running, Waiting, Settled, Lease),
    *(Failure, Progress, Cancel, Result, Ref, *JOB_EVENTS, LeasesExtended, Extension),
)
LAYOUT = crc32(repr([(t.__name__, t.__struct_fields__) for t in _PACKED]).encode()) & 0x7FFF

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
ABSENT = Raw(b"null")
"""Stands for a payload or output that was not read along; known by its identity."""

# --- A job ---------------------------------------------------------------------------------------
_PHASES: tuple[type[Phase], ...] = (Pending, Leased, Running, Waiting, Settled)
_PHASE_CODES: dict[type, int] = {phase: code for code, phase in enumerate(_PHASES)}
_R = {name: place for place, name in enumerate(JobRequested.__struct_fields__)}
_R_PAYLOAD, _R_RETRY, _R_REF = _R["payload"], _R["retry"], _R["payload_ref"]
_S = {name: place for place, name in enumerate(Step.__struct_fields__)}
_S_PHASE, _S_FAILURE, _S_PROGRESS = _S["phase"], _S["failure"], _S["progress"]
_J = {name: place for place, name in enumerate(Job.__struct_fields__)}
_J_REQUEST, _J_STEPS, _J_CANCEL, _J_RESULT = _J["request"], _J["steps"], _J["cancel"], _J["result"]
_DEFAULT_RETRY = Retry()


def pack_job(job: Job) -> bytes:
    """Without payload and output. 3-4 us on the reference machine, 160-180 bytes."""
    return _encode(_job_fields(job))


def _job_fields(job: Job) -> list[Any]:
    fields = list(astuple(job))
    asked = job.request
    request = list(astuple(asked))
    request[0] = request[_R_PAYLOAD] = None
    if asked.queue == queue_in(asked.job_id):
        request[1] = None
    retry = asked.retry
    request[_R_RETRY] = None if retry == _DEFAULT_RETRY else astuple(retry)
    if asked.payload_ref is not None:
        request[_R_REF] = astuple(asked.payload_ref)
    while request[-1] is None:
        request.pop()
    fields[_J_REQUEST] = request
    fields[_J_STEPS] = [_step_fields(step) for step in job.steps]
    if job.cancel is not None:
        fields[_J_CANCEL] = astuple(job.cancel)
    if job.result is not None:
        fields[_J_RESULT] = _result_fields(job.result)
    fields.append(LAYOUT)
    return fields


def _step_fields(step: Step) -> list[Any]:
    fields = list(astuple(step))
    phase = step.phase
    held = list(astuple(phase))
    if type(held[0]) is Lease:
        held[0] = astuple(held[0])
    fields[_S_PHASE] = (_PHASE_CODES[type(phase)], *held)
    if step.failure is not None:
        fields[_S_FAILURE] = _failure_fields(step.failure)
    if step.progress is not None:
        fields[_S_PROGRESS] = astuple(step.progress)
    return fields


def _failure_fields(failure: Failure) -> tuple[Any, ...]:
    *fields, details = astuple(failure)
    return (*fields, None if details is None else bytes(details))


def _result_fields(result: Result) -> tuple[Any, ...]:
    ref = result.output_ref
    return (
        bytes.fromhex(result.output_hash) if _is_hash(result.output_hash) else result.output_hash,
        result.attempt,
        result.output is not None,
        None if ref is None else astuple(ref),
    )


def _is_hash(text: str) -> bool:
    if len(text) != 64 or not text.isascii():
        return False
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False


def unpack_job(job_id: str, state: bytes, payload: bytes | None, output: bytes | None) -> Job:
    """Payload and output that are None were not read along: `ABSENT` stands for them.

    Raises `StoredByAnotherVersion`.
    """
    fields = _decode(state)
    if fields.pop() != LAYOUT:
        raise StoredByAnotherVersion
    request = fields[_J_REQUEST]
    request += [None] * (len(_R) - len(request))
    request[0] = JobId(job_id)
    if request[1] is None:
        request[1] = queue_in(job_id)
    request[_R_PAYLOAD] = ABSENT if payload is None else Raw(payload)
    packed_retry = request[_R_RETRY]
    request[_R_RETRY] = _DEFAULT_RETRY if packed_retry is None else _retry(packed_retry)
    if request[_R_REF] is not None:
        request[_R_REF] = Ref(*request[_R_REF])
    fields[_J_REQUEST] = JobRequested(*request)
    fields[_J_STEPS] = tuple([_step(step) for step in fields[_J_STEPS]])
    if fields[_J_CANCEL] is not None:
        fields[_J_CANCEL] = Cancel(*fields[_J_CANCEL])
    if fields[_J_RESULT] is not None:
        fields[_J_RESULT] = _result(fields[_J_RESULT], output)
    end = fields[_J["end"]]
    if end is not None:
        fields[_J["end"]] = Status(end)
    return Job(*fields)


def queue_in(job_id: str) -> QueueName:
    """The queue that a job's id names: all before its last dot."""
    return QueueName(job_id.rpartition(".")[0])


def _retry(fields: list[Any]) -> Retry:
    return Retry(*[tuple(field) if isinstance(field, list) else field for field in fields])


def _step(fields: list[Any]) -> Step:
    code, *held = fields[_S_PHASE]
    if isinstance(held[0], list):
        held[0] = Lease(*held[0])
    if code == _SETTLED:
        held[0] = Status(held[0])
    fields[_S_PHASE] = _PHASES[code](*held)
    if fields[_S_FAILURE] is not None:
        *words, details = fields[_S_FAILURE]
        fields[_S_FAILURE] = Failure(*words, None if details is None else Raw(details))
    if fields[_S_PROGRESS] is not None:
        fields[_S_PROGRESS] = Progress(*fields[_S_PROGRESS])
    return Step(*fields)


_SETTLED = _PHASE_CODES[Settled]


def _result(fields: list[Any], output: bytes | None) -> Result:
    digest, attempt, inline, ref = fields
    return Result(
        digest.hex() if isinstance(digest, bytes) else digest,
        attempt,
        (ABSENT if output is None else Raw(output)) if inline else None,
        None if ref is None else Ref(*ref),
    )


# --- Its history ---------------------------------------------------------------------------------
Packed = tuple[Any, ...]
"""One event: its offset, its type's code (an unknown type's name), then its fields."""
Group = list[Any]
"""The events of one entry on one job: at, actor, cause, correlation, hash, then `Packed` ones.
The correlation is None where it is the job's id; the hash is empty unless the last event here is
the entry's last record."""
GROUP_HEAD = 5

_HISTORY: tuple[type[JobEvent | LeasesExtended], ...] = (*JOB_EVENTS, LeasesExtended)
CODES: dict[type, int] = {kind: code for code, kind in enumerate(_HISTORY)}
EXTENDED = CODES[LeasesExtended]


def _plain(offset: int, event: Any) -> Packed:
    return (offset, CODES[type(event)], *astuple(event)[1:])


def _requested(offset: int, _: JobRequested) -> Packed:
    return (offset, CODES[JobRequested])


def _failed(offset: int, event: AttemptFailed) -> Packed:
    _, *fields, details = astuple(event)
    return (offset, CODES[AttemptFailed], *fields, None if details is None else bytes(details))


def _succeeded(offset: int, event: JobSucceeded) -> Packed:
    """`output` becomes whether there is one."""
    ref = None if event.output_ref is None else astuple(event.output_ref)
    digest = event.output_hash
    return (
        *(offset, CODES[JobSucceeded], event.step, event.fence, event.attempt),
        *(bytes.fromhex(digest) if _is_hash(digest) else digest, event.output is not UNSET, ref),
    )


PACKERS: dict[type, tuple[int, Callable[[int, Any], Packed] | None]] = {
    kind: (CODES[kind], None) for kind in JOB_EVENTS
}
"""None: offset, code and all fields but the job's id, as they are."""
PACKERS[JobRequested] = (CODES[JobRequested], _requested)
PACKERS[AttemptFailed] = (CODES[AttemptFailed], _failed)
PACKERS[JobSucceeded] = (CODES[JobSucceeded], _succeeded)


def pack_event(offset: int, event: JobEvent) -> Packed:
    _, packer = PACKERS[type(event)]
    return packer(offset, event) if packer else _plain(offset, event)


def pack_extension(offset: int, event: LeasesExtended, extension: Extension) -> Packed:
    return (
        *(offset, EXTENDED, event.runtime_id),
        *(extension.step, extension.fence, extension.until),
    )


def pack_unknown(offset: int, event: Unknown) -> Packed:
    return (offset, event.type, event.data)


def pack_groups(groups: Sequence[Group]) -> bytes:
    return _encode(groups)


class Logical(msgspec.Struct, frozen=True, gc=False):
    """One event of a job's history, unpacked."""

    seq: int
    event: Event
    at: Micros
    actor: str
    cause: str
    correlation: str
    offset: int
    hash: bytes


def unpack_groups(job: Job, first_seq: int, packed: bytes) -> Iterator[Logical]:
    """`job` is the job as it is now: it holds what its history does not store again."""
    seq = first_seq
    for group in _decode(packed):
        at, actor, cause, correlation, digest = group[:GROUP_HEAD]
        last = len(group) - 1
        for place in range(GROUP_HEAD, len(group)):
            offset, code, *fields = group[place]
            yield Logical(
                seq=seq,
                event=_event(job, code, fields),
                at=Micros(at),
                actor=actor,
                cause=cause,
                correlation=job.id if correlation is None else correlation,
                offset=offset,
                hash=digest if place == last else b"",
            )
            seq += 1


def _event(job: Job, code: int | str, fields: list[Any]) -> Event:
    if isinstance(code, str):
        return Unknown(code, job.id, fields[0])
    kind = _HISTORY[code]
    if kind is JobRequested:
        return job.request
    if kind is LeasesExtended:
        runtime_id, step, fence, until = fields
        extension = Extension(job.id, step, fence, until)
        return LeasesExtended(job.request.queue, runtime_id, (extension,))
    if kind is AttemptFailed and fields[-1] is not None:
        fields[-1] = Raw(fields[-1])
    if kind is JobSucceeded:
        return _unpack_success(job, fields)
    return kind(job.id, *fields)  # type: ignore[call-arg, arg-type]


def _unpack_success(job: Job, fields: list[Any]) -> JobSucceeded:
    step, fence, attempt, digest, inline, ref = fields
    output = job.result.output if job.result else None
    return JobSucceeded(
        job.id,
        step,
        fence,
        attempt,
        digest.hex() if isinstance(digest, bytes) else digest,
        (UNSET if output is None else output) if inline else UNSET,
        None if ref is None else Ref(*ref),
    )


def json_of(event: Event) -> Raw:
    """The event's data as its record carries it."""
    return Raw(event.data if isinstance(event, Unknown) else _json(event))


_json = msgspec.json.Encoder().encode


# --- What no rule of this version writes ---------------------------------------------------------
INT_MAX = 2**63 - 1


def tamed(value: Any) -> Any:
    """The value with integers and texts that msgpack can hold; for history that is broken."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return max(-INT_MAX, min(INT_MAX, value))
    if isinstance(value, dict):
        return {tamed(key): tamed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [tamed(item) for item in value]
    return value


def pack_job_tamed(job: Job) -> bytes:
    return _encode(tamed(_job_fields(job)))


def pack_groups_tamed(groups: Sequence[Group]) -> bytes:
    return _encode(tamed(groups))

