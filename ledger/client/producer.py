"""Asks the ledger for jobs, and to cancel and rerun them.

    async with Producer("127.0.0.1:9092") as producer:
        job = await producer.submit("quiz_generation", {"snapshot": 7}, queue="ai")
        print(job.job_id)

A command is in the log once its append is acknowledged, and done once its owner has decided it.
`wait=False` returns after the first; else the owner's answer is waited for. For scripts and
notebooks without a loop: `ledger.client.sync`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack, overload

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ledger.client.carrying import Carrier, InForce
from ledger.client.command_ids import new_command_id
from ledger.client.decisions import Decisions
from ledger.client.errors import NotAcknowledged, Refused, Undecided
from ledger.client.fitting import Versions
from ledger.client.json_values import json_bytes
from ledger.client.layout import connection_to, partitions_of
from ledger.client.requests import (
    PAYLOAD_TOO_LARGE,
    Checked,
    RequestFields,
    RetryFields,
    checked_command,
    checked_request,
    sealed_headers,
)
from ledger.domain.commands import (
    CancelJob,
    CancelJobs,
    DeclareInputLost,
    PutTemplate,
    RequestJob,
    RerunJob,
    Template,
)
from ledger.domain.ids import CommandId, JobId
from ledger.domain.rejections import Rejection
from ledger.log.command_codec import partition_for, topic_of
from ledger.log.connection import Connection
from ledger.log.errors import LogError
from ledger.log.outbox import Outbox
from ledger.log.replies import Reply
from ledger.log.topics import Topics
from ledger.objects import ObjectStore
from ledger.sealing.keyring import Keyring

WAIT_SECONDS = 5.0
BATCH_MAX = 500
"""Requests of one partition handed over at once: they fit one batch, so that each one's offset is
known."""
BATCH_BYTES_MAX = 900_000


class Submitted(Struct, frozen=True, gc=False):
    """In the log; its outcome is an event, or a row of the read model `commands` for an hour."""

    command_id: CommandId
    topic: str
    partition: int
    offset: int


class Accepted(Struct, frozen=True, gc=False):
    """Decided and on record."""

    command_id: CommandId
    job_id: JobId
    job: dict[str, Any]
    """As `GET /v1/jobs/{id}` shows it."""
    position: str
    """`partition:offset` up to which this is true; a reader that has come so far knows the job."""
    deduplicated: bool = False
    """An earlier job answers for this request."""
    replayed: bool = False
    """The same command, or one under the same key, was decided before."""


class TemplateStored(Struct, frozen=True, gc=False):
    version: int
    created: bool
    """False: the newest version said the same, and stays the newest."""


class TemplateFields(TypedDict, total=False):
    """See docs/kafka.md; what is absent has its default."""

    title: str
    description: str
    enabled: bool
    payload_schema: Mapping[str, object]
    output_schema: Mapping[str, object]
    idempotency_scope: Sequence[str]
    idempotency_seconds: float
    timeout_seconds: float
    lease_seconds: float
    start_timeout_seconds: float | None
    priority: int
    retry: RetryFields
    cancel: Mapping[str, object]
    result_ttl_seconds: float | None
    exhausted_as: Literal["failed", "expired"] | None
    overridable: Sequence[str]


Outcome = Accepted | Refused | Undecided


class Producer:
    """Safe to share between the tasks of one loop.

    Raises `Refused` for what is refused here or by the owner, `Undecided` when no decision came
    within `wait_seconds`, `NotAcknowledged`, and `LogUnavailable` where nothing was sent because no
    broker answers. Everything may be repeated under its `command_id`.
    """

    def __init__(
        self,
        bootstrap: str | Connection,
        *,
        partitions: int | None = None,
        prefix: str = "",
        wait_seconds: float = WAIT_SECONDS,
        source: str = "ledger/client",
        actor: str = "",
        keyring: Keyring | None = None,
        objects: ObjectStore | None = None,
    ) -> None:
        """`keyring`: what secrets, such as `forward_headers`, are sealed under. `objects`: where
        payloads go that are too large for the log, see docs/objects.md; the caller closes it."""
        self._carrier = None if objects is None else Carrier(objects)
        self._versions = Versions()
        self._keyring = keyring
        self.wait_seconds = wait_seconds
        self._connection = connection_to(bootstrap)
        self._topics = Topics(prefix)
        self._partitions = partitions
        self._source = source
        self._actor = actor
        self._outbox: Outbox | None = None
        self._decisions = Decisions(self._connection, self._topics)

    async def __aenter__(self) -> Self:
        if self._partitions is None:
            self._partitions = await partitions_of(self._connection, self._topics)
        outbox = Outbox(self._connection)
        await outbox.start()
        self._outbox = outbox
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outbox, self._outbox = self._outbox, None
        await self._decisions.close()
        if outbox is not None:
            await outbox.close()

    # --- Jobs ------------------------------------------------------------------------------------
    @overload
    async def submit(
        self,
        type: str,
        payload: object = ...,
        *,
        queue: str = ...,
        wait: Literal[True] = ...,
        command_id: str | None = ...,
        **fields: Unpack[RequestFields],
    ) -> Accepted: ...

    @overload
    async def submit(
        self,
        type: str,
        payload: object = ...,
        *,
        queue: str = ...,
        wait: Literal[False],
        command_id: str | None = ...,
        **fields: Unpack[RequestFields],
    ) -> Submitted: ...

    async def submit(
        self,
        type: str,
        payload: object = UNSET,
        *,
        queue: str = "default",
        wait: bool = True,
        command_id: str | None = None,
        **fields: Unpack[RequestFields],
    ) -> Accepted | Submitted:
        """Ask for one job."""
        body: dict[str, object] = {"type": type, "queue": queue, **fields}
        if payload is not UNSET:
            body["payload"] = payload
        if wait:
            await self._decisions.start()
        command_id = _id(command_id)
        checked = await self._carried(body, command_id, wait=wait, asks=wait)
        if not wait:
            return await self._send(checked)
        return accepted(await self._asked(checked, body))

    @overload
    async def submit_many(
        self, requests: Iterable[Mapping[str, object]], *, await_decision: Literal[False] = ...
    ) -> list[Submitted]: ...

    @overload
    async def submit_many(
        self, requests: Iterable[Mapping[str, object]], *, await_decision: Literal[True]
    ) -> list[Outcome]: ...

    async def submit_many(
        self, requests: Iterable[Mapping[str, object]], *, await_decision: bool = False
    ) -> list[Submitted] | list[Outcome]:
        """Ask for many, each as the body of `POST /v1/jobs`; answers in the same order.

        All are checked before the first is sent: `Refused` means that none was. Refusals by an
        owner are among the outcomes. Waiting ends when nothing was decided for `wait_seconds`.
        """
        if await_decision:
            await self._decisions.start()
        checked = [await self._carried(body, _id(None), wait=await_decision) for body in requests]
        if not await_decision:
            return await self._send_all(checked)
        futures = [self._decisions.expect(one.command_id) for one in checked]
        try:
            sent = await self._send_all(checked)
            await self._patiently(futures)
            return [
                _undecided(one) if (reply := _reply_of(future)) is None else _outcome(reply)
                for one, future in zip(sent, futures, strict=True)
            ]
        finally:
            for one in checked:
                self._decisions.forget(one.command_id)

    async def cancel(
        self,
        job_id: str,
        reason: str = "",
        *,
        if_version: int | None = None,
        command_id: str | None = None,
    ) -> Accepted:
        """Pending: cancelled at once; leased or running: its runtime is asked to stop."""
        body = {"job_id": job_id, "reason": reason, "if_version": if_version}
        return accepted(await self._command(CancelJob.TYPE, body, command_id))

    async def rerun(
        self,
        job_id: str,
        *,
        payload: object = UNSET,
        labels: Mapping[str, str] | UnsetType = UNSET,
        priority: int | UnsetType = UNSET,
        from_failed: bool = False,
        command_id: str | None = None,
    ) -> Accepted:
        """A new job like an ended one; its `retried_from` names that one. `from_failed`: of a flow,
        the steps that succeeded are taken over; without `objects` those whose output lies in the
        object store are done again."""
        body = {"job_id": job_id, "payload": payload, "labels": labels, "priority": priority}
        if from_failed:
            body["from_failed"] = True
            body["output_refs"] = {} if self._carrier is None else UNSET
        try:
            return accepted(await self._command(RerunJob.TYPE, body, command_id))
        except Refused as refused:
            is_to_copy = refused.pointer in ("/payload", "/output_refs")
            if self._carrier is None or refused.data is None or not is_to_copy:
                raise
            # What was refused under an id is refused under it again.
            again = CommandId(f"{refused.command_id}.copy")
            copies = await self._carrier.copied(refused.data, again)
        return accepted(await self._command(RerunJob.TYPE, {**body, **copies}, again))

    async def cancel_where(
        self,
        *,
        queue: str | None = None,
        types: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        scope: str | None = None,
        reason: str = "",
        command_id: str | None = None,
    ) -> str:
        """All jobs that match every condition given, on every queue. The id of the operation, which
        goes on by itself."""
        where = {"queue": queue, "types": types, "labels": labels, "scope": scope}
        body = {"where": {k: v for k, v in where.items() if v is not None}, "reason": reason}
        reply = await self._command(CancelJobs.TYPE, body, command_id)
        return str(data_of(reply)["operation_id"])

    async def put_template(
        self,
        queue: str,
        type: str,
        template: TemplateFields | Mapping[str, object] | Template,
        *,
        command_id: str | None = None,
    ) -> TemplateStored:
        """Makes the next version, unless the newest says the same."""
        content = msgspec.to_builtins(template) if isinstance(template, Template) else template
        body = {"queue": queue, "type": type, "template": content}
        answer = data_of(await self._command(PutTemplate.TYPE, body, command_id))
        stored = TemplateStored(int(answer["version"]), bool(answer["created"]))
        if stored.created:
            schema = content.get("payload_schema")
            known = UNSET if schema is None else Raw(json_bytes(schema))
            self._versions.note(queue, type, stored.version, known)
        return stored

    async def declare_input_lost(
        self,
        partition: int,
        topic: Literal["commands", "requests"],
        *,
        first: int,
        end: int,
        command_id: str | None = None,
    ) -> None:
        """An operator's word that these offsets of an intake are gone for good, `end` not included:
        its owner goes on at `end`. Refused unless they are what is missing."""
        body = {"partition": partition, "topic": topic, "first": first, "end": end}
        await self._command(DeclareInputLost.TYPE, body, command_id)

    # --- From a command to its outcome -----------------------------------------------------------
    async def _command(
        self, record_type: str, body: Mapping[str, object], command_id: str | None
    ) -> Reply:
        await self._decisions.start()
        return await self._ask(
            checked_command(
                record_type,
                {k: v for k, v in body.items() if v is not UNSET},
                _id(command_id),
                source=self._source,
                actor=self._actor,
                reply_to=self._decisions.reply_to,
            )
        )

    async def _carried(
        self, body: Mapping[str, object], command_id: CommandId, *, wait: bool, asks: bool = False
    ) -> Checked:
        """A payload that is too large for the log is in the store before its request is sent."""
        try:
            checked = self._checked_request(body, command_id, wait=wait)
        except Refused as refused:
            is_large = refused.code == PAYLOAD_TOO_LARGE and refused.pointer == "/payload"
            if self._carrier is None or not is_large:
                raise
            whole = {"queue": "default", **body}
            moved = await self._carrier.moved(whole, command_id, asks=asks)
            return self._checked_request(moved, command_id, wait=wait)
        assert isinstance(checked.command, RequestJob)
        self._versions.require(checked.command, command_id)
        return checked

    async def _asked(self, checked: Checked, body: Mapping[str, object]) -> Reply:
        """The owner's answer. Of a payload in the store it may tell by which template that is to be
        checked: then it is asked once more."""
        try:
            return await self._ask(checked)
        except Refused as refused:
            is_told = refused.code == Rejection.VIEW_BEHIND and refused.data is not None
            if self._carrier is None or refused.data is None or not is_told:
                raise
            told = msgspec.json.decode(refused.data, type=InForce)
            self._learn({"queue": "default", **body}, told)
        return await self._ask(await self._carried(body, checked.command_id, wait=True))

    def _learn(self, body: Mapping[str, Any], told: InForce) -> None:
        assert self._carrier is not None
        self._carrier.learn(body, told)
        if told.template is not None:
            version = body.get("template_version") or told.version
            schema = told.template.payload_schema
            self._versions.note(str(body["queue"]), str(body["type"]), version, schema)

    def _checked_request(
        self, body: Mapping[str, object], command_id: CommandId, *, wait: bool
    ) -> Checked:
        headers = body.get("forward_headers")
        if isinstance(headers, Mapping):
            sealed = sealed_headers(self._keyring, headers, command_id)
            body = {**body, "forward_headers": sealed}
        return checked_request(
            body,
            command_id,
            source=self._source,
            actor=self._actor,
            reply_to=self._decisions.reply_to if wait else "",
        )

    async def _ask(self, checked: Checked) -> Reply:
        """The owner's answer. Raises `Refused` and `Undecided`."""
        command_id = checked.command_id
        future = self._decisions.expect(command_id)
        try:
            sent = await self._send(checked)
            await asyncio.wait([future], timeout=self.wait_seconds)
            reply = _reply_of(future)
        finally:
            self._decisions.forget(command_id)
        if reply is None:
            raise _undecided(sent)
        if reply.outcome == "rejected":
            raise _refused(reply)
        return reply

    async def _send(self, checked: Checked) -> Submitted:
        topic, partition = self._place(checked)
        (sent,) = await self._send_to(topic, partition, [checked])
        return sent

    async def _send_all(self, checked: Sequence[Checked]) -> list[Submitted]:
        """To all partitions at once, to each one batch after the other."""
        lanes: dict[tuple[str, int], list[Checked]] = defaultdict(list)
        for one in checked:
            lanes[self._place(one)].append(one)
        sent: dict[CommandId, Submitted] = {}

        async def send(place: tuple[str, int], lane: list[Checked]) -> None:
            for batch in _batches(lane):
                for one in await self._send_to(*place, batch):
                    sent[one.command_id] = one

        try:
            async with asyncio.TaskGroup() as group:
                for place, lane in lanes.items():
                    group.create_task(send(place, lane))
        except* NotAcknowledged as errors:
            raise _first(errors) from None
        return [sent[one.command_id] for one in checked]

    async def _send_to(
        self, topic: str, partition: int, batch: Sequence[Checked]
    ) -> list[Submitted]:
        if self._outbox is None:
            raise ValueError("use it as `async with Producer(…) as producer`")
        try:
            base = await self._outbox.send(topic, partition, [one.record for one in batch])
        except LogError as error:
            raise NotAcknowledged(batch[0].command_id, str(error)) from error
        return [
            Submitted(one.command_id, topic, partition, base + place)
            for place, one in enumerate(batch)
        ]

    def _place(self, checked: Checked) -> tuple[str, int]:
        if self._partitions is None:
            raise ValueError("use it as `async with Producer(…) as producer`")
        command = checked.command
        return topic_of(command, self._topics), partition_for(command, self._partitions)

    async def _patiently(self, futures: Sequence[asyncio.Future[Reply]]) -> None:
        """Until all are done, or none was for a whole `wait_seconds`."""
        open_ = {future for future in futures if not future.done()}
        while open_:
            done, open_ = await asyncio.wait(open_, timeout=self.wait_seconds)
            if not done:
                return


