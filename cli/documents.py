"""Documents made from the code: every type of record with its fields, every rejection."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, Raw, Struct, UnsetType

from cli.examples import NOW, example, full
from ledger.domain import commands, events
from ledger.domain.entries import Entry, TakeOver, cause_of
from ledger.domain.ids import Micros
from ledger.domain.rejections import PASSING, STATUS, WHEN
from ledger.log.crash_points import POINTS
from ledger.log.entry_codec import TAKEN_OVER, EntryEncoder
from ledger.log.inbox import Assigned, BeatAnswered, OwnerChanged
from ledger.log.replies import Reply

GENERATED = "<!-- Made from the code by `make generate`; changes here are lost. -->"


def events_document() -> str:
    """`docs/events.md`."""
    parts: list[type[Struct]] = []
    return _document(
        "# Events",
        inspect.cleandoc(events.__doc__ or ""),
        "A record's key is the job's id, or the queue's name where an event is of no single job."
        " All events of one command are one *entry*: their records stand side by side, and count"
        " only together. One record as it lies in `ledger.events.v1`:",
        _block(_record_text(), "text"),
        "`ce_ledger` is `entry;i/n;nonce;commands offset;requests offset;actor;cause;correlation;"
        "key id[;hash]`, with `;` and `%` percent-encoded; the hash stands on an entry's last"
        " record.",
        "## Of one job",
        *(_type_text(kind, parts) for kind in events.JOB_EVENTS),
        "## Of no single job",
        *(_type_text(kind, parts) for kind in events.QUEUE_EVENTS),
        "## Outside the entries",
        f"### `{TAKEN_OVER}`",
        _sentences(TakeOver),
        _fields_text(TakeOver, parts),
        _example_text(TakeOver),
        *_parts_text(parts),
    )


def kafka_document() -> str:
    """`docs/kafka.md`: what a producer or a runtime without our SDK sends and receives."""
    parts: list[type[Struct]] = []
    return _document(
        "# Commands, inboxes and replies over Kafka",
        "Every record is a CloudEvent 1.0 in binary mode: `ce_specversion=1.0`, `ce_id` (the"
        " command's id: repeating it is safe), `ce_source`, `ce_type`, `ce_time` (may be absent),"
        " `content-type=application/json`; `ce_replyto=<partition>/<address>` where an answer in"
        " `ledger.replies.v1` is wanted. The value is JSON; a field that is not listed is refused.",
        "The key is the queue's name, and decides the partition by murmur2, as Java's and"
        " aiokafka's default does (librdkafka: `partitioner=murmur2_random`). A job's queue is the"
        " part of its id before the last `.`.",
        "`ledger.job.request.v1` goes to `ledger.requests.v1`, everything else to"
        " `ledger.commands.v1`. What cannot be read goes to `dlq.` and the topic's name, with the"
        " reason in the header `ledger-reason`.",
        "The body of a put may also stand beside its address, as it does over HTTP: a queue's is"
        ' `{"queue": …, "settings": {"depth_max": 9}}` or `{"queue": …, "depth_max": 9}`.',
        "## Commands",
        *(_type_text(kind, parts) for kind in commands.COMMANDS),
        "## In a runtime's inbox, `ledger.assigned.<queue>.v1`",
        "Keyed by runtime id; without a key for every runtime.",
        *(_type_text(kind, parts) for kind in (Assigned, BeatAnswered, OwnerChanged)),
        "## In `ledger.replies.v1`",
        _type_text(Reply, parts),
        *_parts_text(parts),
    )


def rejections_document() -> str:
    """`docs/rejections.md`."""
    rows = [
        (f"`{code}`", str(STATUS[code]), WHEN[code] + (" (passing)" if code in PASSING else ""))
        for code in WHEN
    ]
    return _document(
        "# Rejections",
        "Why a command is refused. A refusal is an answer like any other: it is recorded as"
        " `ledger.command.rejected.v1`, equal ones once and then at most once a minute with a"
        " count. Over HTTP it is an `application/problem+json` with this code and status."
        " *Passing* ones may turn out otherwise a moment later, and bind no idempotency key.",
        _table(("code", "status", "when"), rows),
    )


def crash_points_document() -> str:
    """`docs/crash-points.md`."""
    rows = [
        (
            f"`{point.name}`",
            point.fault,
            ", ".join(point.reached_by),
            ", ".join(point.outlived_by) or "none",
            point.promise,
        )
        for point in POINTS
    ]
    return _document(
        "# Crash points",
        "Where a process may die, and what is promised of each place. `LEDGER_CRASH_AT=point:n`"
        " kills the process with SIGKILL at its n-th pass there, `point:n:raise` raises an error"
        " that nobody expects. Who does not outlive it ends with its reason in the log and an exit"
        " code other than 0, and is started again by what supervises it: nobody foresaw the state,"
        " so it starts from the log. The others fail what they were about (a request with 500, an"
        " attempt, a round) and go on.",
        "`tests/chaos/test_crash_points.py` lets real processes die under a load of every kind:"
        " `make faults` at each of them both ways, in every process that reaches it; `make test` at"
        " each of a numbered fault by SIGKILL, and once for each number by an error."
        " `tests/unit/log/test_crash_points.py` fails when a call to"
        " the log, the database or the object store in one of these loops has no point beside it.",
        _table(("point", "fault", "reached by", "an error is outlived by", "promise"), rows),
    )


# --- One type ------------------------------------------------------------------------------------
def _type_text(kind: Any, parts: list[type[Struct]]) -> str:
    said = [f"### `{kind.TYPE}`", f"`{kind.__name__}`. {_sentences(kind)}".rstrip()]
    return "\n\n".join([*said, _fields_text(kind, parts), _example_text(kind)])


def _fields_text(kind: type[Struct], parts: list[type[Struct]]) -> str:
    hints = get_type_hints(kind, include_extras=True)
    notes = _field_notes(kind)
    rows = [
        (
            f"`{field.encode_name}`",
            _type_of(hints[field.name], parts),
            _presence(field),
            notes.get(field.name, ""),
        )
        for field in msgspec.structs.fields(kind)
    ]
    if not rows:
        return "No fields."
    if all(not row[3] for row in rows):
        return _table(("field", "type", "if absent"), [row[:3] for row in rows])
    return _table(("field", "type", "if absent", ""), rows)


def _example_text(kind: type[Struct]) -> str:
    return _block(json.dumps(json.loads(example(kind)), ensure_ascii=False, indent=2), "json")


def _parts_text(parts: list[type[Struct]]) -> Iterable[str]:
    """Grows while it is read: a part may have parts."""
    yield "## Parts"
    done: set[type[Struct]] = set()
    while waiting := [kind for kind in parts if kind not in done]:
        for kind in sorted(waiting, key=lambda kind: kind.__name__):
            done.add(kind)
            listed = " As a list, in this order." if kind.__struct_config__.array_like else ""
            said = f"{_sentences(kind)}{listed}".strip()
            tag = kind.__struct_config__.tag
            if tag is not None:
                said = f'{said} `"{kind.__struct_config__.tag_field}": "{tag}"`.'.strip()
            yield "\n\n".join(
                text for text in (f"### {kind.__name__}", said, _fields_text(kind, parts)) if text
            )


def _presence(field: Any) -> str:
    if field.required:
        return "required"
    default = field.default
    if field.default_factory is not NODEFAULT:
        default = field.default_factory()
    if default is UNSET:
        return "its default"
    return f"`{json.dumps(msgspec.to_builtins(default), ensure_ascii=False)}`"


_PLAIN = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    Raw: "JSON",
    bytes: "bytes",
    type(None): "null",
}


def _type_of(hint: Any, parts: list[type[Struct]]) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Micros:
        return "integer, microseconds since 1970"
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hasattr(hint, "__supertype__"):
        return _type_of(hint.__supertype__, parts)
    if origin is Annotated:
        bounds = [text for meta in arguments[1:] for text in _bounds(meta)]
        return ", ".join([_type_of(arguments[0], parts), *bounds])
    if origin in (Union, UnionType):
        kinds = [a for a in arguments if a is not UnsetType]
        return " or ".join(dict.fromkeys(_type_of(kind, parts) for kind in kinds))
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"list of {len(arguments)}: {', '.join(_type_of(a, parts) for a in arguments)}"
    if origin is tuple:
        return f"list of {_type_of(arguments[0], parts)}"
    if origin is dict:
        return f"object of {_type_of(arguments[1], parts)}"
    if isinstance(hint, type) and issubclass(hint, Struct):
        if hint not in parts:
            parts.append(hint)
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return "RFC 3339 time" if getattr(hint, "__name__", "") == "datetime" else str(hint)


def _bounds(meta: object) -> Iterable[str]:
    if not isinstance(meta, Meta):
        return
    if meta.ge is not None and meta.le is not None:
        yield f"{meta.ge} to {meta.le}"
    elif meta.ge is not None:
        yield f"at least {meta.ge}"
    if meta.max_length is not None:
        yield f"at most {meta.max_length} long"
    if meta.pattern is not None:
        yield f"`{meta.pattern.replace('|', chr(92) + '|')}`"


# --- Words in the code ---------------------------------------------------------------------------
@cache
def _class_nodes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _field_notes(kind: type[Struct]) -> dict[str, str]:
    """The string below a field's definition."""
    notes = {}
    body = _class_nodes(kind.__module__)[kind.__name__].body
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    notes[node.target.id] = _one_line(text)
    return notes


def _sentences(kind: type[Struct]) -> str:
    node = _class_nodes(kind.__module__)[kind.__name__]
    text = ast.get_docstring(node)
    return "" if text is None else _one_line(text)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# --- Markdown ------------------------------------------------------------------------------------
def _document(title: str, *paragraphs: str) -> str:
    return "\n\n".join([title, GENERATED, *(text for text in paragraphs if text)]) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _block(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


def _record_text() -> str:
    event = full(events.AttemptStarted)
    encoder = EntryEncoder(partition=3, ledger_id="ledger", nonce="3f2a9c1e5b7d4860")
    entry = Entry(
        number=7,
        at=Micros(NOW),
        commands=118,
        requests=42,
        events=(event,),
        actor="runtime-1",
        cause=cause_of("019b7cfa-c52e-7abc-9def-001122334455", awaited=False),
    )
    key, value, headers = encoder.encode(entry, b"").records[0]
    lines = [f"key            {(key or b'').decode()}"]
    lines += [f"{name:<14} {content.decode()}" for name, content in headers]
    return "\n".join([*lines, f"value          {(value or b'').decode()}"])
