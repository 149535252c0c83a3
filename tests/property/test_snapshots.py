"""A state that was written and read back is the same state, and goes on as the other does."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.domain.digest import folded
from ledger.domain.entries import Entry, TakeOver
from ledger.domain.events import Event
from ledger.domain.ids import Micros
from ledger.domain.partition import Partition
from ledger.domain.snapshot import Restored, Taken, decoded, encoded
from tests.property import test_flows_on_any_log as flows
from tests.property import test_rules_on_any_log as plain
from tests.support.examples import examples

AnyEntry = Entry | TakeOver


def could_be_in_a_log(event: Event) -> bool:
    """Some that the generators make are no JSON, which no record holds."""
    try:
        msgspec.json.decode(msgspec.json.encode(event))
    except msgspec.DecodeError:
        return False
    return True


def sifted(entries: Sequence[AnyEntry]) -> list[AnyEntry]:
    return [
        entry
        if isinstance(entry, TakeOver)
        else msgspec.structs.replace(entry, events=tuple(filter(could_be_in_a_log, entry.events)))
        for entry in entries
    ]


logs = st.one_of(plain.logs.map(plain.entries_of), flows.logs.map(flows.entries_of)).map(sifted)


def read_back(partition: Partition) -> Partition:
    restored = Restored(Partition(partition.number, partition.bounds))
    for part in Taken(partition).parts():
        restored.add(decoded(encoded(part)))
    return restored.partition


@settings(max_examples=examples(150), deadline=None)
@given(logs, st.data())
def test_a_state_read_back_goes_on_as_if_it_had_been_folded(
    log: list[AnyEntry], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(log)))
    one = Partition(0, plain.BOUNDS)
    plain.fold(one, log[:cut])
    other = read_back(one)
    assert folded(other) == folded(one)
    plain.fold(one, log[cut:])
    plain.fold(other, log[cut:])
    assert folded(other) == folded(one)
    far = Micros(10**12)
    assert {job.id for job in other.due(far, 100)} == {job.id for job in one.due(far, 100)}
    for queue in one.queues:
        asked = (queue, ("t", "u", "a", "b"), 100, far)
        assert other.best(*asked) == one.best(*asked)
    assert other.schedule_timers.pop(far, 100) == one.schedule_timers.pop(far, 100)
