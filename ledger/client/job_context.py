"""What a handler is given, and how it says how its attempt ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from threading import Event
from typing import Any, Final

import msgspec
from msgspec import Struct

from ledger.client.clock import monotonic
from ledger.client.held import Held
from ledger.client.json_values import TEXT_LENGTH_MAX, clean_text
from ledger.domain.commands import ProgressSaid
from ledger.domain.events import Ref
from ledger.domain.ids import CommandId, Fence, JobId, QueueName, StepName

CODE_LENGTH_MAX = 100


class JobFailure(Exception):
    """Raise it to fail the attempt. `retryable` None: the job type's lists of codes decide."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        details: object = None,
    ) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        if not 1 <= len(code) <= CODE_LENGTH_MAX:
            raise ValueError(f"a failure's code has 1 to {CODE_LENGTH_MAX} characters")
        if retry_after is not None and not retry_after >= 0:
            raise ValueError("retry_after is a number of seconds, not negative")
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.details = details


class GiveBack(Exception):
    """Raise it to give the job back: another runtime may take it, and no attempt is spent."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class AwaitCompletion(Exception):
    """Raise it to give the lease up and wait for a result from outside, under the same fence."""

    def __init__(self, timeout_seconds: float) -> None:
        super().__init__(f"{timeout_seconds:g} s")
        if not timeout_seconds >= 0:
            raise ValueError("timeout_seconds is a number of seconds, not negative")
        self.timeout_seconds = timeout_seconds


class JobCancelled(Exception):
    """Raise it once the work has stopped because `ctx.cancelled` was set."""


class StoredOutput(Struct, frozen=True, gc=False):
    """Return it for an output that the handler has put in the object store itself.

    The owner takes only a key that `ledger.domain.object_keys.output_key` makes of the job, its
    labels and the fence.
    """

    ref: Ref


class Cancellation:
    """Whether the handler is to stop: true once it is, and awaitable until then.

    An async handler that goes on is cancelled at the deadline, a little before the job is cancelled
    without it; one in a thread cannot be.
    """

    __slots__ = ("_event", "_futures", "_said", "deadline", "is_lost", "reason")

    def __init__(self) -> None:
        self.reason = ""
        self.deadline: float | None = None
        """On the monotonic clock."""
        self.is_lost = False
        """The lease is gone: whatever the handler still does counts for nothing."""
        self._said = False
        self._event: Event | None = None
        self._futures: list[asyncio.Future[str]] | None = None

    def __bool__(self) -> bool:
        return self._said

    @property
    def seconds_left(self) -> float:
        """Infinite while nobody has asked."""
        if self.deadline is None:
            return 0.0 if self._said else float("inf")
        return max(0.0, self.deadline - monotonic())

    def wait(self, seconds: float) -> bool:
        """For handlers in threads: whether it was set within that time."""
        if not self._said and self._event is None:
            self._event = Event()
        # Set in between: the flag is set before the event is looked for, so one of both is seen.
        return self._said or (self._event is not None and self._event.wait(seconds))

    def __await__(self) -> Generator[Any, None, str]:
        """The reason."""
        if self._said:
            return self.reason
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._futures is None:
            self._futures = []
        self._futures.append(future)
        return (yield from future)

    def set(self, reason: str, deadline: float | None, *, is_lost: bool = False) -> None:
        """Called by the runtime; in the handler's loop if it is async."""
        if not self._said:
            self.reason, self.deadline = reason, deadline
        self.is_lost = self.is_lost or is_lost
        self._said = True
        if self._event is not None:
            self._event.set()
        for future in self._futures or ():
            if not future.done():
                future.set_result(reason)


