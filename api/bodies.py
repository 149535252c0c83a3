"""What requests carry: the commands' own fields, less what path and gateway say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ledger.domain.commands import (
    AcknowledgeCancel,
    CancelJob,
    Claim,
    FailAttempt,
    Heartbeat,
    LockJob,
    Queue,
    ReleaseLease,
    ReportProgress,
    RequestJob,
    RerunJob,
    Sha256,
    StartAttempt,
    SubmitResult,
    Text,
    Type,
    WaitForCompletion,
    Where,
)
from ledger.domain.job import Status


class ObjectRef(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that lie in the object store."""

    key: Annotated[str, Meta(min_length=1, max_length=1024)]
    size: Annotated[int, Meta(ge=0)]
    sha256: Sha256


ForwardHeaders = Annotated[
    dict[str, str],
    Meta(description="Headers for the model; sealed before they are kept, and never shown"),
]


def _body_of(
    command: type[Struct],
    name: str,
    description: str,
    *,
    without: Collection[str],
    other: Mapping[str, Any] | None = None,
) -> type[Struct]:
    """A struct of the command's fields but some; `other` gives fields another type."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for one in msgspec.structs.fields(command):
        if one.name in without:
            continue
        kind = (other or {}).get(one.name, one.type)
        if one.required:
            fields.append((one.name, kind))
        elif one.default is not msgspec.NODEFAULT:
            fields.append((one.name, kind, one.default))
        else:
            fields.append((one.name, kind, msgspec.field(default_factory=one.default_factory)))
    return msgspec.defstruct(
        name,
        fields,
        frozen=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
        namespace={"__doc__": description},
        module=__name__,
    )


_OF_PATH_AND_GATEWAY = ("job_id", "runtime_id", "if_version", "original")

# Hash, reference and extract are made here: what others say of a payload nobody has checked.
_OF_WHO_MOVES_IT = ("payload_hash", "payload_ref", "extract", "checked_against")
NewJob = _body_of(
    RequestJob,
    "NewJob",
    "What is absent is the template's to say, else a default.",
    without=_OF_WHO_MOVES_IT,
    other={"forward_headers": ForwardHeaders | None},
)
ModelCall = _body_of(
    RequestJob,
    "ModelCall",
    "A job that calls the model; the label `tenant` says on whose account.",
    without=("type", "queue", *_OF_WHO_MOVES_IT, "template_version"),
    other={"forward_headers": ForwardHeaders | None},
)
Cancellation = _body_of(
    CancelJob, "Cancellation", "Why the job is to end.", without=_OF_PATH_AND_GATEWAY
)
Rerun = _body_of(
    RerunJob,
    "Rerun",
    "What the new job has in place of the old.",
    without=(*_OF_PATH_AND_GATEWAY, "payload_ref", "extract", "output_refs"),
)
Lock = _body_of(
    LockJob, "Lock", "Without `step`: the first that is due.", without=("job_id", "if_version")
)
Start = _body_of(StartAttempt, "Start", "The attempt runs.", without=_OF_PATH_AND_GATEWAY)
Beat = _body_of(
    Heartbeat,
    "Heartbeat",
    "Extends the lease, and starts the attempt unless `start` is false.",
    without=_OF_PATH_AND_GATEWAY,
)
Progress = _body_of(
    ReportProgress, "Progress", "How far the attempt is.", without=_OF_PATH_AND_GATEWAY
)
Result = _body_of(
    SubmitResult,
    "Result",
    "`output` or `output_ref`; `output_hash` is SHA-256 hex over the RFC 8785 bytes of `output`."
    " Who puts an output in the store says in `extract` what the flow's rules look at.",
    without=_OF_PATH_AND_GATEWAY,
    other={"output_ref": ObjectRef | None},
)
Failure = _body_of(
    FailAttempt, "Failure", "What went wrong with the attempt.", without=_OF_PATH_AND_GATEWAY
)
Release = _body_of(
    ReleaseLease, "Release", "Given back; no attempt is spent.", without=_OF_PATH_AND_GATEWAY
)
Wait = _body_of(
    WaitForCompletion,
    "Wait",
    "Given up for an external completion, under the same fence.",
    without=_OF_PATH_AND_GATEWAY,
)
Stopped = _body_of(
    AcknowledgeCancel, "Stopped", "The cooperative stop is done.", without=_OF_PATH_AND_GATEWAY
)
ClaimAsk = _body_of(
    Claim,
    "ClaimAsk",
    "Leases for the caller, waiting for some if need be.",
    without=("runtime_id",),
)


class Poll(Struct, frozen=True, forbid_unknown_fields=True):
    """Which pending jobs to look at; nothing is taken."""

    queues: Annotated[tuple[Queue, ...], Meta(min_length=1, max_length=50)]
    types: Annotated[tuple[Type, ...], Meta(min_length=1, max_length=200)]
    limit: Annotated[int, Meta(ge=1, le=50)] = 50


class Reason(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Text = ""


class JobIds(Struct, frozen=True, forbid_unknown_fields=True):
    ids: Annotated[tuple[Annotated[str, Meta(max_length=128)], ...], Meta(max_length=200)]


class BulkCancel(Struct, frozen=True, forbid_unknown_fields=True):
    """Cancels all jobs that meet every given condition, on every queue; one at least."""

    where: Where
    reason: Text = ""
    dry_run: bool = False


# --- Query parameters ----------------------------------------------------------------------------
Limit = Annotated[int, Meta(ge=1, le=200)]
Cursor = Annotated[str, Meta(min_length=1, max_length=1024)]
PageNumber = Annotated[int, Meta(ge=1, le=1_000_000)]
PageSize = Annotated[int, Meta(ge=1, le=200)]


class Paging(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Either `limit` and `cursor`, or `page` and `page_size`."""

    limit: Limit | None = None
    cursor: Cursor | None = None
    page: PageNumber | None = None
    page_size: PageSize | None = None


