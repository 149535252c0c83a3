"""One attempt at a call: what the job and its model say becomes a request, what the model answers
becomes an object, and what goes wrong a failure of the attempt.

A secret is opened here, just before it is sent, and kept nowhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar, final

from ledger.client import Context, JobCancelled, JobFailure, StoredOutput
from ledger.client.carrying import Carrier
from ledger.client.endings import of_store
from ledger.client.errors import StoreFailed
from ledger.domain.commands import Model
from ledger.domain.events import Ref
from ledger.domain.object_keys import output_key
from ledger.sealing.api_keys import open_api_key
from ledger.sealing.forward_headers import open_headers
from ledger.sealing.keyring import Keyring
from ledger.sealing.sealed import SealingError
from ledger.sealing.secret import Secret
from processors.model_calls.calling import ModelCaller
from processors.model_calls.model_request import Target
from processors.model_calls.outcomes import INVALID_CREDENTIAL, Answer, CallFailed

MODEL_NOT_FOUND = "MODEL_NOT_FOUND"

T = TypeVar("T")
FindModel = Callable[[str], Awaitable[Model | None]]


@final
class ModelCalls:
    """`call` is the handler of every model's jobs."""

    def __init__(
        self, find: FindModel, caller: ModelCaller, carrier: Carrier, keyring: Keyring | None
    ) -> None:
        self._find = find
        self._caller = caller
        self._carrier = carrier
        self._keyring = keyring
        self.under_way = 0
        self.answered = 0
        self.failed: Counter[str] = Counter()
        """Attempts by the code that they failed with."""

    async def call(self, ctx: Context) -> StoredOutput:
        self.under_way += 1
        try:
            output = await self._call(ctx)
        except JobFailure as failure:
            self.failed[failure.code] += 1
            raise
        finally:
            self.under_way -= 1
        self.answered += 1
        return output

    async def _call(self, ctx: Context) -> StoredOutput:
        model = await self._find(ctx.type)
        if model is None:
            detail = f"there is no model {ctx.type} any more"
            raise JobFailure(MODEL_NOT_FOUND, detail, retryable=False)
        target = self._target(ctx.type, model)
        headers = self._headers(ctx)
        payload = await self._payload(ctx)
        found = await _unless_cancelled(
            ctx,
            self._caller.call(
                target,
                payload,
                idempotency_key=ctx.idempotency_key,
                forward_headers=headers,
            ),
        )
        if isinstance(found, CallFailed):
            raise JobFailure(
                found.code,
                found.message,
                retryable=found.retryable,
                retry_after=found.retry_after_seconds,
                details=found.details,
            )
        return StoredOutput(await self._stored(ctx, found))

    # --- What goes out ---------------------------------------------------------------------------
    def _target(self, name: str, model: Model) -> Target:
        api_key = None
        if isinstance(model.api_key, str):
            try:
                api_key = open_api_key(self._keys("the model's API key"), model.api_key, model=name)
            except SealingError as error:
                raise _unopened("the model's API key", error) from None
        return Target(
            base_url=model.base_url,
            route=model.route,
            method=model.method,
            api_key=api_key,
            api_key_header=model.api_key_header,
            timeout_seconds=model.timeout_seconds,
        )

    def _headers(self, ctx: Context) -> Mapping[str, Secret]:
        if ctx.sealed_headers is None:
            return {}
        sealed, command_id = ctx.sealed_headers
        try:
            return open_headers(self._keys("forward_headers"), sealed, command_id=command_id)
        except SealingError as error:
            raise _unopened("forward_headers", error) from None

    def _keys(self, what: str) -> Keyring:
        if self._keyring is None:
            detail = f"{what}: sealed, and this process has no LEDGER_SEALING_KEYS"
            raise JobFailure(INVALID_CREDENTIAL, detail, retryable=False)
        return self._keyring

    async def _payload(self, ctx: Context) -> bytes:
        if ctx.payload_ref is None:
            return ctx.payload_json
        try:
            return await self._carrier.get(ctx.payload_ref)
        except StoreFailed as failed:
            raise of_store(failed) from None

    # --- What comes back -------------------------------------------------------------------------
    async def _stored(self, ctx: Context, answer: Answer) -> Ref:
        key = output_key(ctx.job_id, ctx.labels, ctx.fence, _file_name(answer.content_type))
        try:
            return await self._carrier.put(key, answer.body)
        except StoreFailed as failed:
            raise of_store(failed) from None


def _unopened(what: str, error: SealingError) -> JobFailure:
    return JobFailure(INVALID_CREDENTIAL, f"{what} cannot be opened: {error}", retryable=False)


def _file_name(content_type: str) -> str:
    """By it the api knows what to call the bytes."""
    media_type = content_type.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    return "output.json" if is_json else "output.bin"


async def _unless_cancelled(ctx: Context, call: Awaitable[T]) -> T:
    """Raises `JobCancelled` once the job is cancelled. The connection is closed in any case."""
    calling = asyncio.ensure_future(call)
    stopping = asyncio.ensure_future(ctx.cancelled)
    try:
        await asyncio.wait((calling, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not calling.done():
            raise JobCancelled
        return calling.result()
    finally:
        calling.cancel()
        stopping.cancel()
        await asyncio.wait((calling, stopping))
