"""What a request says, decoded strictly: bodies, query parameters, the headers that matter.

Nothing is guessed: an unknown field, an unknown parameter, a key that stands twice, a number that
no store can keep are errors that name their place.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from types import NoneType
from typing import Any, TypeVar, get_args
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from api.problems import Wrong, refused
from ledger.domain.ids import INLINE_BYTES_MAX
from ledger.domain.strict_json import (
    MalformedJson,
    UnsafeInteger,
    check,
    check_integers,
    check_text,
    escaped,
    may_hold_unsafe_integer,
)
from ledger.log.connection import COMMAND_BYTES_MAX

S = TypeVar("S", bound=Struct)

BODY_BYTES_MAX = COMMAND_BYTES_MAX
BODY_SECONDS = 10.0
"""In which a whole body must have arrived."""
LARGE_SECONDS = 60.0
"""The same, where it may be larger than a command."""
LARGE_KEYS_MAX = 1_000_000
"""In a body larger than a command."""
DETAILS_BYTES_MAX = 8_192
QUERY_PARAMETERS_MAX = 100
ERRORS_MAX = 20
"""Reported of one request."""
KEYS_TRIED_MAX = 64
"""Of a mapping in which the wrong key is looked for."""


# --- Bodies --------------------------------------------------------------------------------------
async def read_body(request: Request, bytes_max: int, turn: Callable[[], Awaitable[None]]) -> bytes:
    """All of it, or `Refused` for one that is too large, too slow or not JSON by its own word. One
    that is larger than a command waits for its `turn` first."""
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else 0
    if size > bytes_max:
        raise _too_large(bytes_max)
    is_large = size > BODY_BYTES_MAX
    if is_large:
        await turn()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS if bytes_max == BODY_BYTES_MAX else LARGE_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise _too_large(bytes_max)
                if len(body) > BODY_BYTES_MAX and not is_large:
                    is_large = True
                    await turn()
    except TimeoutError:
        raise refused("REQUEST_TIMEOUT") from None
    except ClientDisconnect:
        raise refused("REQUEST_TIMEOUT", "the client went away") from None
    if body:
        _check_media_type(request.headers.get("content-type"))
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise refused("UNSUPPORTED_MEDIA_TYPE", "send the body without a content encoding")
    return bytes(body)


def _too_large(bytes_max: int) -> Exception:
    return refused("PAYLOAD_TOO_LARGE", f"the body has more than {bytes_max} bytes")


def _check_media_type(text: str | None) -> None:
    if text is None:
        return
    media, _, parameters = text.partition(";")
    media = media.strip().lower()
    charset = parameters.replace(" ", "").lower()
    is_json = media == "application/json" or (
        media.startswith("application/") and media.endswith("+json")
    )
    if not is_json or ("charset=" in charset and "utf-8" not in charset):
        raise refused("UNSUPPORTED_MEDIA_TYPE", "send the body as application/json in UTF-8")


async def json_value(data: bytes) -> object:
    """The one strict parse, of a large body in a thread. Raises `Refused` with MALFORMED_JSON or
    the unsafe integer's place."""
    if len(data) <= BODY_BYTES_MAX:
        return _json_value(data)
    return await asyncio.to_thread(_json_value, data, bytes_max=len(data), keys_max=LARGE_KEYS_MAX)


def _json_value(data: bytes, **bounds: int) -> object:
    try:
        value = check(data, **bounds)
        if may_hold_unsafe_integer(data):
            check_integers(value)
    except MalformedJson as error:
        raise refused("MALFORMED_JSON", str(error)) from None
    except UnsafeInteger as error:
        wrong = Wrong(error.pointer, "an integer beyond ±(2^53-1)")
        raise refused("VALIDATION_FAILED", str(error), errors=(wrong,)) from None
    return value


