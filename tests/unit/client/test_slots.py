"""Slots shared by the queues of one runtime."""

from __future__ import annotations

import pytest

from ledger.client.command_ids import new_session
from ledger.client.runtime_session import QueueSession
from ledger.client.slots import Slots
from ledger.domain.ids import QueueName, RuntimeId
from ledger.log.inbox import BeatAnswered

PERIOD_SECONDS = 5.0


def served(count: int) -> list[QueueSession]:
    sessions = [
        QueueSession(
            QueueName(f"q{number}"),
            runtime_id=RuntimeId("r1"),
            session=new_session(),
            types=("echo",),
            period_seconds=PERIOD_SECONDS,
            now=0.0,
        )
        for number in range(count)
    ]
    for session in sessions:
        session.open_inbox()
        speak(session, 0)
    return sessions


def speak(session: QueueSession, free: int) -> None:
    """A beat with so many slots, and its answer."""
    session.speak(0.0, free)
    session.take(BeatAnswered(session.session, session.queue, session.beat), 0.0)


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("slots", [1, 5, 10])
def test_every_slot_is_somebodys(count: int, slots: int) -> None:
    sessions = served(count)
    shares = Slots(slots, sessions)
    for now in (0.0, 5.0, 10.0, 99.0):
        parts = [shares.free_for(session, now) for session in sessions]
        assert sum(parts) == slots
        assert max(parts) - min(parts) <= 1


def test_what_cannot_be_divided_goes_round() -> None:
    sessions = served(2)
    shares = Slots(1, sessions)
    of_first = [shares.free_for(sessions[0], turn * PERIOD_SECONDS) for turn in range(4)]
    assert of_first == [1, 0, 1, 0]


def test_what_was_offered_to_one_is_free_for_another_once_that_is_answered() -> None:
    first, second = served(2)
    shares = Slots(10, [first, second])
    speak(first, 10)
    assert shares.free_for(second, 0.0) == 0
    assert not shares.has_more_for(second, 0.0)
    first.speak(0.0, 5)
    assert shares.free_for(second, 0.0) == 0
    first.take(BeatAnswered(first.session, first.queue, first.beat), 0.0)
    assert shares.free_for(second, 0.0) == 5
    assert shares.has_more_for(second, 0.0)
