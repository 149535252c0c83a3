"""What a client raises. A refusal is the ledger's word; the others say what is not known."""

from __future__ import annotations

from msgspec import Raw

from ledger.domain.ids import CommandId, JobId
from ledger.domain.rejections import FieldError


class ClientError(Exception):
    """The ledger did not do as asked, or nobody knows."""


class Refused(ClientError):
    """The command was refused, here before it was sent or by the owner. `code` is of the catalogue
    in `ledger.domain.rejections`, or MALFORMED_JSON or PAYLOAD_TOO_LARGE."""

    def __init__(
        self,
        code: str,
        detail: str = "",
        *,
        command_id: CommandId | None = None,
        pointer: str | None = None,
        job_id: JobId | None = None,
        job_status: str | None = None,
        errors: tuple[FieldError, ...] = (),
        data: Raw | None = None,
    ) -> None:
        place = f" (at {pointer})" if pointer else ""
        super().__init__(f"{code}: {detail}{place}")
        self.code = code
        self.detail = detail
        self.command_id = command_id
        self.pointer = pointer
        self.job_id = job_id
        self.job_status = job_status
        self.errors = errors
        """All that is wrong, where it is more than one thing."""
        self.data = data
        """What else the owner told, as JSON."""


class StoreFailed(ClientError):
    """The object store did not take or give what is too large for the log. Nothing was sent."""

    def __init__(self, reason: str, *, is_passing: bool) -> None:
        super().__init__(reason)
        self.is_passing = is_passing
        """False: trying again does not help, for the object is gone or damaged."""


class Undecided(ClientError):
    """The command is in the log, and no decision came in time. It may still be accepted; sending it
    again under the same `command_id` is safe."""

    def __init__(self, command_id: CommandId, topic: str, partition: int, offset: int) -> None:
        super().__init__(f"{command_id} at {topic}[{partition}]@{offset} is not decided yet")
        self.command_id = command_id
        self.topic = topic
        self.partition = partition
        self.offset = offset


class NotAcknowledged(ClientError):
    """The brokers did not acknowledge in time: the command may be in the log or not. Sending it
    again under the same `command_id` is safe."""

    def __init__(self, command_id: CommandId, reason: str) -> None:
        super().__init__(f"{command_id} was not acknowledged: {reason}")
        self.command_id = command_id
