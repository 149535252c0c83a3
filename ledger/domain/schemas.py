"""JSON Schema 2020-12: what payloads and outputs of a template must be.

What the library leaves open is decided here: formats that it knows are asserted, others are notes;
patterns run in linear time (no look-around, no back-references); a schema refers to itself only,
so nothing is ever fetched. A check is bounded: the library looks at a place once for each way that
leads to it, which 25 lines of references can make a billion, so such schemas are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, TypeGuard, final
from urllib.parse import unquote

import jsonschema_rs
import msgspec
from msgspec import Raw, Struct

from ledger.domain.strict_json import MalformedJson, check, escaped
from ledger.domain.wrong import Wrong

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_BYTES_MAX = 65_536
UNFOLDED_MAX = 5_000
"""Schemas in a schema, each counted once for every way of references that leads to it."""
REFERENCES_DEEP_MAX = 100
"""References behind one another; the library follows them on its stack."""
PATTERNS_MAX = 100
PATTERN_BYTES_MAX = 524_288
"""Of a pattern as the engine holds it: a dozen Unicode classes, and 4 ms to compile."""
COMPILED_MAX = 256
"""Kept; one of ordinary size has some 20 KiB, the largest with all its patterns 40 MiB."""
ERRORS_MAX = 20
MESSAGE_MAX = 160
POINTER_MAX = 256
"""Characters of a pointer; beyond it the last ancestor with a shorter one is named."""
WORK_MAX = 50_000
"""Errors that the library may collect (5 us each) before it shows the first one."""

_VALUE = "the value"
_ONE = (
    *("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("dependencies", "dependentSchemas", "patternProperties", "properties")
_STORES = ("$defs", "definitions")
_REFERENCES = ("$ref", "$dynamicRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_QUOTED = ("const", "enum", "not", "pattern")
"""Keywords whose content the library writes into each of their errors."""


@final
class Schema(Struct, frozen=True, gc=False):
    """A schema that was found good. May be asked from several threads."""

    validator: jsonschema_rs.Draft202012Validator
    weight: int
    """Errors of one value at most, in sizes of an ordinary one."""
    loops: int
    """References that lead back into what they are in."""
    alternatives: bool
    """Has `anyOf` or `oneOf`, whose one error carries those of all branches."""

    def errors(self, instance: object, many: int = ERRORS_MAX) -> tuple[Wrong, ...]:
        """What of a JSON value (or its `Raw` bytes) does not meet the schema; none: it does.

        Pointers are relative to the value, messages do not quote it. All errors are looked for
        in a value of ordinary size, the first in a large one; if even that could take for ever,
        only the value as a whole is named. Measured for 200 B: 0.4 us, and 1 us to decode `Raw`.
        """
        value = msgspec.json.decode(instance) if isinstance(instance, Raw) else instance
        if self.validator.is_valid(value):
            return ()
        return tuple(islice(self._errors(value), many))

    def _errors(self, value: object) -> Iterator[Wrong]:
        if self._work(value) <= WORK_MAX:
            for error in self.validator.iter_errors(value):
                yield from _told(error)
        elif self.alternatives or self.loops > 1:
            yield Wrong("", "does not meet the schema, and is too large to say where")
        else:
            try:
                self.validator.validate(value)
            except jsonschema_rs.ValidationError as error:
                yield from _told(error)

    def _work(self, value: object) -> int:
        """How many errors there could be; more than `WORK_MAX` is not counted further."""
        places, depth = _extent(value, WORK_MAX // self.weight + 1)
        ways = self.loops ** (depth - 1) if self.loops > 1 else 1
        return places * self.weight * ways


def compiled(schema: bytes | Raw) -> Schema | Wrong:
    """The same bytes are compiled once (0.1 ms for a small one). `Wrong` points into the schema."""
    data = bytes(schema)
    if len(data) > SCHEMA_BYTES_MAX:
        return Wrong("", f"a schema has {SCHEMA_BYTES_MAX} bytes of JSON at most")
    return _compiled(data)


@lru_cache(maxsize=COMPILED_MAX)
def _compiled(data: bytes) -> Schema | Wrong:
    try:
        schema: Any = check(data)
    except MalformedJson as error:
        return Wrong("", str(error))
    if isinstance(schema, dict) and schema.get("$schema", DIALECT) not in (DIALECT, f"{DIALECT}#"):
        return Wrong("/$schema", f"only {DIALECT} is spoken")
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        return next(_told(error))
    parts = list(_parts(schema))
    known = {f"#{pointer}": part for pointer, part in parts if isinstance(part, dict)}
    known |= {f"#{part[key]}": part for part in known.values() for key in _ANCHORS if key in part}
    if wrong := _wrong_part(parts, known):
        return wrong
    extent = _Extent(schema, known)
    if extent.is_too_large:
        return Wrong("", "its references are too many, or too deep, to be followed in bounded time")
    try:
        validator = jsonschema_rs.Draft202012Validator(
            schema,
            validate_formats=True,
            offline=True,
            mask=_VALUE,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES_MAX),
        )
    except jsonschema_rs.ValidationError as error:
        return next(_told(error))
    alternatives = any("anyOf" in part or "oneOf" in part for part in known.values())
    return Schema(validator, max(extent.weight, 1), extent.loops, alternatives)


# --- The parts of a schema -----------------------------------------------------------------------
def _parts(schema: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """The schema and all schemas in it, with their places; what is only kept for others too."""
    yield pointer, schema
    for key, below in _below(schema, (*_MAPS, *_STORES)):
        yield from _parts(below, pointer + key)


def _below(schema: Any, maps: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return
    for key in _ONE:
        if key in schema:
            yield f"/{key}", schema[key]
    for key in _LISTS:
        for index, below in enumerate(schema.get(key, ())):
            yield f"/{key}/{index}", below
    for key in maps:
        for name, below in schema.get(key, {}).items():
            if not isinstance(below, list):  # `dependencies` may list names.
                yield f"/{key}/{escaped(name)}", below


def _wrong_part(parts: list[tuple[str, Any]], known: dict[str, Any]) -> Wrong | None:
    patterns = 0
    for pointer, part in parts:
        if not isinstance(part, dict):
            continue
        if pointer and "$id" in part:
            return Wrong(f"{pointer}/$id", "only the whole schema can have an $id")
        for key in _REFERENCES:
            if key in part and _key(part[key]) not in known:
                return Wrong(f"{pointer}/{key}", f"{part[key][:100]}: no schema of this one")
        patterns += ("pattern" in part) + len(part.get("patternProperties", ()))
    if patterns > PATTERNS_MAX:
        return Wrong("", f"more than {PATTERNS_MAX} patterns")
    return None


def _key(reference: str) -> str:
    """A reference as `known` has it: its fragment may be percent-encoded."""
    return unquote(reference) if reference.startswith("#") else reference


class _Extent:
    """How many schemas there are once every reference is written out.

    One that leads back into what it is in is not followed: the library remembers its answer.
    """

    def __init__(self, schema: Any, known: dict[str, Any]) -> None:
        self.known = known
        self.loops = 0
        self.is_too_large = False
        self._sizes: dict[int, tuple[int, int, int]] = {}
        self._above: set[int] = set()
        _, self.weight, self.loops = self._of(schema)

    def _of(self, schema: Any) -> tuple[int, int, int]:
        """Its schemas, their weight in errors, and how many references lead back."""
        if not isinstance(schema, dict):
            return 1, 1, 0
        me = id(schema)
        if me in self._above:
            return 1, 1, 1
        if (sizes := self._sizes.get(me)) is not None:
            return sizes
        if self.is_too_large or len(self._above) > REFERENCES_DEEP_MAX:
            self.is_too_large = True
            return 1, 1, 0
        self._above.add(me)
        count, weight, loops = 1, 1 + _quoted_bytes(schema) // 200, 0
        belows = [below for _, below in _below(schema, _MAPS)]
        belows += [self.known[_key(schema[key])] for key in _REFERENCES if key in schema]
        for below in belows:
            more, heavier, back = self._of(below)
            count, weight, loops = count + more, weight + heavier, loops + back
        self._above.remove(me)
        self.is_too_large |= count > UNFOLDED_MAX
        self._sizes[me] = count, weight, loops
        return count, weight, loops


def _quoted_bytes(schema: dict[str, Any]) -> int:
    return sum(len(msgspec.json.encode(schema[key])) for key in _QUOTED if key in schema)


def _extent(value: object, places_max: int) -> tuple[int, int]:
    """How many values lie in a value, itself included, and how deep; no more than `places_max`."""
    level, places, depth = [value], 0, 0
    while level and places < places_max:
        places += len(level)
        depth += 1
        level = [
            below
            for one in level
            if isinstance(one, dict | list)
            for below in (one.values() if isinstance(one, dict) else one)
        ]
    return places, depth


# --- Errors --------------------------------------------------------------------------------------
def _told(error: jsonschema_rs.ValidationError) -> Iterator[Wrong]:
    path, kind = error.instance_path, error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        yield Wrong(_pointer([*path, kind.property]), "required")
    elif _names_keys(kind):
        for name in kind.unexpected:
            yield Wrong(_pointer([*path, name]), "is not allowed here")
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.FalseSchema):
        yield Wrong(_pointer(path), "is not allowed here")
    elif isinstance(kind, jsonschema_rs.ValidationErrorKind.Format) and kind.format == "regex":
        message = "no pattern: look-around and back-references are not known, and size is bounded"
        yield Wrong(_pointer(path), message)
    else:
        short = error.message if len(error.message) <= MESSAGE_MAX else _cut(error.message)
        yield Wrong(_pointer(path), short)


_Unexpected = (
    jsonschema_rs.ValidationErrorKind.AdditionalProperties
    | jsonschema_rs.ValidationErrorKind.UnevaluatedProperties
)


def _names_keys(kind: jsonschema_rs.ValidationErrorKind) -> TypeGuard[_Unexpected]:
    return isinstance(kind, _Unexpected)


def _cut(message: str) -> str:
    return message[: MESSAGE_MAX - 1] + "…"


def _pointer(path: list[str | int]) -> str:
    pointer = ""
    for part in path:
        longer = f"{pointer}/{escaped(str(part))}"
        if len(longer) > POINTER_MAX:
            break
        pointer = longer
    return pointer
