"""Which jobs are equal in what their template's `dedupe_keys` point to: those that are open, and of
types that are not repeatable the one that succeeded. A retry is the same job: it never meets its
own key."""

from __future__ import annotations

from hashlib import blake2b

from msgspec import UNSET

from ledger.domain.canonical import canonical
from ledger.domain.commands import RequestJob, Template
from ledger.domain.events import JobRequested
from ledger.domain.ids import JobId, QueueName
from ledger.domain.pointers import point


def dedupe_digest(request: RequestJob | JobRequested, template: Template) -> str | None:
    """Over queue, type and what the pointers find, as RFC 8785 bytes; 32 hex digits. None: one of
    them finds nothing, so that nothing equals this request. Raises `UnsafeInteger`."""
    values = [point(request, pointer) for pointer in template.dedupe_keys]
    if not values or any(value is UNSET for value in values):
        return None
    content = canonical([request.queue, request.type, *values])
    return blake2b(content, digest_size=16).hexdigest()


class Dedupe:
    """Of one partition."""

    __slots__ = ("_done", "_done_by_type", "_open")

    def __init__(self) -> None:
        self._open: dict[str, tuple[JobId, ...]] = {}
        """More than one only where the policy allows it, or did when they were requested."""
        self._done: dict[str, JobId] = {}
        """For ever: types that may be done once only."""
        self._done_by_type: dict[tuple[QueueName, str], int] = {}

    def active(self, digest: str) -> tuple[JobId, ...]:
        return self._open.get(digest, ())

    def done(self, digest: str) -> JobId | None:
        return self._done.get(digest)

    def done_of(self, queue: QueueName, job_type: str) -> int:
        """How many keys of that type are held for ever."""
        return self._done_by_type.get((queue, job_type), 0)

    def open(self, event: JobRequested) -> None:
        digest = event.dedupe_digest
        if digest is not None:
            self._open[digest] = (*self._open.get(digest, ()), event.job_id)

    def close(self, asked: JobRequested, *, succeeded: bool) -> None:
        digest = asked.dedupe_digest
        if digest is None:
            return
        left = tuple(job_id for job_id in self._open.get(digest, ()) if job_id != asked.job_id)
        if left:
            self._open[digest] = left
        else:
            self._open.pop(digest, None)
        if succeeded and asked.once and digest not in self._done:
            self._done[digest] = asked.job_id
            kind = (asked.queue, asked.type)
            self._done_by_type[kind] = self._done_by_type.get(kind, 0) + 1

    def done_for_ever(self) -> tuple[dict[str, JobId], dict[tuple[QueueName, str], int]]:
        """By digest; and how many of each type."""
        return self._done.copy(), self._done_by_type.copy()

    def put_back(self, done: dict[str, JobId], counts: dict[tuple[QueueName, str], int]) -> None:
        self._done.update(done)
        self._done_by_type.update(counts)

    def items(self) -> list[tuple[str, tuple[JobId, ...]]]:
        return list(self._open.items())

    def done_items(self) -> list[tuple[str, JobId]]:
        return list(self._done.items())
