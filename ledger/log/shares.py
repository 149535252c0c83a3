"""Who gets which partition: evenly, and with as few hand-overs as that allows.

aiokafka's round robin deals all partitions anew whenever a member comes or goes, so that most of
them change hands, each with a take-over that folds its log; its sticky assignor keeps what it knows
in the class, one for all consumers of a process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from msgspec import Struct

VERSION = 0


class Claim(Struct, frozen=True, gc=False):
    """What a member was given last, and in which round of the group."""

    round: int = 0
    partitions: tuple[int, ...] = ()


def undisputed(claims: Mapping[str, Claim]) -> dict[str, frozenset[int]]:
    """Of two members that claim one partition the one of the later round has it: the other was
    away when it changed hands."""
    holders: dict[int, str] = {}
    for member in sorted(claims, key=lambda member: (claims[member].round, member)):
        holders.update(dict.fromkeys(claims[member].partitions, member))
    return {
        member: frozenset(p for p in claims[member].partitions if holders[p] == member)
        for member in claims
    }


def shares(
    partitions: Collection[int], held: Mapping[str, Collection[int]]
) -> dict[str, tuple[int, ...]]:
    """Of each member. None has two more than another; no partition moves without need. `held` has
    every member, and no partition twice."""
    least, more = divmod(len(partitions), len(held))
    # Where not all can have the same, those that hold most keep one more.
    members = sorted(held, key=lambda member: (-len(held[member]), member))
    room = {member: least + (place < more) for place, member in enumerate(members)}
    kept = {
        member: sorted(set(held[member]).intersection(partitions))[: room[member]]
        for member in members
    }
    free = iter(sorted(set(partitions).difference(*kept.values())))
    return {
        member: tuple(sorted([*kept[member], *islice(free, room[member] - len(kept[member]))]))
        for member in members
    }


class KeepingAssignor:
    """As aiokafka wants one, but an object: it remembers what its own consumer was given. Each
    member sends that along when it joins; the group's leader deals the shares out."""

    name = "ledger-keeping"

    def __init__(self) -> None:
        self._claim = Claim()

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        claim = msgspec.json.encode(self._claim)
        return ConsumerProtocolMemberMetadata(VERSION, list(topics), claim)

    def assign(
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        (topic,) = {topic for found in members.values() for topic in found.subscription}
        claims = {
            member: msgspec.json.decode(found.user_data, type=Claim)
            for member, found in members.items()
        }
        dealt = shares(cluster.partitions_for_topic(topic) or (), undisputed(claims))
        this_round = 1 + max(claim.round for claim in claims.values())
        return {
            member: ConsumerProtocolMemberAssignment(
                VERSION,
                [(topic, list(share))],
                msgspec.json.encode(Claim(this_round, share)),
            )
            for member, share in dealt.items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        self._claim = msgspec.json.decode(assignment.user_data, type=Claim)
