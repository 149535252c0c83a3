"""The producer and the auditor for code without a loop: scripts, notebooks, a REPL.

    with sync.Producer("127.0.0.1:9092") as producer:
        print(producer.submit("echo", {"n": 1}).job_id)

Each works on a loop in a thread of its own; a call returns or raises what the same call of
`ledger.client.producer` or `ledger.client.auditor` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from threading import Thread
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from ledger.client import auditor, producer
from ledger.client.auditor import HistoryEvent, Instant, Progress, Verdict
from ledger.client.producer import (
    Accepted,
    Outcome,
    Submitted,
    TemplateFields,
    TemplateStored,
)
from ledger.client.requests import RequestFields
from ledger.domain.commands import Template
from ledger.log.connection import Connection
from ledger.log.effective import Effective
from ledger.objects import ObjectStore

T = TypeVar("T")
C = TypeVar("C", producer.Producer, auditor.Auditor)


async def _next(items: AsyncGenerator[Effective, None]) -> Effective | None:
    return await anext(items, None)


class _InThread(Generic[C]):
    """A client on a loop in a thread of its own, from `with` to its end."""

    def __init__(self, client: C) -> None:
        self._client: C = client
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="ledger-client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._call(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._call(self._client.__aexit__(kind, error, trace))
        finally:
            self._end()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise ValueError("use it as `with … as …`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Such as KeyboardInterrupt, which only this thread gets.
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Producer(_InThread[producer.Producer]):
    """See `ledger.client.producer.Producer`."""

    def __init__(
        self,
        bootstrap: str | Connection,
        *,
        partitions: int | None = None,
        prefix: str = "",
        wait_seconds: float = producer.WAIT_SECONDS,
        source: str = "ledger/client",
        actor: str = "",
        objects: ObjectStore | None = None,
    ) -> None:
        super().__init__(
            producer.Producer(
                bootstrap,
                partitions=partitions,
                prefix=prefix,
                wait_seconds=wait_seconds,
                source=source,
                actor=actor,
                objects=objects,
            )
        )

    @overload
    def submit(
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
    def submit(
        self,
        type: str,
        payload: object = ...,
        *,
        queue: str = ...,
        wait: Literal[False],
        command_id: str | None = ...,
        **fields: Unpack[RequestFields],
    ) -> Submitted: ...

    def submit(self, type: str, payload: object = UNSET, **options: Any) -> Accepted | Submitted:
        answer: Accepted | Submitted = self._call(self._client.submit(type, payload, **options))
        return answer

    @overload
    def submit_many(
        self, requests: Iterable[Mapping[str, object]], *, await_decision: Literal[False] = ...
    ) -> list[Submitted]: ...

    @overload
    def submit_many(
        self, requests: Iterable[Mapping[str, object]], *, await_decision: Literal[True]
    ) -> list[Outcome]: ...

    def submit_many(
        self, requests: Iterable[Mapping[str, object]], *, await_decision: bool = False
    ) -> list[Submitted] | list[Outcome]:
        if await_decision:
            return self._call(self._client.submit_many(requests, await_decision=True))
        return self._call(self._client.submit_many(requests))

    def cancel(
        self,
        job_id: str,
        reason: str = "",
        *,
        if_version: int | None = None,
        command_id: str | None = None,
    ) -> Accepted:
        return self._call(
            self._client.cancel(job_id, reason, if_version=if_version, command_id=command_id)
        )

    def rerun(
        self,
        job_id: str,
        *,
        payload: object = UNSET,
        labels: Mapping[str, str] | UnsetType = UNSET,
        priority: int | UnsetType = UNSET,
        from_failed: bool = False,
        command_id: str | None = None,
    ) -> Accepted:
        return self._call(
            self._client.rerun(
                job_id,
                payload=payload,
                labels=labels,
                priority=priority,
                from_failed=from_failed,
                command_id=command_id,
            )
        )

    def cancel_where(
        self,
        *,
        queue: str | None = None,
        types: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        scope: str | None = None,
        reason: str = "",
        command_id: str | None = None,
    ) -> str:
        return self._call(
            self._client.cancel_where(
                queue=queue,
                types=types,
                labels=labels,
                scope=scope,
                reason=reason,
                command_id=command_id,
            )
        )

    def put_template(
        self,
        queue: str,
        type: str,
        template: TemplateFields | Mapping[str, object] | Template,
        *,
        command_id: str | None = None,
    ) -> TemplateStored:
        return self._call(self._client.put_template(queue, type, template, command_id=command_id))


class Auditor(_InThread[auditor.Auditor]):
    """See `ledger.client.auditor.Auditor`."""

    def __init__(
        self,
        bootstrap: str | Connection,
        *,
        partitions: int | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__(auditor.Auditor(bootstrap, partitions=partitions, prefix=prefix))

    def history(self, job_id: str) -> list[HistoryEvent]:
        return self._call(self._client.history(job_id))

    def job(self, job_id: str, *, as_of: Instant | int | None = None) -> dict[str, Any] | None:
        return self._call(self._client.job(job_id, as_of=as_of))

    def replay(self, partition: int, *, until: int | None = None) -> Iterator[Effective]:
        replay = self._client.replay(partition, until=until)
        try:
            while (item := self._call(_next(replay))) is not None:
                yield item
        finally:
            self._call(replay.aclose())

    def verify_chain(
        self, partitions: Iterable[int] | None = None, *, progress: Progress | None = None
    ) -> list[Verdict]:
        return self._call(self._client.verify_chain(partitions, progress=progress))
