"""The coordinator of one consumer group, by Kafka's classic protocol: join, sync, heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tests.simulation.loop import Loop

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

LOOK_SECONDS = 0.25


class Joined(Struct, frozen=True):
    """How a round of joining ended for one member."""

    generation: int
    members: Mapping[str, Any] | None
    """Of the leader's: everybody's metadata, to deal the shares out."""


class Member(Struct):
    heard_at: float
    metadata: Any = None
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[Any] | None = None


class Group:
    """A member that was expelled is told so with its next heartbeat, not before."""

    def __init__(self, loop: Loop, broker: Broker, *, session_seconds: float) -> None:
        self._loop = loop
        self._broker = broker
        self._session_seconds = session_seconds
        self._members: dict[str, Member] = {}
        self._count = 0
        self._generation = 0
        self._is_joining = False
        self._round = 0
        self._shares: Mapping[str, Any] = {}
        self._looks = False
        self.disturbed = 0
        """Rounds that began while some append was under way."""

    def join(self, member_id: str, metadata: Any) -> tuple[str, asyncio.Future[Joined]]:
        if member_id not in self._members:
            self._count += 1
            member_id = f"member-{self._count}"
            self._members[member_id] = Member(self._loop.now)
        member = self._members[member_id]
        member.metadata, member.heard_at = metadata, self._loop.now
        joining = member.joining = self._loop.create_future()
        member.syncing = None
        self._watch()
        self._begin_round()
        self._complete_round()
        return member_id, joining

    def sync(self, member_id: str, generation: int, shares: Mapping[str, Any] | None) -> Any:
        """A future of the member's share; None: it is in no such generation."""
        member = self._members.get(member_id)
        if member is None or generation != self._generation or self._is_joining:
            return None
        member.heard_at = self._loop.now
        member.syncing = self._loop.create_future()
        if shares is not None:
            self._shares = shares
            self._broker.note("shared", sorted((m, s.assignment) for m, s in shares.items()))
        for each_id, each in self._members.items():
            if each_id in self._shares and each.syncing is not None and not each.syncing.done():
                each.syncing.set_result(self._shares[each_id])
        return member.syncing

    def heartbeat(self, member_id: str, generation: int) -> str:
        """`stable`, `rebalancing` or `unknown`."""
        member = self._members.get(member_id)
        if member is None:
            return "unknown"
        member.heard_at = self._loop.now
        return "rebalancing" if self._is_joining or generation != self._generation else "stable"

    def leave(self, member_id: str) -> None:
        if self._members.pop(member_id, None) is not None:
            self._broker.note("left", member_id)
            self._begin_round()
            self._complete_round()

    def expel(self) -> str | None:
        """The first member, as if it had been silent."""
        member_id = next(iter(self._members), None)
        if member_id is not None:
            self.leave(member_id)
        return member_id

    # --- Rounds ----------------------------------------------------------------------------------
    def _begin_round(self) -> None:
        if self._is_joining or not self._members:
            return
        self._is_joining = True
        self._round += 1
        self.disturbed += any(self._broker.under_way.values())
        self._shares = {}
        for member in self._members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_result(None)
        self._broker.after(self._session_seconds, self._drop_late, self._round)

    def _drop_late(self, number: int) -> None:
        if self._is_joining and number == self._round:
            for member_id in [m for m, each in self._members.items() if each.joining is None]:
                del self._members[member_id]
            self._complete_round()

    def _complete_round(self) -> None:
        if not self._is_joining or any(each.joining is None for each in self._members.values()):
            return
        self._is_joining = False
        self._generation += 1
        self._shares = {}
        leader = next(iter(self._members), None)
        metadata = {member_id: each.metadata for member_id, each in self._members.items()}
        for member_id, each in self._members.items():
            each.heard_at = self._loop.now
            joining, each.joining = each.joining, None
            if joining is not None and not joining.done():
                told = metadata if member_id == leader else None
                joining.set_result(Joined(self._generation, told))

    def _watch(self) -> None:
        if not self._looks:
            self._looks = True
            self._broker.after(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        silent_since = self._loop.now - self._session_seconds
        for member_id, each in list(self._members.items()):
            if each.heard_at < silent_since and each.joining is None:
                self._broker.note("expelled", member_id)
                self.leave(member_id)
        self._looks = bool(self._members)
        if self._looks:
            self._broker.after(LOOK_SECONDS, self._look)
