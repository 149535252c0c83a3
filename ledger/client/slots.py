"""The slots of a runtime, shared by the queues that it serves."""

from __future__ import annotations

from collections.abc import Collection

from ledger.client.runtime_session import QueueSession


class Slots:
    def __init__(self, count: int, sessions: Collection[QueueSession]) -> None:
        self._count = count
        self._sessions = list(sessions)

    def free_for(self, session: QueueSession, now: float) -> int:
        """An even part each, what is over goes round in turn. What was offered to one is free for
        another once its owner has answered that it is not any more."""
        sessions = self._sessions
        free = self._count - sum(other.occupied for other in sessions)
        if len(sessions) == 1 or free <= 0:
            return free
        even, over = divmod(free, len(sessions))
        turn = int(now / session.period)
        place = (sessions.index(session) + turn) % len(sessions)
        offered = sum(other.outstanding for other in sessions if other is not session)
        return min(even + (place < over), free - offered)

    def has_more_for(self, session: QueueSession, now: float) -> bool:
        """A slot that another queue gave up."""
        if len(self._sessions) == 1 or session.draining or not session.is_served:
            return False
        return self.free_for(session, now) > session.offered
