"""How ours and the peers are compared, without running either."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from benchmarks import end_to_end
from benchmarks.end_to_end import PGQUEUER, PROCRASTINATE, Rounds
from benchmarks.load import Drained
from benchmarks.pace import Mark, Pace
from benchmarks.peers import PeerRun

SMALL = (PGQUEUER, 10)


class Paces(Pace):
    """What each look finds."""

    def __init__(self, marks: Iterable[tuple[float, float]]) -> None:
        self._marks = iter(marks)

    def mark(self) -> Mark:
        return Mark(*next(self._marks))


class Peers:
    def __init__(self, drain: Callable[..., PeerRun | None]) -> None:
        self.drain = drain


def rounds(monkeypatch: pytest.MonkeyPatch, pace: Pace, peers: Peers) -> Rounds:
    monkeypatch.setattr(end_to_end, "drained", lambda *_: Drained(1_000.0, 5_000.0, {"all": 300.0}))
    found = Rounds(pace)
    found.run(None, peers, 100)  # type: ignore[arg-type]
    return found


def test_what_a_peer_takes_is_counted_at_the_pace_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was half as fast while it was the peers' turn."""
    pace = Paces([(0, 0.0), (100, 0.1), *[(0, 0.0), (100, 0.2)] * 3])
    found = rounds(monkeypatch, pace, Peers(lambda *_: PeerRun(900.0, 500.0, {})))

    def cpu(_: Drained, its: Any) -> float:
        return float(its.cpu_us_per_job)

    assert found.median(SMALL, cpu) == pytest.approx(250.0)
    assert found.median(
        SMALL, lambda ours, its: cpu(ours, its) / ours.with_broker
    ) == pytest.approx(5 / 6)


def test_peers_that_cannot_be_run_do_not_stop_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked in vain they answer within no pace at all."""
    found = rounds(monkeypatch, Paces([(0, 0.0), *[(100, 0.1)] * 9]), Peers(lambda *_: None))
    assert len(found.ours) == 1
    assert not found.knows(PGQUEUER)
    assert not found.knows(PROCRASTINATE)
