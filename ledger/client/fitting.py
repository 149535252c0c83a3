"""Whether payloads and outputs meet their templates, said before they are sent. Never is refused
here what the owner would accept: see docs/templates.md."""

from __future__ import annotations

from msgspec import UNSET, Raw, UnsetType

from ledger.client.errors import Refused
from ledger.domain.commands import RequestJob
from ledger.domain.creation import EMPTY, mismatch, schema_of
from ledger.domain.ids import CommandId

VERSIONS_MAX = 1_000

_Content = Raw | UnsetType


def require_fit(
    content: _Content, value: Raw, at: str = "/payload", command_id: CommandId | None = None
) -> None:
    """Raises `Refused`, as the owner would."""
    wrong = mismatch(schema_of(content), value, at)
    if wrong is not None:
        raise Refused(
            wrong.code,
            wrong.detail,
            command_id=command_id,
            pointer=wrong.pointer,
            errors=wrong.errors,
        )


class Versions:
    """Payload schemas of versions that a producer has put, or was told of: what a version says
    never changes. Of a request that names none, a newer one may be the owner's."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[str, str, int], _Content] = {}

    def note(self, queue: str, job_type: str, version: int, schema: _Content) -> None:
        self._schemas[queue, job_type, version] = schema
        while len(self._schemas) > VERSIONS_MAX:
            del self._schemas[next(iter(self._schemas))]

    def require(self, request: RequestJob, command_id: CommandId) -> None:
        """Of a payload that goes into the log. Raises `Refused`."""
        if request.template_version is None or request.payload_ref is not None:
            return
        kind = request.queue, request.type, request.template_version
        payload = EMPTY if request.payload is UNSET else request.payload
        require_fit(self._schemas.get(kind, UNSET), payload, command_id=command_id)