class JobFilters(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    queue: Annotated[tuple[Queue, ...], Meta(max_length=50)] = ()
    type: Annotated[tuple[Type, ...], Meta(max_length=50)] = ()
    status: Annotated[tuple[Status, ...], Meta(max_length=20)] = ()
    label: dict[str, str] = {}
    """Of the parameters `label.<key>`."""
    scope: Annotated[str, Meta(max_length=256)] | None = None
    error_code: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    retried_from: Annotated[str, Meta(max_length=128)] | None = None
    schedule: Annotated[str, Meta(max_length=100)] | None = None
    created_from: Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None = None
    created_to: Annotated[str, Meta(extra_json_schema={"format": "date-time"})] | None = None


class JobsQuery(JobFilters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """With what `Paging` has: a struct has one base."""

    limit: Limit | None = None
    cursor: Cursor | None = None
    page: PageNumber | None = None
    page_size: PageSize | None = None
    order: Literal["-created_at", "created_at", "priority"] = "-created_at"


LastEventId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=4_096,
        description="Where to resume, for clients that cannot send the header Last-Event-ID",
    ),
]


class HistoryQuery(Paging, frozen=True, forbid_unknown_fields=True, kw_only=True):
    last_event_id: LastEventId | None = None


class EventsQuery(JobFilters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    last_event_id: LastEventId | None = None


class AsOf(Struct, frozen=True, forbid_unknown_fields=True):
    as_of: (
        Annotated[
            str,
            Meta(min_length=1, max_length=64, description="An instant (RFC 3339), or a version."),
        ]
        | None
    ) = None


class RuntimesQuery(Paging, frozen=True, forbid_unknown_fields=True, kw_only=True):
    queue: Annotated[tuple[Queue, ...], Meta(max_length=50)] = ()


class TemplatesQuery(Paging, frozen=True, forbid_unknown_fields=True, kw_only=True):
    queue: Annotated[tuple[Queue, ...], Meta(max_length=50)] = ()
    type: Annotated[tuple[Type, ...], Meta(max_length=50)] = ()


class SchedulesQuery(TemplatesQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: bool | None = None


class CommandQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the command lies, as the 202 said: another process may have sent it."""

    topic: Annotated[str, Meta(min_length=1, max_length=249)] | None = None
    partition: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    offset: Annotated[int, Meta(ge=0, le=2**62)] | None = None


def fields_of(body: Struct) -> dict[str, Any]:
    """A body's fields, to make a command of."""
    return {name: getattr(body, name) for name in body.__struct_fields__}
