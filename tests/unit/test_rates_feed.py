"""When the reaction `rates` counts what an owner offers: few entries wait for more, many do not."""

from __future__ import annotations

import pytest

from ledger.log.effective import START
from processors import rates
from processors.rates import _Follower
from tests.unit.projections.histories import Script, plain_job


@pytest.fixture
def follower() -> _Follower:
    """That has read the log up to what is offered."""
    follower = _Follower(1)
    follower.cursor, follower.is_behind = START, False
    return follower


def offer(follower: _Follower) -> None:
    script = Script()
    plain_job(script)
    assert follower.offer(0, script.items)


async def test_few_entries_wait_for_more(
    follower: _Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(rates, "_now", lambda: now)
    offer(follower)
    assert not follower.is_worth_it()
    now += rates.OLD_SECONDS
    assert follower.is_worth_it()
    follower.take(0)
    offer(follower)
    assert not follower.is_worth_it(), "those wait for themselves"


async def test_many_entries_do_not(follower: _Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "WORTH_ENTRIES", 8)
    offer(follower)
    assert not follower.is_worth_it()
    offer(follower)
    assert follower.is_worth_it()


async def test_nor_does_what_is_behind(follower: _Follower) -> None:
    offer(follower)
    follower.is_behind = True
    assert follower.is_worth_it()
    follower.is_behind, follower.cursor = False, None
    assert follower.is_worth_it()
