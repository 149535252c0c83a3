"""Which offsets an operator may declare lost."""

from __future__ import annotations

import pytest

from ledger.domain.commands import DeclareInputLost
from ledger.domain.decisions import Decided
from ledger.domain.events import InputLost
from ledger.domain.ids import LEDGER_QUEUE
from ledger.domain.intakes import Missing, declare_lost
from ledger.domain.rejections import Rejected, Rejection

MISSING = Missing(120, 150)


def declared(first: int, end: int) -> DeclareInputLost:
    return DeclareInputLost(3, "requests", first, end)


def test_what_is_missing_can_be_declared_lost() -> None:
    event = InputLost(LEDGER_QUEUE, "requests", 120, 150)
    assert declare_lost(declared(120, 150), MISSING) == Decided((event,))


@pytest.mark.parametrize(("first", "end"), [(119, 150), (121, 150), (120, 149), (120, 151)])
def test_more_or_less_than_what_is_missing_is_refused_with_what_is(first: int, end: int) -> None:
    refused = declare_lost(declared(first, end), MISSING)
    assert isinstance(refused, Rejected)
    assert refused.code is Rejection.PRECONDITION_FAILED
    assert "from 120 to 150" in refused.detail


def test_where_nothing_is_missing_nothing_can_be_declared_lost() -> None:
    refused = declare_lost(declared(120, 150), None)
    assert isinstance(refused, Rejected)
    assert refused.code is Rejection.PRECONDITION_FAILED