def body_from(data: bytes, value: object, kind: type[S]) -> S:
    """`data` as a `kind`; `value` is what it holds, already checked."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        wrong = _wrongs(value, kind) or [Wrong(*_explained(str(error)))]
    detail = "; ".join(f"{one.pointer or 'the body'}: {one.message}" for one in wrong[:3])
    raise refused("VALIDATION_FAILED", detail, errors=wrong)


def inline_form(value: object, sent: msgspec.Raw) -> msgspec.Raw | None:
    """A payload or output as it fits the log: as it was sent, else without its blanks. None: it
    does not fit."""
    if len(memoryview(sent)) <= INLINE_BYTES_MAX:
        return sent
    short = msgspec.json.encode(value)
    return msgspec.Raw(short) if len(short) <= INLINE_BYTES_MAX else None


def checked_inline(value: object, name: str, sent: msgspec.Raw) -> msgspec.Raw:
    """For what has no other place than the log."""
    assert isinstance(value, dict)
    inline = inline_form(value[name], sent)
    if inline is None:
        raise too_large(name, f"{INLINE_BYTES_MAX} bytes of JSON fit")
    return inline


def too_large(name: str, bound: str) -> Exception:
    """PAYLOAD_TOO_LARGE of one field, to be raised."""
    return refused("PAYLOAD_TOO_LARGE", f"{name}: {bound}", errors=(Wrong(f"/{name}", bound),))


def check_details(details: msgspec.Raw) -> None:
    if len(memoryview(details)) > DETAILS_BYTES_MAX:
        message = f"more than {DETAILS_BYTES_MAX} bytes of JSON"
        raise refused("VALIDATION_FAILED", message, errors=(Wrong("/details", message),))


def _wrongs(value: object, kind: type[Struct]) -> list[Wrong]:
    """Everything that is wrong: the decoder stops at the first error, so what it names is taken
    out and it is asked again."""
    if not isinstance(value, dict):
        return []
    left = dict(value)
    wrongs: list[Wrong] = []
    while len(wrongs) < ERRORS_MAX:
        try:
            msgspec.json.decode(msgspec.json.encode(left), type=kind)
        except msgspec.ValidationError as error:
            pointer, message = _explained(str(error), left)
        else:
            break
        field = pointer[1:].partition("/")[0].replace("~1", "/").replace("~0", "~")
        if field in value and field not in left:
            break  # Missing only because it was wrong and taken out.
        if message.startswith("unknown field"):
            message += _did_you_mean(field, kind) if pointer.count("/") == 1 else ""
        wrongs.append(Wrong(pointer, message))
        if field not in left:
            break
        del left[field]
    return wrongs


def _did_you_mean(field: str, kind: type[Struct]) -> str:
    near = get_close_matches(field, kind.__struct_encode_fields__, n=1)
    return f"; did you mean {near[0]}?" if near else ""


_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `([^`]+)`")


def _explained(said: str, value: object = None) -> tuple[str, str]:
    """A message of msgspec's, with its `$.a[0].b`, as the JSON pointer `/a/0/b` and a message."""
    message, _, path = said.rpartition(" - at `")
    if not message:
        message, path = said, ""
    path = path.rstrip("`")
    of_key = path.startswith("key` in `")
    steps: list[str] = []
    for name, index in _STEP.findall(path.removeprefix("key` in `")):
        if index == "...":
            break
        steps.append(name or index)
    pointer = "".join(f"/{escaped(step)}" for step in steps)
    if of_key or "[...]" in path:
        pointer += _culprit(value, steps, of_key=of_key)
    if unknown := _UNKNOWN.search(message):
        return f"{pointer}/{escaped(unknown.group(1))}", "unknown field"
    if missing := _MISSING.search(message):
        return f"{pointer}/{escaped(missing.group(1))}", "required"
    return pointer, message.replace("`", "")


def _culprit(value: object, steps: Sequence[str], *, of_key: bool) -> str:
    """The pointer's last part: which label or header it is. msgspec does not say; only labels have
    bounds, so those are looked at here."""
    for step in steps:
        if not isinstance(value, dict):
            return ""
        value = value.get(step)
    if not isinstance(value, dict):
        return ""
    tried = list(value.items())[:KEYS_TRIED_MAX]
    if of_key:
        wrong = [key for key, _ in tried if not 1 <= len(key) <= 64]
    else:
        wrong = [key for key, item in tried if not isinstance(item, str)]
        wrong = wrong or [key for key, item in tried if len(item) > 256]
    return f"/{escaped(wrong[0])}" if wrong else ""


# --- Query parameters ----------------------------------------------------------------------------
class _Parameter(Struct, frozen=True, gc=False):
    kind: Any
    is_repeatable: bool
    is_spelt: bool
    """Of JSON's own types that are no text: a text that spells it will do."""


