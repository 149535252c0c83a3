"""What the benchmarks measure is a log that an owner could have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.offline_log import OfflineLog
from benchmarks.verify import report
from ledger.domain.commands import HeldLease, ProgressSaid
from ledger.domain.ids import SECOND


@pytest.mark.parametrize("mixed", [True, False])
def test_it_is_sound_from_the_chain_to_the_last_rule(tmp_path: Path, mixed: bool) -> None:
    log = OfflineLog(mixed=mixed)
    log.write(1_000)

    found = report(log.save(tmp_path), tmp_path)

    assert found.is_sound
    assert log.events >= 1_000


def test_a_job_that_goes_well_has_four_events_and_its_runtime_two_beats_at_most() -> None:
    log = OfflineLog(mixed=False, keeps=False)
    before = log.events

    log.request(100)
    log.report(log.grant(100))

    assert not log.partition.jobs
    assert 400 <= log.events - before <= 402


def test_a_backlog_stays_as_long_as_it_was() -> None:
    log = OfflineLog(mixed=False, keeps=False)
    log.request(50)
    oldest = set(log.partition.jobs)

    log.request(20)
    given = log.grant(20)
    log.report(given)

    assert len(log.partition.jobs) == 50
    assert {grant.job_id for grant in given} < oldest


def test_every_word_of_progress_is_an_event() -> None:
    log = OfflineLog(mixed=False, keeps=False)
    log.request(1)
    [grant] = log.grant(1)
    log.report([grant], ends=False)
    before = log.events

    for percent in (10, 20, 30):
        log.pass_time(SECOND)
        log.beat([HeldLease(grant.job_id, grant.fence, ProgressSaid(percent))])

    assert log.events - before == 3
