"""Who gets which partition when members come and go."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from ledger.log.shares import Claim, KeepingAssignor, shares, undisputed

TOPIC = "commands"


@st.composite
def held_by_members(draw: st.DrawFn) -> tuple[range, dict[str, list[int]]]:
    """Partitions, and who of the members holds which of them; some are nobody's."""
    partitions = range(draw(st.integers(0, 24)))
    members = [f"m{number}" for number in range(draw(st.integers(1, 8)))]
    held: dict[str, list[int]] = {member: [] for member in members}
    for partition in partitions:
        holder = draw(st.sampled_from([*members, None]))
        if holder is not None:
            held[holder].append(partition)
    return partitions, held


@given(held_by_members())
def test_every_partition_is_one_members_and_none_has_two_more_than_another(
    case: tuple[range, dict[str, list[int]]],
) -> None:
    partitions, held = case
    dealt = shares(partitions, held)
    assert sorted(p for share in dealt.values() for p in share) == list(partitions)
    counts = [len(share) for share in dealt.values()]
    assert dealt.keys() == held.keys()
    assert max(counts) - min(counts) <= 1


@given(held_by_members())
def test_as_few_partitions_change_hands_as_an_even_share_allows(
    case: tuple[range, dict[str, list[int]]],
) -> None:
    partitions, held = case
    dealt = shares(partitions, held)
    kept = sum(len(set(held[member]) & set(dealt[member])) for member in held)
    least, more = divmod(len(partitions), len(held))
    larger = sorted((len(of_member) for of_member in held.values()), reverse=True)
    assert kept == sum(min(count, least + (place < more)) for place, count in enumerate(larger))


@given(held_by_members())
def test_dealt_out_again_nothing_moves(case: tuple[range, dict[str, list[int]]]) -> None:
    partitions, held = case
    dealt = shares(partitions, held)
    assert shares(partitions, dealt) == dealt


def test_of_two_that_claim_a_partition_the_one_of_the_later_round_has_it() -> None:
    claims = {"was away": Claim(3, (0, 1, 2)), "stayed": Claim(4, (1, 3))}
    assert undisputed(claims) == {"was away": {0, 2}, "stayed": {1, 3}}


class Member:
    """Of a group without a broker: what aiokafka does with an assignor, on the wire's bytes."""

    def __init__(self) -> None:
        self.assignor = KeepingAssignor()
        self.share: set[int] = set()


def rebalance(members: Mapping[str, Member], *, partitions: int) -> None:
    kinds = type(next(iter(members.values())).assignor.metadata([TOPIC]))
    joined = {
        name: kinds.decode(member.assignor.metadata([TOPIC]).encode())
        for name, member in members.items()
    }
    leader = next(iter(members.values())).assignor
    cluster = SimpleNamespace(partitions_for_topic=lambda _: set(range(partitions)))
    for name, assignment in leader.assign(cluster, joined).items():
        received = type(assignment).decode(assignment.encode())
        members[name].assignor.on_assignment(received)
        members[name].share = {place.partition for place in received.partitions()}


def test_in_a_rolling_restart_the_members_that_stay_keep_what_they_have() -> None:
    first, second, third = Member(), Member(), Member()
    rebalance({"a": first, "b": second}, partitions=8)
    before = {*second.share}
    rebalance({"a": first, "b": second, "c": third}, partitions=8)
    during = {*second.share}
    assert (len(first.share), len(during), len(third.share)) == (3, 3, 2)
    assert during < before
    rebalance({"b": second, "c": third}, partitions=8)
    assert during < second.share
    assert len(second.share) == len(third.share) == 4