@lru_cache
def _parameters(kind: type[Struct]) -> dict[str, _Parameter]:
    parameters: dict[str, _Parameter] = {}
    for field in msgspec.structs.fields(kind):
        # Absent is a parameter's null; a text cannot spell it.
        members = [one for one in get_args(field.type) if one is not NoneType]
        only = members[0] if NoneType in get_args(field.type) else field.type
        text = str(only)
        parameters[field.encode_name] = _Parameter(
            only, "tuple" in text, "int" in text or "bool" in text
        )
    return parameters


def query_from(query: bytes, kind: type[S], *, prefixed: str | None = None) -> S:
    """`prefixed` names a field that takes all parameters `<field>.<key>`, as `label.<key>`."""
    parameters = _parameters(kind)
    values: dict[str, Any] = {}
    wrongs: list[Wrong] = []
    for name, text in _pairs(query):
        field = parameters.get(name)
        head, dot, key = name.partition(".")
        if prefixed is not None and head == prefixed and dot:
            if not key or len(key) > 64 or len(text) > 256:
                wrongs.append(Wrong(f"/{escaped(name)}", "no such label can be"))
            elif values.setdefault(prefixed, {}).setdefault(key, text) != text:
                wrongs.append(Wrong(f"/{escaped(name)}", "stands twice"))
        elif field is None or name == prefixed:
            near = get_close_matches(name, parameters, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            wrongs.append(Wrong(f"/{escaped(name)}", f"unknown parameter{hint}"))
        elif field.is_repeatable:
            values.setdefault(name, []).append(text)
        elif name in values:
            wrongs.append(Wrong(f"/{escaped(name)}", "stands twice"))
        else:
            values[name] = text
    wrongs += _convert(values, parameters)
    if not wrongs:
        try:
            return msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            wrongs.append(Wrong(*_explained(str(error), values)))
    detail = "; ".join(f"{one.pointer[1:]}: {one.message}" for one in wrongs[:3])
    raise refused("VALIDATION_FAILED", detail, errors=wrongs[:ERRORS_MAX])


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=QUERY_PARAMETERS_MAX,
        )
        for pair in pairs:
            for text in pair:
                check_text(text)
    except (UnicodeError, MalformedJson):
        raise refused("VALIDATION_FAILED", "the query is not UTF-8 text") from None
    except ValueError:
        raise refused("VALIDATION_FAILED", f"more than {QUERY_PARAMETERS_MAX} parameters") from None
    return pairs


def _convert(values: dict[str, Any], parameters: Mapping[str, _Parameter]) -> list[Wrong]:
    """Numbers and truths are spelt in a query; all else stays strict, or a number would be an
    instant."""
    wrongs: list[Wrong] = []
    for name, text in values.items():
        parameter = parameters[name]
        try:
            values[name] = msgspec.convert(text, parameter.kind, strict=not parameter.is_spelt)
        except msgspec.ValidationError as error:
            pointer, message = _explained(str(error))
            wrongs.append(Wrong(f"/{escaped(name)}{pointer}", message))
    return wrongs


# --- Headers -------------------------------------------------------------------------------------
class Preference(Struct, frozen=True, gc=False):
    """`Prefer`: how long to wait for a decision, or for the view."""

    wait_seconds: float | None = None
    applied: str = ""
    """For `Preference-Applied`; empty: nothing was asked."""


WAIT_SECONDS_MAX = 30


def preference_from(text: str) -> Preference:
    """`wait=N` (0..30) and `respond-async`; other preferences are ignored, as RFC 7240 says."""
    wait: int | None = None
    is_async = False
    for part in text.split(","):
        name, _, value = part.partition(";")[0].partition("=")
        match name.strip().lower():
            case "respond-async":
                is_async = True
            case "wait" if wait is None:
                number = value.strip().strip('"')
                if not (number.isascii() and number.isdecimal() and int(number[:9]) <= 30):
                    raise refused(
                        "VALIDATION_FAILED", f"Prefer: wait=N takes 0 to {WAIT_SECONDS_MAX}"
                    )
                wait = int(number)
            case _:
                pass
    if wait is not None:
        return Preference(float(wait), f"wait={wait}")
    return Preference(0.0, "respond-async") if is_async else Preference()


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_from(text: str) -> str:
    """As the W3C writes it, to travel with the command; empty for anything else."""
    return text if _TRACEPARENT.fullmatch(text) else ""
