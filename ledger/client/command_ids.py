"""Ids that a client makes: of its commands, and of a runtime's sessions. Both sort by time."""

from __future__ import annotations

import os
from uuid import UUID

from ledger.client.clock import wall_clock
from ledger.domain.ids import CommandId, Micros, Session, uuid7


def new_command_id(at: Micros | None = None) -> CommandId:
    """A uuid7. Sending a command again under the same id is safe."""
    return CommandId(_random(at))


def new_session(after: Session | None = None, at: Micros | None = None) -> Session:
    """Sorts behind all that began earlier, and behind `after` even if the clock went back."""
    session = Session(_random(at))
    if after is None or session > after:
        return session
    return Session(str(UUID(int=UUID(after).int + (1 << 80))))


def _random(at: Micros | None) -> str:
    return uuid7(wall_clock() if at is None else at, os.urandom(10).hex())
