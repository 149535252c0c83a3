"""The OpenAPI 3.1 document, made from the table of operations and the structs they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import msgspec
from msgspec import Struct

from api.operation import Answer, Operation
from api.problems import CODES, MEDIA_TYPE, Problem
from ledger import __version__
from ledger.domain.ids import QUEUE_PATTERN, TYPE_PATTERN

Json = dict[str, Any]
REF = "#/components/schemas/{name}"
JOB_ID_PATTERN = (
    r"^[a-z0-9][a-z0-9_-]{0,62}"
    r"\.[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
)
ALWAYS = ("VALIDATION_FAILED", "METHOD_NOT_ALLOWED", "INTERNAL_ERROR")
WITH_BODY = (
    "MALFORMED_JSON",
    "PAYLOAD_TOO_LARGE",
    "UNSUPPORTED_MEDIA_TYPE",
    "REQUEST_TIMEOUT",
    "CROSS_SITE_REQUEST",
)
OF_COMMANDS = (
    "IDEMPOTENCY_KEY_REUSED",
    "PRECONDITION_FAILED",
    "LOG_UNAVAILABLE",
    "VIEW_UNAVAILABLE",
    "OVERLOADED",
    "WRONG_PARTITION",
)
OF_MOVERS = ("STORE_UNAVAILABLE", "VIEW_BEHIND")
OF_READS = ("VIEW_BEHIND", "VIEW_UNAVAILABLE")

PREFER = {
    "name": "Prefer",
    "in": "header",
    "description": "`wait=N` (0 to 30 seconds), or `respond-async`; others are ignored",
    "schema": {"type": "string", "examples": ["wait=1", "respond-async"]},
}
OF_COMMAND_HEADERS = (
    {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Quoted or bare: the same key with the same body gives the same answer",
        "schema": {"type": "string", "minLength": 1, "maxLength": 256},
    },
    {
        "name": "If-Match",
        "in": "header",
        "description": "The job's ETag; 412 if it has another by now",
        "schema": {"type": "string"},
    },
    PREFER,
)
OF_READ_HEADERS = (
    {
        "name": "Ledger-Min-Position",
        "in": "header",
        "description": "Waits until the answer includes it, else 503 VIEW_BEHIND",
        "schema": {"type": "string", "pattern": "^[0-9]{1,2}:(-1|[0-9]{1,15})$"},
    },
    PREFER,
)
PATH_PARAMETERS: Mapping[str, Json] = {
    "id": {"description": "The job's id", "schema": {"type": "string", "pattern": JOB_ID_PATTERN}},
    "rid": {
        "description": "The runtime's own id",
        "schema": {"type": "string", "minLength": 1, "maxLength": 256},
    },
    "queue": {
        "description": "The queue's name",
        "schema": {"type": "string", "pattern": QUEUE_PATTERN},
    },
    "type": {
        "description": "The type of jobs",
        "schema": {"type": "string", "pattern": TYPE_PATTERN},
    },
    "name": {
        "description": "The name of the schedule or model",
        "schema": {"type": "string", "pattern": TYPE_PATTERN},
    },
    "step": {
        "description": "The step's name; of one that is done for each item of a list `name[index]`",
        "schema": {"type": "string", "minLength": 1, "maxLength": 128},
    },
    "n": {
        "description": "The version's number",
        "schema": {"type": "integer", "minimum": 1, "maximum": 2**53 - 1},
    },
    "user": {
        "description": "Whose objects: what their jobs have as label `user`",
        "schema": {"type": "string", "minLength": 1, "maxLength": 256},
    },
    "project": {
        "description": "Of which project: what their jobs have as label `project`",
        "schema": {"type": "string", "minLength": 1, "maxLength": 256},
    },
    "command_id": {"description": "The command's id", "schema": {"type": "string"}},
    "operation_id": {"description": "The operation's id", "schema": {"type": "string"}},
}
RESPONSE_HEADERS: Mapping[str, str] = {
    "Location": "Where the outcome is to be read",
    "ETag": "The job's version",
    "Idempotency-Replayed": "`true`: the same was asked before",
    "Ledger-Position": "How far the answer is true: `partition:offset[,…]`",
    "Retry-After": "Seconds",
    "Allow": "The methods that the route takes",
}


def document(operations: Iterable[Operation]) -> Json:
    table = tuple(operations)
    schemas = _schemas(table)
    paths: dict[str, Json] = {}
    for operation in table:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Job ledger",
            "version": __version__,
            "description": "Every job is a fold over its events. Problems are RFC 9457; their "
            "`code` is what a program goes by.",
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


# --- Schemas -------------------------------------------------------------------------------------
def _schemas(table: Iterable[Operation]) -> dict[str, Json]:
    kinds: dict[Any, None] = {Problem: None}
    for operation in table:
        if operation.body is not None:
            kinds[operation.body] = None
        for answer in operation.answers.values():
            for kind in _members(answer.content):
                kinds[kind] = None
    _, components = msgspec.json.schema_components(tuple(kinds), ref_template=REF)
    schemas: dict[str, Json] = dict(sorted(components.items()))
    schemas["Problem"]["properties"]["code"]["enum"] = sorted(CODES)
    schemas["JobView"]["properties"]["deduplicated"] = {
        "type": "boolean",
        "description": "An earlier job answers for an equal request; only where one was asked for",
    }
    return schemas


def _members(content: Any) -> tuple[Any, ...]:
    return () if content is None else get_args(content) or (content,)


def _schema_of(content: Any) -> Json:
    refs = [{"$ref": REF.format(name=kind.__name__)} for kind in _members(content)]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


# --- One operation -------------------------------------------------------------------------------
def _described(operation: Operation) -> Json:
    described: Json = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": {**_successes(operation), **_problems(operation)},
    }
    if operation.body is not None:
        fields = msgspec.structs.fields(operation.body)
        described["requestBody"] = {
            "required": any(field.required for field in fields),
            "content": {"application/json": {"schema": _schema_of(operation.body)}},
        }
    return described


def _parameters(operation: Operation) -> list[Json]:
    parameters: list[Json] = [
        {"name": part[1:-1], "in": "path", "required": True, **PATH_PARAMETERS[part[1:-1]]}
        for part in operation.path.split("/")
        if part.startswith("{")
    ]
    parameters += _query_parameters(operation.query, operation.prefixed)
    if operation.is_command:
        parameters += OF_COMMAND_HEADERS
    if operation.is_read:
        parameters += OF_READ_HEADERS
    for name, description in operation.headers.items():
        parameters.append(
            {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}
        )
    return parameters


def _query_parameters(kind: type[Struct], prefixed: str | None) -> list[Json]:
    _, components = msgspec.json.schema_components((kind,), ref_template=REF)
    properties: dict[str, Json] = components[kind.__name__].get("properties", {})
    parameters: list[Json] = []
    for name, schema in properties.items():
        if name == prefixed:
            parameters.append(_prefixed_parameter(name))
            continue
        parameters.append({"name": name, "in": "query", "schema": _inlined(schema, components)})
    return parameters


def _prefixed_parameter(name: str) -> Json:
    """An object whose exploded form has its keys as parameters of their own: `label.user=ada`."""
    return {
        "name": name,
        "in": "query",
        "style": "form",
        "explode": True,
        "description": f"Any number of parameters `{name}.<key>`",
        "schema": {
            "type": "object",
            "patternProperties": {
                rf"^{name}\.[a-z]{{1,64}}$": {"type": "string", "maxLength": 256}
            },
            "additionalProperties": False,
        },
    }


def _inlined(schema: Json, components: Mapping[str, Json]) -> Json:
    """Of a parameter: absent is its null."""
    left = {key: value for key, value in schema.items() if key != "default"}
    if "anyOf" in left:
        [only] = [one for one in left["anyOf"] if one != {"type": "null"}]
        return dict(only)
    items = left.get("items", {})
    if "$ref" in items:
        left["items"] = components[items["$ref"].rpartition("/")[2]]
    default = schema.get("default")
    return {**left, "default": default} if default not in (None, [], {}) else left


# --- Responses -----------------------------------------------------------------------------------
def _successes(operation: Operation) -> dict[str, Json]:
    return {str(status): _success(answer) for status, answer in operation.answers.items()}


def _success(answer: Answer) -> Json:
    response: Json = {
        "description": answer.description,
        "headers": _headers((*answer.headers, "Ledger-Position")),
    }
    if answer.content is not None:
        response["content"] = {answer.media_type: {"schema": _schema_of(answer.content)}}
    elif answer.media_type != "application/json":
        response["content"] = {answer.media_type: {"schema": {"type": "string"}}}
    for media_type in answer.also:
        response.setdefault("content", {})[media_type] = {"schema": {"type": "string"}}
    return response


def _problems(operation: Operation) -> dict[str, Json]:
    """One a status, with the codes that it may carry."""
    codes = [*ALWAYS, *operation.codes]
    if operation.body is not None:
        codes += WITH_BODY
    if operation.is_command:
        codes += OF_COMMANDS
    if operation.moves:
        codes += OF_MOVERS
    if operation.is_read:
        codes += OF_READS
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(CODES[code].status, []).append(code)
    return {str(status): _problem(by_status[status]) for status in sorted(by_status)}


def _problem(codes: list[str]) -> Json:
    meanings = "\n".join(f"- `{code}`: {CODES[code].title}" for code in codes)
    passing = any(CODES[code].retry_after_seconds is not None for code in codes)
    names = ("Ledger-Position", "Retry-After") if passing else ("Ledger-Position",)
    return {
        "description": meanings,
        "headers": _headers(names),
        "content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(name="Problem")}}},
    }


def _headers(names: Iterable[str]) -> dict[str, Json]:
    return {
        name: {"description": RESPONSE_HEADERS[name], "schema": {"type": "string"}}
        for name in names
    }
