"""Decoders of structs with `Raw` fields, freed from the record that they were cut from.

A `Raw` field points into the whole record's bytes and would keep all of them alive for as long as
a job's payload is held. And msgspec decodes `Raw | None` to None only: a value that is there would
be an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import force_setattr

S = TypeVar("S", bound=Struct)


@cache
def raw_fields(kind: type[Struct]) -> tuple[str, ...]:
    """Names of the fields of `kind` that may hold a `Raw`."""
    return tuple(
        name
        for name, hint in get_type_hints(kind).items()
        if name in kind.__struct_fields__ and (hint is Raw or Raw in get_args(hint))
    )


def detach(struct: Struct, names: tuple[str, ...]) -> None:
    """Give the fields bytes of their own, of exact size."""
    for name in names:
        raw = getattr(struct, name)
        if type(raw) is Raw:
            force_setattr(struct, name, raw.copy())


def decoder_of(kind: type[S]) -> Callable[[bytes], S]:
    """Decodes JSON to a `kind` whose `Raw` fields have bytes of their own."""
    names = raw_fields(kind)
    if not names:
        return msgspec.json.Decoder(kind).decode
    hints = get_type_hints(kind)
    if any(type(None) in get_args(hints[name]) for name in names):
        decode = _through_twin(kind, names)
    else:
        decode = msgspec.json.Decoder(kind).decode

    def detached(data: bytes) -> S:
        struct = decode(data)
        for name in names:
            raw = getattr(struct, name)
            if type(raw) is Raw:
                force_setattr(struct, name, raw.copy())
        return struct

    return detached


def _through_twin(kind: type[S], names: tuple[str, ...]) -> Callable[[bytes], S]:
    """By way of a struct that says `Raw | UnsetType` where `kind` says `Raw | None`."""
    hints = get_type_hints(kind, include_extras=True)
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        if field.name in names and not field.required:
            fields.append((field.name, Raw | UnsetType, UNSET))
        elif field.required:
            fields.append((field.name, hints[field.name]))
        else:
            fields.append((field.name, hints[field.name], field.default))
    decode = msgspec.json.Decoder(msgspec.defstruct(f"{kind.__name__}Twin", fields)).decode

    def decoded(data: bytes) -> S:
        found: Any = msgspec.structs.asdict(decode(data))
        return kind(**{name: None if value is UNSET else value for name, value in found.items()})

    return decoded