def _batches(lane: Sequence[Checked]) -> Iterable[list[Checked]]:
    batch: list[Checked] = []
    size = 0
    for one in lane:
        of_one = len(one.record[1] or b"") + 1_000
        if batch and (len(batch) == BATCH_MAX or size + of_one > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += of_one
    if batch:
        yield batch


def _reply_of(future: asyncio.Future[Reply]) -> Reply | None:
    """None: it has not come, and whoever waited has given up or closed."""
    return future.result() if future.done() and not future.cancelled() else None


def _id(command_id: str | None) -> CommandId:
    return new_command_id() if command_id is None else CommandId(command_id)


def _outcome(reply: Reply) -> Outcome:
    return _refused(reply) if reply.outcome == "rejected" else accepted(reply)


def accepted(reply: Reply) -> Accepted:
    job = msgspec.json.decode(reply.job) if reply.job is not None else {}
    return Accepted(
        command_id=reply.command_id,
        job_id=reply.job_id or JobId(job.get("id", "")),
        job=job,
        position=reply.position,
        deduplicated=reply.outcome == "duplicate",
        replayed=reply.replayed,
    )


def _refused(reply: Reply) -> Refused:
    return Refused(
        reply.code or "",
        reply.detail,
        command_id=reply.command_id,
        pointer=reply.pointer,
        job_id=reply.job_id,
        job_status=reply.job_status,
        errors=reply.errors,
        data=reply.data,
    )


def _undecided(sent: Submitted) -> Undecided:
    return Undecided(sent.command_id, sent.topic, sent.partition, sent.offset)


def data_of(reply: Reply) -> dict[str, Any]:
    data: Raw | None = reply.data
    return {} if data is None else msgspec.json.decode(data)


def _first(errors: BaseExceptionGroup[NotAcknowledged]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