class Context:
    """One attempt at one job."""

    __slots__ = ("_held", "_inputs", "_job", "_payload", "_progress", "cancelled")

    def __init__(self, held: Held, progress: Callable[[Held, ProgressSaid], None]) -> None:
        self._held: Final = held
        self._progress = progress
        self._job: dict[str, Any] | None = None
        self._payload: Any = msgspec.UNSET
        self._inputs: dict[str, Any] | None = None
        self.cancelled: Final = Cancellation()

    @property
    def job_id(self) -> JobId:
        return self._held.job_id

    @property
    def type(self) -> str:
        return self._held.job.type

    @property
    def queue(self) -> QueueName:
        return self._held.session.queue

    @property
    def payload(self) -> Any:
        if self._payload is msgspec.UNSET:
            self._payload = msgspec.json.decode(self._held.job.payload)
        return self._payload

    @property
    def payload_json(self) -> bytes:
        """As it was sent, byte for byte; `{}` where `payload_ref` says where it lies."""
        return bytes(self._held.job.payload)

    @property
    def payload_ref(self) -> Ref | None:
        return self._held.job.payload_ref

    @property
    def sealed_headers(self) -> tuple[str, CommandId] | None:
        """The job's `forward_headers` as they are sealed, and the command that they are sealed for:
        see `ledger.sealing.forward_headers.open_headers`."""
        sealed, command_id = self._held.job.forward_headers, self._held.job.sealed_for
        return None if sealed is None or command_id is None else (sealed, CommandId(command_id))

    @property
    def labels(self) -> dict[str, str]:
        return self._held.job.labels

    @property
    def inputs(self) -> dict[str, Any]:
        """Outputs of the steps that this one needs, by name."""
        if self._inputs is None:
            inputs = self._held.job.inputs
            self._inputs = {name: msgspec.json.decode(output) for name, output in inputs.items()}
        return self._inputs

    @property
    def input_refs(self) -> dict[str, Ref]:
        """Where those of them lie that are kept in the object store. `Runtime(objects=…)` has
        fetched them."""
        return self._held.job.input_refs

    def give(self, payload: Any, inputs: dict[str, Any] | None) -> None:
        """Called by the runtime: what it has fetched."""
        self._payload = payload
        self._inputs = inputs

    @property
    def item(self) -> Any:
        """What this one is to work on, of a step that is done once for each item of a list."""
        item = self._held.job.item
        return None if item is msgspec.UNSET else msgspec.json.decode(item)

    @property
    def job(self) -> dict[str, Any]:
        """What running it takes, under the names of `GET /v1/jobs/{id}`, when it was assigned."""
        if self._job is None:
            self._job = _view_of(self._held)
        return self._job

    @property
    def step(self) -> StepName:
        return self._held.item.step

    @property
    def attempt(self) -> int:
        """1 at the first."""
        return self._held.item.attempt

    @property
    def max_attempts(self) -> int:
        return self._held.job.max_attempts

    @property
    def fence(self) -> Fence:
        """Grows with every lease of the job. Quote it wherever a late writer must lose."""
        return self._held.fence

    @property
    def idempotency_key(self) -> str:
        """Of this attempt, for the `Idempotency-Key` of what it calls."""
        return f"{self._held.job_id}:{self._held.fence}"

    @property
    def timeout_seconds(self) -> float:
        """The attempt may not take longer, from its start."""
        return self._held.job.timeout_seconds

    def progress(
        self,
        percent: float | None = None,
        phase: str | None = None,
        message: str | None = None,
    ) -> None:
        """From any thread. The last word wins; a second's words are recorded as one."""
        if percent is not None and not 0 <= percent <= 100:
            raise ValueError(f"{percent} is no percentage")
        said = ProgressSaid(
            None if percent is None else float(percent), _clean(phase), _clean(message)
        )
        self._progress(self._held, said)


def _view_of(held: Held) -> dict[str, Any]:
    item, brief = held.item, held.job
    return {
        "id": held.job_id,
        "type": brief.type,
        "queue": held.session.queue,
        "status": "leased",
        "payload": msgspec.json.decode(brief.payload),
        "payload_ref": msgspec.to_builtins(brief.payload_ref),
        "labels": brief.labels,
        "scope": brief.scope,
        "priority": brief.priority,
        "timeout_seconds": brief.timeout_seconds,
        "lease_seconds": brief.lease_seconds,
        "attempt": item.attempt,
        "max_attempts": brief.max_attempts,
        "lease": {
            "runtime_id": held.session.runtime_id,
            "step": item.step,
            "fence": held.fence,
            "since": item.lease_since,
            "expires_at": item.lease_expires_at,
        },
        "retried_from": brief.retried_from,
        "schedule": brief.schedule,
        "created_at": brief.created_at,
    }


def _clean(text: str | None) -> str | None:
    return None if text is None else clean_text(text, TEXT_LENGTH_MAX)
