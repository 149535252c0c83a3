"""What rules see of a payload or output that lies in the object store: the values at all pointers
that they could ask for. Whoever moves it sends these along with its reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from ledger.domain import conditions
from ledger.domain.commands import Limits, Template
from ledger.domain.flow_plan import Flow
from ledger.domain.pointers import LENGTH_MAX, find, parts
from ledger.domain.strict_json import escaped
from ledger.domain.wrong import Wrong

EXTRACT_BYTES_MAX = 32_768
"""Of the values of one extract as JSON: it lies in the log."""
POINTERS_MAX = 256
"""Of one extract."""

Extract = dict[str, Any]
Path = Sequence[str]


def extract_of_payload(
    payload: object, payload_hash: str, template: Template | None, limits: Limits
) -> Extract | Wrong:
    """By pointers into the request; `limits` are all that the job will be under.

    By what keys and limits point to jobs are equal or not, so that must fit. What only conditions
    look at is left out where it does not, and they are false.
    """
    found: Extract = {}
    room = EXTRACT_BYTES_MAX
    for pointer in dict.fromkeys(_keys(template, limits)):
        first, *path = parts(pointer)
        # All of it is too large to be sent along. Nothing that is not can be equal to it.
        value = find(payload, path) if path else {"sha256": payload_hash}
        if first != "payload" or value is UNSET:
            continue
        room -= _size(value)
        if room < 0 or len(found) == POINTERS_MAX:
            detail = f"what keys and limits point to takes more than {EXTRACT_BYTES_MAX} bytes"
            return Wrong(pointer, detail)
        found[pointer] = value
    if template is not None:
        asked = [step.when for step in template.steps] + [template.success_when]
        paths = [path for path in _looked_at(asked) if path[0] == "payload" and len(path) > 1]
        _add(found, {"payload": payload}, paths, room)
    return found


def pointers_into_outputs(flow: Flow | None) -> tuple[str, ...]:
    """What rules of the flow may ask for in an output, of whichever step. A plain job has none."""
    if flow is None:
        return ()
    lists = [parts(plan.each)[1:] for plan in flow.steps if plan.each is not None]
    asked = [plan.when for plan in flow.steps] + [flow.success_when]
    seen = [p[3:] for p in _looked_at(asked) if p[0] == "steps" and p[2] == "output"]
    return tuple(dict.fromkeys(_pointer(path) for path in (*lists, *seen) if path))


def extract_of_output(output: object, pointers: Iterable[str]) -> Extract:
    """What does not fit is left out: a condition on it is false, a step over it fails."""
    found: Extract = {}
    _add(found, output, map(parts, pointers), EXTRACT_BYTES_MAX)
    return found


def _keys(template: Template | None, limits: Limits) -> Iterator[str]:
    if template is not None:
        yield from template.dedupe_keys
        yield from template.idempotency_scope
    for limit in limits:
        yield from limit.key


def _looked_at(texts: Iterable[str | None]) -> Iterator[tuple[str, ...]]:
    """Places that conditions name; a text that is none (`all_steps_succeeded`) names nothing."""
    for text in texts:
        condition = None if text is None else conditions.compiled(text)
        if isinstance(condition, conditions.Condition):
            yield from map(parts, condition.pointers)


def _add(found: Extract, value: object, paths: Iterable[Path], room: int) -> None:
    for path in paths:
        pointer = _pointer(path)
        at = find(value, path)
        if at is UNSET or pointer in found or len(pointer) > LENGTH_MAX:
            continue
        size = _size(at)
        if size <= room and len(found) < POINTERS_MAX:
            found[pointer] = at
            room -= size


def _pointer(path: Path) -> str:
    return "".join(f"/{escaped(part)}" for part in path)


def _size(value: object) -> int:
    return len(msgspec.json.encode(value))
