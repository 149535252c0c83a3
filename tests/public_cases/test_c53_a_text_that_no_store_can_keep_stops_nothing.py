"""hatchet-dev/hatchet PR #4619, osbuild/osbuild-composer PR #4779, kestra-io/kestra PR #10653 and
open-metadata/OpenMetadata #31120: a NUL, or half of a surrogate pair, stands in an error message.
The database refuses it, so that not even the failure can be stored, and the job comes for ever.

Here every way in refuses what no store can keep, in whatever field: the api with 400 before it
sends anything, the owner by a dead letter. And what another writer has put into the log all the
same is stored escaped, in every text of every event, while the log keeps its bytes (I1, I29).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from api.app import DOCUMENT
from ledger.domain import commands, events
from ledger.domain.commands import (
    Asked,
    CancelJob,
    FailAttempt,
    LockJob,
    ReleaseLease,
    ReportProgress,
    SubmitResult,
)
from ledger.domain.events import Event, JobRequested
from ledger.domain.ids import Fence, JobId, RuntimeId
from ledger.log.command_codec import Unreadable, command_from
from ledger.log.entry_codec import event_from
from ledger.log.records import Record
from projections.projector import Projector
from projections.reads import Reads, open_reads
from projections.schema import migrate
from tests.golden import samples
from tests.unit.api.problems_of import code_of
from tests.unit.api.world import World, client_over
from tests.unit.projections.histories import Script, plain_job

TEXTS = {
    "NUL": b'"a\\u0000b"',
    "a raw NUL": b'"a\x00b"',
    "half a pair": b'"\\ud800"',
    "the other half": b'"x\\udc00"',
    "halves in the wrong order": b'"\\udc00\\ud800"',
    "half a pair in UTF-8": b'"\xed\xa0\x80"',
    "no UTF-8": b'"\xff"',
}
OTHERS = {
    "NaN": b"NaN",
    "a double too large": b"1e400",
    "400 digits": b"9" * 400,
    "far too deep": b"[" * 100_000 + b"]" * 100_000,
    "a key twice": b'{"a":1,"a":2}',
    "a NUL in a key": b'{"a\\u0000":1}',
}
BAD = TEXTS | OTHERS
HERE = "put it here"
JSON = {"content-type": "application/json"}


# --- Over HTTP -----------------------------------------------------------------------------------
def writes() -> Iterator[tuple[str, str, list[str]]]:
    """Every operation with a body: method, path, and the names of its fields."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(DOCUMENT))
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if "requestBody" not in operation:
                continue
            (content,) = operation["requestBody"]["content"].values()
            schema = content["schema"]
            if "$ref" in schema:
                schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            yield method, path, sorted(schema.get("properties", ["payload"]))


WRITES = list(writes())


@pytest.mark.parametrize(("method", "path", "fields"), WRITES, ids=[path for _, path, _ in WRITES])
async def test_no_field_of_any_write_takes_it(method: str, path: str, fields: list[str]) -> None:
    world = World()
    async with client_over(world) as client:
        job_id, _ = await client.leased()
        url = path.replace("{id}", job_id)
        for name in ("queue", "type", "name", "rid"):
            url = url.replace(f"{{{name}}}", "default")
        before = len(world.sent)
        said = [(field, bad) for field in fields for bad in TEXTS.values()]
        for field, bad in said + [(fields[0], bad) for bad in OTHERS.values()]:
            body = b'{"%s":%s}' % (field.encode(), bad)
            answer = await client.request(method, url, content=body, headers=JSON)
            assert code_of(answer) == (400, "MALFORMED_JSON"), (field, bad[:20])
        assert len(world.sent) == before


def test_the_writes_are_all_that_there_are() -> None:
    assert len(WRITES) >= 23
    assert any(path.endswith("/fail") and "message" in fields for _, path, fields in WRITES)


