"""Schedules in an owner's turns: who is looked at, and what an edit finds done before it."""

from __future__ import annotations

import pytest
from msgspec import Raw

from ledger.domain import schedules
from ledger.domain.commands import (
    Asked,
    DisableSchedule,
    PutSchedule,
    PutTemplate,
    RequestJob,
    Schedule,
    Template,
)
from ledger.domain.entries import Entry
from ledger.domain.events import CommandRejected, JobRequested, ScheduleFired, SchedulePut
from ledger.domain.ids import SECOND, CommandId, Micros
from ledger.domain.rejections import Rejection
from processors.owner.turn import Turn
from tests.unit.owner.by_hand import QUEUE, Owner, events_of

pytestmark = pytest.mark.rule("S2.6")


@pytest.fixture
def owner() -> Owner:
    return Owner()


def put(cron: str = "* * * * *", name: str = "nightly") -> PutSchedule:
    return PutSchedule(QUEUE, name, Schedule(cron, "sum"))


def looks(owner: Owner, seconds: float, many: int = 1000) -> tuple[Turn, int]:
    owner.at = Micros(owner.at + round(seconds * SECOND))
    turn = owner.turn()
    looked_at = turn.schedules(turn.at, many)
    turn.finish()
    return turn, looked_at


def test_an_occurrence_is_one_entry_of_a_timer(owner: Owner) -> None:
    owner.does(put())
    turn, looked_at = looks(owner, 60)
    assert looked_at == 1
    (entry,) = turn.entries
    assert [type(event) for event in entry.events] == [JobRequested, ScheduleFired]
    assert entry.cause == "timer"
    assert looks(owner, 0)[1] == 0


def test_no_more_are_fired_in_a_turn_than_it_may_and_the_others_in_the_next(owner: Owner) -> None:
    owner.does(*(put(name=f"s{number}") for number in range(5)))
    fired = []
    owner.at = Micros(owner.at + 60 * SECOND)
    for _ in range(4):
        turn, _ = looks(owner, 0, many=2)
        fired.append(len(turn.entries))
    assert fired == [2, 2, 1, 0]


def test_only_what_is_due_is_looked_at_among_very_many(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = Raw(b'{"cron":"0 0 1 1 *","type":"sum"}')
    later, soon = Micros(owner.at + 86_400 * SECOND), Micros(owner.at + 60 * SECOND)
    events = tuple(
        SchedulePut(QUEUE, f"s{n}", day, CommandId("c"), soon if n < 3 else later)
        for n in range(100_000)
    )
    owner.partition.apply(Entry(1, owner.at, 0, 0, events))
    asked: list[str] = []
    fire = schedules.fire

    def counted(*of: object) -> object:
        asked.append(str(of[2]))
        return fire(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(schedules, "fire", counted)
    assert looks(owner, 60)[1] == 3
    assert asked == ["s0", "s1", "s2"]


def test_a_command_that_is_no_edit_fires_nothing(owner: Owner) -> None:
    """How a backlog of commands is read says nothing of what was missed."""
    owner.does(put())
    owner.at = Micros(owner.at + 600 * SECOND)
    turn = owner.does(PutTemplate(QUEUE, "sum", Template(title="x")))
    assert not [e for e in events_of(turn) if isinstance(e, ScheduleFired)]


def test_an_edit_finds_what_was_due_before_it_done_and_leaves_the_rest(owner: Owner) -> None:
    owner.does(put())
    appended_at = Micros(owner.at + 90 * SECOND)
    owner.at = Micros(owner.at + 130 * SECOND)
    turn = owner.turn()
    edit = DisableSchedule(QUEUE, "nightly")
    turn.read_command(Asked(edit, CommandId("edit"), appended_at=appended_at, offset=7))
    turn.finish()
    fired = [e for e in events_of(turn) if isinstance(e, ScheduleFired)]
    assert [e.nominal_at for e in fired] == [appended_at - 30 * SECOND]
    assert [entry.commands for entry in turn.entries] == [1, 8]
    assert looks(owner, 600)[1] == 0


def test_a_refused_request_is_told_of_the_job_that_stands(owner: Owner) -> None:
    template = Template(concurrency_policy="reject_same_scope")
    owner.does(PutTemplate(QUEUE, "sum", template))
    (first,) = owner.submit(scope="s")
    turn = owner.does(RequestJob("sum", scope="s"), RequestJob("sum", scope="s"))
    refused = [e for e in events_of(turn) if isinstance(e, CommandRejected)]
    assert [(e.code, e.job_id) for e in refused] == [(Rejection.DUPLICATE_ACTIVE, first)] * 2
