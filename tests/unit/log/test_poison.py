"""Whoever reads a topic passes over what cannot be read, whatever that is: no reader may raise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ledger.domain import commands, events
from ledger.domain.commands import Asked
from ledger.log.command_codec import Misshapen, Unreadable, command_from
from ledger.log.effective import EffectiveEntries
from ledger.log.entry_codec import TAKEN_OVER, event_from, take_over_from
from ledger.log.headers import cloud_event
from ledger.log.inbox import Assigned, BeatAnswered, OwnerChanged, inbox_from
from ledger.log.records import ReadHeader
from ledger.log.replies import Reply, reply_from
from tests.support.poison import POISON

INBOX_TYPES = (Assigned.TYPE, BeatAnswered.TYPE, OwnerChanged.TYPE)
PACKED = "1;1/1;nonce;0;0;;;;;hash"

poison = pytest.mark.parametrize("value", POISON.values(), ids=POISON)


@dataclass
class Lying:
    """A record of some type, that is not what it says."""

    value: bytes | None
    headers: list[ReadHeader]
    topic: str = "t"
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = b"default"


def saying(record_type: str, value: bytes | None) -> Lying:
    headers: list[ReadHeader] = [
        *cloud_event(record_id="id", source="tests", record_type=record_type)
    ]
    return Lying(value, headers)


@poison
def test_a_command_is_one_of_three_things(value: bytes | None) -> None:
    for record_type in commands.TYPES:
        found = command_from(saying(record_type, value))
        assert isinstance(found, Asked | Misshapen | Unreadable)


@poison
def test_an_inbox_record_or_a_reply_is_one_or_nothing(value: bytes | None) -> None:
    for record_type in INBOX_TYPES:
        assert inbox_from(saying(record_type, value)) is None
    assert reply_from(saying(Reply.TYPE, value)) is None


@poison
def test_an_event_counts_for_nobody(value: bytes | None) -> None:
    reader = EffectiveEntries("t", 0)
    for record_type in (TAKEN_OVER, *events.TYPES):
        record = saying(record_type, value)
        record.headers.append(("ce_ledger", PACKED.encode()))
        assert reader.feed(record) is None
        event_from(record_type.encode(), b"k", value or b"")
    assert take_over_from(value) is None