# --- Over Kafka ----------------------------------------------------------------------------------
def places(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Where a value lies within another, at any depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        yield (key,)
        if isinstance(each, dict | list):
            yield from ((key, *rest) for rest in places(each))


def with_at(value: Any, place: tuple[str | int, ...], new: Any) -> Any:
    key, *rest = place
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = with_at(value[key], tuple(rest), new) if rest else new
    return copy


def poisoned(kind: type[Struct], bad: bytes, *, texts_only: bool = False) -> Iterator[bytes]:
    """The full form, with `bad` in each place of it in turn."""
    full = msgspec.json.decode(msgspec.json.encode(samples.full(kind)))
    for place in places(full):
        there = full
        for key in place:
            there = there[key]
        if texts_only and not isinstance(there, str):
            continue
        yield msgspec.json.encode(with_at(full, place, HERE)).replace(b'"%s"' % HERE.encode(), bad)


def record(kind: str, value: bytes, **headers: bytes) -> Record:
    said = {
        "ce_specversion": b"1.0",
        "ce_id": b"c-1",
        "ce_source": b"test",
        "ce_type": kind.encode(),
        "content-type": b"application/json",
        **headers,
    }
    return SimpleNamespace(
        topic="ledger.commands.v1",
        partition=0,
        offset=5,
        timestamp=1_000,
        key=b"mail",
        value=value,
        headers=tuple(said.items()),
    )


@pytest.mark.parametrize("name", commands.TYPES)
def test_no_field_of_any_command_takes_it(name: str) -> None:
    for what, bad in BAD.items():
        if what == "far too deep":
            bad = b"[" * 100 + b"]" * 100
        for value in poisoned(commands.TYPES[name], bad):
            assert isinstance(command_from(record(name, value)), Unreadable), what


@pytest.mark.parametrize("header", ["ce_id", "ce_source", "ce_actor", "ce_replyto", "ce_time"])
def test_no_header_takes_it(header: str) -> None:
    value = msgspec.json.encode(FailAttempt(JobId(samples.JOB_ID), Fence(1), "X"))
    assert isinstance(command_from(record(FailAttempt.TYPE, value)), Asked)
    for bad in (b"a\x00b", b"\xed\xa0\x80", b"\xff"):
        found = command_from(record(FailAttempt.TYPE, value, **{header: bad}))
        assert isinstance(found, Unreadable)


# --- What is in the log --------------------------------------------------------------------------
def as_read(name: str, value: bytes, job_id: JobId) -> Event:
    """What a reader makes of a record with the full form of an event, of this job if of any."""
    value = value.replace(samples.JOB_ID.encode(), job_id.encode())
    return event_from(name.encode(), job_id.encode(), value)


NUL = "no\x00net"


def told_with_nul(script: Script) -> JobId:
    """A job of which every text that somebody can say has one, by a writer that took it."""
    job_id = script.submit(labels={NUL: NUL}, scope=NUL)
    runtime = RuntimeId(NUL)
    script.do(LockJob(job_id, runtime))
    script.do(ReportProgress(job_id, Fence(1), 1.0, NUL, NUL))
    script.do(ReleaseLease(job_id, Fence(1), NUL))
    script.do(LockJob(job_id, runtime))
    script.do(FailAttempt(job_id, Fence(2), NUL, NUL, details=Raw(b'"a\\u0000b"')))
    script.do(LockJob(job_id, runtime), seconds=60.0)
    script.do(CancelJob(job_id, NUL))
    script.do(SubmitResult(job_id, Fence(3), output=Raw(b'"a\\u0000b"')))
    return job_id


@pytest.mark.services
@pytest.mark.parametrize("fed", [True, False])
async def test_in_whatever_event_it_stands_everything_is_stored(dsn: str, fed: bool) -> None:
    script = Script()
    before = plain_job(script)
    job_id = script.submit()
    for number, (name, kind) in enumerate(events.TYPES.items()):
        for place, bad in enumerate(TEXTS.values()):
            for field, value in enumerate(poisoned(kind, bad, texts_only=True)):
                mine = job_id
                if kind is JobRequested:
                    mine = JobId(f"{job_id[:-6]}{number:02}{place:02}{field:02}")
                script.append((as_read(name, value, mine),))
    told = told_with_nul(script)
    after = plain_job(script)

    def project() -> None:
        migrate(dsn)
        with Projector(dsn, topic="ledger.events.v1") as projector:
            projector.cursor(0)
            for batch in script.batches((50, 500), fed=fed):
                projector.apply(batch)

    await asyncio.to_thread(project)
    async with open_reads(dsn) as reads:
        for each in (before, job_id, told, after):
            stored = await reads.job(each)
            assert stored is not None
            assert stored.job == script.partition.job(each)
            assert await last_seq(reads, each) == stored.job.version
        attempts = await reads.attempts(told)
        assert attempts is not None
        assert len(attempts) == 3
    job = script.partition.job(told)
    assert job is not None
    assert (job.end, job.steps[0].failure and job.steps[0].failure.message) == ("succeeded", NUL)


async def last_seq(reads: Reads, job_id: JobId) -> int:
    """Of its whole history, read page by page."""
    seen = 0
    while (history := await reads.history(job_id, after_seq=seen, limit=1_000)) and history.items:
        seen = history.items[-1].seq
    return seen
