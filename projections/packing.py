"""A job and its history as few bytes: fields by position, in msgpack.

How each type is packed follows from its declaration, so a field that a type gains is packed, too.
Rows carry `LAYOUT`, a digest of all that: a version with other fields refuses them instead of
misreading. What is stored once is not packed again: a job's id is its row's key, its payload and
output have columns of their own. What was asked stands, once and for ever, in the first row of the
history; what changes stands in the job's row, or follows from the history.

A stretch of history is what each of some flushes told of the job, each with its length before it
and the newest first: SQL puts stretches together by `newer || older`. Each stretch is known by the
number of its last event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from struct import Struct as Bytes
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, inspect
from msgspec.structs import astuple, replace

from ledger.domain.events import (
    JOB_EVENTS,
    Event,
    Extension,
    JobEvent,
    JobRequested,
    JobSucceeded,
    LeasesExtended,
    Unknown,
)
from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job, Result


class StoredByAnotherVersion(Exception):
    """A row was packed by a version with other fields: rebuild the views with this one."""


ABSENT: Final = Raw(b"null")
"""Stands for a payload or output that was not read along; known by its identity."""

APART = frozenset({(JobRequested, "payload"), (Result, "output"), (JobSucceeded, "output")})
"""Packed as whether it is there."""
HEX = frozenset({"output_hash", "key_digest", "content_digest", "sha256"})
"""Packed as bytes where they are hex digits."""

Pack = Callable[[Any], Any]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


# --- From declarations to functions --------------------------------------------------------------
class _Codec:
    """Of one struct type. Fields that msgpack holds as they are cost nothing extra."""

    def __init__(self, kind: type[Struct], skip: int = 0) -> None:
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        self._kind = kind
        self._skip = skip
        """So many leading fields are not packed: the caller has them."""
        self._packs: list[tuple[int, Pack]] = []
        self._unpacks: list[tuple[int, Pack]] = []
        self._filled: list[tuple[int, Struct]] = []
        """Values that None stands for."""
        self.shape: list[Any] = []
        for place, field in enumerate(info.fields[skip:]):
            pack, unpack = _functions(kind, field)
            if pack:
                self._packs.append((place, pack))
            if unpack:
                self._unpacks.append((place, unpack))
            if isinstance(field.default, Struct):
                self._filled.append((place, field.default))
            self.shape.append((field.name, _shape(field.type)))

    @property
    def is_plain(self) -> bool:
        """Whether msgpack holds its fields as they are."""
        return not self._packs

    def pack(self, value: Struct) -> list[Any]:
        fields = list(astuple(value)[self._skip :])
        for place, pack in self._packs:
            field = fields[place]
            if field is not None:
                fields[place] = pack(field)
        return fields

    def unpack(self, fields: list[Any], *leading: Any) -> Any:
        for place, unpack in self._unpacks:
            field = fields[place]
            if field is not None:
                fields[place] = unpack(field)
        for place, value in self._filled:
            if fields[place] is None:
                fields[place] = value
        return self._kind(*leading, *fields)


def _functions(kind: type[Struct], field: inspect.Field) -> tuple[Pack | None, Pack | None]:
    if (kind, field.name) in APART:
        return _is_there, _absent
    if field.name in HEX:
        return _pack_hex, _unpack_hex
    pack, unpack = _functions_of(field.type)
    if isinstance(default := field.default, Struct) and (pack_other := pack):
        return lambda value: None if value == default else pack_other(value), unpack
    return pack, unpack


def _functions_of(declared: inspect.Type) -> tuple[Pack | None, Pack | None]:
    match declared:
        case inspect.StructType(cls=cls):
            codec = _codec(cls)
            return codec.pack, codec.unpack
        case inspect.EnumType(cls=cls):
            return None, _enum(cls)
        case inspect.RawType():
            return _pack_raw, _unpack_raw
        case inspect.VarTupleType(item_type=item):
            return _pack_items(_functions_of(item)[0]), _unpack_items(_functions_of(item)[1])
        case inspect.UnionType(types=types):
            return _of_union([t for t in types if not isinstance(t, inspect.NoneType)])
        case inspect.DictType(key_type=key, value_type=value):
            if _functions_of(key) != (None, None) or _functions_of(value) != (None, None):
                raise TypeError(f"no way to pack {declared}")
            return None, None
        case (
            inspect.IntType()
            | inspect.StrType()
            | inspect.FloatType()
            | inspect.BoolType()
            | inspect.BytesType()
            | inspect.LiteralType()
        ):
            return None, None
        case _:
            raise TypeError(f"no way to pack {declared}")


def _of_union(types: list[inspect.Type]) -> tuple[Pack | None, Pack | None]:
    if len(types) == 1:
        return _functions_of(types[0])
    if not all(isinstance(t, inspect.StructType) for t in types):
        return (None, None) if all(_functions_of(t) == (None, None) for t in types) else _no(types)
    kinds = [t.cls for t in types if isinstance(t, inspect.StructType)]
    packs = {kind: (code, _codec(kind).pack) for code, kind in enumerate(kinds)}
    unpacks = [_codec(kind).unpack for kind in kinds]

    def pack(value: Struct) -> list[Any]:
        code, pack_one = packs[type(value)]
        return [code, *pack_one(value)]

    def unpack(fields: list[Any]) -> Any:
        return unpacks[fields[0]](fields[1:])

    return pack, unpack


def _no(types: list[inspect.Type]) -> tuple[None, None]:
    raise TypeError(f"no way to pack one of {types}")


def _is_there(value: Any) -> bool:
    return value is not UNSET


def _absent(there: bool) -> Any:
    return ABSENT if there else UNSET


def _pack_raw(value: Any) -> Any:
    return False if value is UNSET else bytes(value)


def _unpack_raw(value: Any) -> Any:
    return UNSET if value is False else Raw(value)


def _pack_hex(text: str) -> str | bytes:
    if len(text) % 2 == 0 and text.isascii():
        try:
            digest = bytes.fromhex(text)
        except ValueError:
            return text
        if digest.hex() == text:
            return digest
    return text


def _unpack_hex(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.hex()


def _enum(kind: type[Enum]) -> Pack:
    by_value = {member.value: member for member in kind}
    return by_value.__getitem__


def _pack_items(pack: Pack | None) -> Pack | None:
    return None if pack is None else lambda items: [pack(item) for item in items]


def _unpack_items(unpack: Pack | None) -> Pack:
    if unpack is None:
        return tuple
    return lambda items: tuple([unpack(item) for item in items])


def _shape(declared: inspect.Type) -> Any:
    """What a field is made of, as far as packing depends on it."""
    match declared:
        case inspect.StructType(cls=cls):
            return [cls.__name__, *_codec(cls).shape]
        case inspect.UnionType(types=types):
            return [_shape(one) for one in types]
        case inspect.VarTupleType(item_type=item):
            return ["*", _shape(item)]
        case _:
            return type(declared).__name__


_codecs: dict[type, _Codec] = {}


def _codec(kind: type[Struct]) -> _Codec:
    if kind not in _codecs:
        _codecs[kind] = _Codec(kind)
    return _codecs[kind]


# --- A job ---------------------------------------------------------------------------------------
_STATE = _Codec(Job, skip=1)
_REQUEST = _codec(JobRequested)
assert Job.__struct_fields__[0] == "request"
_ID = JobRequested.__struct_fields__.index("job_id")


def pack_request(asked: JobRequested) -> bytes:
    """Without id and payload. Never changes."""
    fields = _REQUEST.pack(asked)
    fields[_ID] = None
    return _encode(fields)


def pack_state(job: Job) -> bytes:
    """What changes of a job, without its output."""
    return _encode(_STATE.pack(job))


def unpack_request(job_id: str, packed: bytes, payload: bytes | None) -> JobRequested:
    """A payload that is None was not read along: `ABSENT` stands for it."""
    fields = _decode(packed)
    request: JobRequested = _REQUEST.unpack(fields)
    raw = ABSENT if payload is None else Raw(payload)
    return replace(request, job_id=JobId(job_id), payload=raw)


def unpack_job(request: JobRequested, state: bytes, output: bytes | None) -> Job:
    """An output that is None was not read along: `ABSENT` stands for it, if there is one."""
    job: Job = _STATE.unpack(_decode(state), request)
    result = job.result
    if result is None or result.output is UNSET:
        return job
    return job if output is None else replace(job, result=replace(result, output=Raw(output)))


# --- Its history ---------------------------------------------------------------------------------
Group = list[Any]
"""The events of one entry on one job: at, actor, cause, correlation, hash, then one list an event:
its offset, its type's code (an unknown type's name), its fields. The correlation is None where it
is the job's id; the hash is empty unless the last event here is the entry's last record."""
GROUP_HEAD = 5

HISTORY: tuple[type[JobEvent | LeasesExtended], ...] = (*JOB_EVENTS, LeasesExtended)
CODES: dict[type, int] = {kind: code for code, kind in enumerate(HISTORY)}
_REQUESTED = CODES[JobRequested]
_EXTENDED = CODES[LeasesExtended]
_EVENTS: dict[type, _Codec] = {kind: _Codec(kind, skip=1) for kind in JOB_EVENTS}
_EXTENSION = _Codec(Extension, skip=1)


def _packer(kind: type[JobEvent]) -> Callable[[int, Any], list[Any]]:
    code, pack = CODES[kind], _EVENTS[kind].pack
    if kind is JobRequested:
        return lambda offset, event: [offset, code]
    if _EVENTS[kind].is_plain:
        return lambda offset, event: [offset, code, *astuple(event)[1:]]
    return lambda offset, event: [offset, code, *pack(event)]


PACKERS: dict[type, Callable[[int, Any], list[Any]]] = {kind: _packer(kind) for kind in JOB_EVENTS}


def pack_extension(offset: int, event: LeasesExtended, extension: Extension) -> list[Any]:
    return [offset, _EXTENDED, event.runtime_id, *_EXTENSION.pack(extension)]


def pack_unknown(offset: int, event: Unknown) -> list[Any]:
    return [offset, event.type, event.data]


def pack_groups(groups: Sequence[Group]) -> bytes:
    """What one flush tells of a job, as a stretch of its history."""
    packed = _encode(groups)
    size = len(packed)
    return (_SHORT[size] if size < _LONG else _long(_LONG, size)) + packed


_LONG = 255
"""Stands before a length that takes four bytes."""
_SHORT = [bytes((size,)) for size in range(_LONG)]
_long = Bytes(">BI").pack
_long_size = Bytes(">I").unpack_from


def _groups(stretch: bytes) -> list[Group]:
    """The oldest first."""
    told: list[list[Group]] = []
    place = 0
    while place < len(stretch):
        size = stretch[place]
        place += 1
        if size == _LONG:
            (size,) = _long_size(stretch, place)
            place += 4
        told.append(_decode(stretch[place : place + size]))
        place += size
    return [group for groups in reversed(told) for group in groups]


def _first_seq(last_seq: int, groups: Sequence[Group]) -> int:
    return last_seq + 1 - sum(len(group) - GROUP_HEAD for group in groups)


LAYOUT = crc32(
    repr(
        (
            "stretches",
            _STATE.shape,
            _REQUEST.shape,
            [(kind.__name__, _EVENTS[kind].shape) for kind in JOB_EVENTS],
            _EXTENSION.shape,
        )
    ).encode()
)
LAYOUT = LAYOUT - (1 << 32) if LAYOUT >= 1 << 31 else LAYOUT
"""Fits an integer of Postgres."""


class Logical(Struct, frozen=True, gc=False):
    """One event of a job's history, unpacked."""

    seq: int
    event: Event
    at: Micros
    actor: str
    cause: str
    correlation: str
    offset: int
    hash: bytes


