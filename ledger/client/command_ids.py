"""Ids that a client makes: of its commands, and of a runtime's sessions. Both sort by time."""

from __future__ import annotations

from os import urandom
from uuid import UUID

from ledger.client.clock import wall_clock
from ledger.domain.ids import CommandId, Micros, Session


def new_command_id(at: Micros | None = None) -> CommandId:
    """A uuid7. Sending a command again under the same id is safe."""
    return CommandId(_uuid7(wall_clock() if at is None else at))


def new_session(after: Session | None = None, at: Micros | None = None) -> Session:
    """Sorts behind all that began earlier, and behind `after` even if the clock went back."""
    session = Session(_uuid7(wall_clock() if at is None else at))
    if after is None or session > after:
        return session
    return Session(str(UUID(int=UUID(after).int + (1 << 80))))


def _uuid7(at: Micros) -> str:
    chance = int.from_bytes(urandom(10), "big")
    value = (at // 1000 & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (chance >> 62 & 0xFFF) << 64
    text = f"{value | 0b10 << 62 | chance & (1 << 62) - 1:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