def raw_events(last_seq: int, stretch: bytes) -> Iterator[tuple[Any, ...]]:
    """The same as plain values, without the job, to compare histories however they were cut."""
    groups = _groups(stretch)
    seq = _first_seq(last_seq, groups)
    for group in groups:
        *head, digest = group[:GROUP_HEAD]
        last = len(group) - 1
        for place in range(GROUP_HEAD, len(group)):
            yield (seq, *head, digest if place == last else b"", group[place])
            seq += 1


EVERYWHERE: Final = range(1 << 62)
"""All offsets."""


def unpack_groups(
    job: Job, last_seq: int, stretch: bytes, offsets: range = EVERYWHERE
) -> Iterator[Logical]:
    """`job` is the job as it is now: it holds what its history does not store again."""
    asked = job.request
    output = job.result.output if job.result else UNSET
    groups = _groups(stretch)
    seq = _first_seq(last_seq, groups) - 1
    for group in groups:
        at, actor, cause, correlation, digest = group[:GROUP_HEAD]
        last = len(group) - 1
        for place in range(GROUP_HEAD, len(group)):
            offset, code, *fields = group[place]
            seq += 1
            if offset not in offsets:
                continue
            yield Logical(
                seq=seq,
                event=_event(asked, output, code, fields),
                at=Micros(at),
                actor=actor,
                cause=cause,
                correlation=asked.job_id if correlation is None else correlation,
                offset=offset,
                hash=digest if place == last else b"",
            )


def unpack_events(
    asked: JobRequested, output: Raw | UnsetType, stretch: bytes
) -> Iterator[tuple[Event, Micros]]:
    """No more than what is folded: each event and its instant."""
    for group in _groups(stretch):
        at = Micros(group[0])
        for _, code, *fields in group[GROUP_HEAD:]:
            yield _event(asked, output, code, fields), at


def _event(
    asked: JobRequested, output: Raw | UnsetType, code: int | str, fields: list[Any]
) -> Event:
    if isinstance(code, str):
        return Unknown(code, asked.job_id, fields[0])
    if code == _REQUESTED:
        return asked
    if code == _EXTENDED:
        extension: Extension = _EXTENSION.unpack(fields[1:], asked.job_id)
        return LeasesExtended(asked.queue, fields[0], (extension,))
    event: Event = _EVENTS[HISTORY[code]].unpack(fields, asked.job_id)
    if isinstance(event, JobSucceeded) and event.output is not UNSET:
        return replace(event, output=output)
    return event


def json_of(event: Event) -> Raw:
    """The event's data as its record carries it."""
    return Raw(event.data if isinstance(event, Unknown) else _json(event))


_json = msgspec.json.Encoder().encode
