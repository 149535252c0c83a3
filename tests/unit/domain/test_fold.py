"""The fold is total: whatever stands in a log, nothing raises, and what does not fit is counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ledger.domain.digest import digest, folded
from ledger.domain.entries import Entry, TakeOver
from ledger.domain.events import (
    JOB_EVENTS,
    Extension,
    JobCollected,
    JobRequested,
    LeaseGranted,
    LeasesExtended,
    TemplatePut,
    Unknown,
)
from ledger.domain.evolve import RULES, begin, evolve, fold
from ledger.domain.failures import LEASE_EXPIRED
from ledger.domain.ids import MAIN, Fence, JobId, Micros, StepName
from ledger.domain.job import Job, status
from ledger.domain.partition import Partition
from ledger.domain.step_changes import Misfit
from tests.support.builders import (
    BOB,
    JOB,
    QUEUE,
    Fact,
    cancel_asked,
    cancelled,
    expired,
    failed,
    gave_up,
    instant,
    job_expired,
    job_failed,
    leased,
    progressed,
    released,
    requested,
    retried,
    started,
    succeeded,
)
from tests.support.clock import NOON
from tests.support.given import at_its_time, given


def test_each_event_of_a_job_has_its_rule() -> None:
    assert RULES.keys() == set(JOB_EVENTS)


def folded_job(*facts: Fact) -> Job:
    job = fold((at_its_time(fact, NOON), NOON) for fact in facts)  # type: ignore[misc]
    assert job is not None
    return job


def applied(*facts: Fact) -> Partition:
    partition = Partition(0)
    for number, fact in enumerate(facts, 1):
        partition.apply(Entry(number, NOON, 0, 0, (at_its_time(fact, NOON),)))
    return partition


STATES: dict[str, tuple[Fact, ...]] = {
    "pending": (requested(),),
    "leased": (requested(), leased()),
    "running": (requested(), leased(), started()),
    "waiting": (requested(), leased(), gave_up()),
    "between": (requested(), leased(), failed()),
    "again": (requested(), leased(), failed(), retried(1)),
    "cancelling": (requested(), leased(), cancel_asked()),
    "succeeded": (requested(), leased(), succeeded()),
    "cancelled": (requested(), cancelled("at_once")),
}
FACTS: dict[str, Fact] = {
    "requested": requested(),
    "leased": leased(),
    "leased anew": leased(BOB, fence=2),
    "started": started(),
    "progressed": progressed(5),
    "released": released(),
    "gave up": gave_up(),
    "failed": failed(),
    "expired": expired(LEASE_EXPIRED),
    "retried": retried(1),
    "succeeded": succeeded(),
    "job failed": job_failed(),
    "job expired": job_expired(LEASE_EXPIRED),
    "cancel asked": cancel_asked(),
    "cancelled": cancelled("at_once"),
    "collected": JobCollected(JOB),
}
CURRENT = {"started", "progressed", "released", "gave up", "failed", "expired", "succeeded"}
ENDS = {"job failed", "job expired", "cancelled"}
FITS: dict[str, set[str]] = {
    "pending": {"leased", "leased anew", "cancel asked"} | ENDS,
    "leased": CURRENT | ENDS | {"cancel asked"},
    "running": CURRENT - {"started"} | ENDS | {"cancel asked"},
    "waiting": CURRENT - {"started", "released", "gave up"} | ENDS | {"cancel asked"},
    "between": {"retried", "cancel asked"} | ENDS,
    "again": {"leased anew", "cancel asked"} | ENDS,
    "cancelling": CURRENT | ENDS,
    "succeeded": {"collected"},
    "cancelled": set(),
}


@pytest.mark.rule("S1.2")
@pytest.mark.parametrize("state", STATES)
def test_exactly_the_drawn_transitions_fit(state: str) -> None:
    job = folded_job(*STATES[state])
    fitting = set()
    for name, fact in FACTS.items():
        after = evolve(job, at_its_time(fact, NOON), NOON)  # type: ignore[arg-type]
        if isinstance(after, Misfit):
            assert after.event
            assert after.reason
        else:
            fitting.add(name)
            assert after.version == job.version + 1
    assert fitting == FITS[state]


@pytest.mark.rule("S1.2", "S2.4")
def test_the_statuses_of_a_job() -> None:
    statuses = {state: status(folded_job(*facts)) for state, facts in STATES.items()}
    assert {s: str(v) for s, v in statuses.items()} == {
        **{state: state for state in STATES},
        "between": "failed",
        "again": "pending",
    }


@pytest.mark.parametrize("fact", [f for n, f in FACTS.items() if n in CURRENT])
def test_nothing_fits_under_another_fence(fact: Fact) -> None:
    job = folded_job(requested(), leased(fence=7))
    assert isinstance(evolve(job, at_its_time(fact, NOON), NOON), Misfit)  # type: ignore[arg-type]


def test_a_step_that_the_job_does_not_have_does_not_fit() -> None:
    stray = msgspec.structs.replace(at_its_time(leased(), NOON), step=StepName("polish"))
    assert isinstance(evolve(folded_job(requested()), stray, NOON), Misfit)  # type: ignore[arg-type]


def test_every_fact_twice_is_the_fact_once() -> None:
    tried = (requested(), leased(), started(), failed(), retried(1))
    history = (*tried, leased(fence=2), gave_up(2), succeeded(fence=2))
    doubled = tuple(fact for fact in history for _ in range(2))
    assert folded_job(*doubled) == folded_job(*history)


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS.keys())
def test_a_fact_of_an_unknown_job_is_counted(fact: Fact) -> None:
    """But not what may become of one that its owner has forgotten."""
    partition = applied(fact)
    assert partition.misfits == (0 if partition.jobs or partition.late else 1)


def test_an_extension_of_no_live_lease_is_counted() -> None:
    moved = Extension(JOB, MAIN, Fence(1), Micros(NOON + 1))
    for history in ((), (requested(),), (requested(), leased(), gave_up())):
        partition = applied(*history, LeasesExtended(QUEUE, BOB, (moved,)))
        assert partition.misfits == 1


def test_an_extension_never_shortens() -> None:
    moved = Extension(JOB, MAIN, Fence(1), Micros(NOON + 1))
    partition = applied(requested(), leased(), LeasesExtended(QUEUE, BOB, (moved,)))
    phase = partition.jobs[JOB].steps[0].phase
    assert phase.lease.until == instant(60)  # type: ignore[union-attr]
    assert partition.jobs[JOB].version == 3


def test_only_a_succeeded_job_is_collected_and_the_first_time_counts() -> None:
    done = (requested(), leased(), succeeded())
    once = folded_job(*done, JobCollected(JOB, instant(5)))
    twice = folded_job(*done, JobCollected(JOB, instant(5)), JobCollected(JOB, instant(9)))
    assert once.result_expires_at == twice.result_expires_at == instant(5)
    assert twice.version == once.version + 1


# --- Logs of other versions, and forged ones -----------------------------------------------------
def test_a_type_of_a_later_version_is_counted_and_its_job_marked() -> None:
    later = Unknown("ledger.job.teleported.v1", JOB, b"{}")
    partition = applied(requested(), leased(), later)
    job = partition.jobs[JOB]
    assert (partition.unknown, job.opaque, job.version) == (1, 1, 3)
    assert status(job) == "leased"
    closed = applied(requested(), cancelled("at_once"), later)
    found = closed.job(JOB)
    assert found is not None
    assert (found.opaque, found.version) == (1, 3)
    assert applied(Unknown("x", "nobody", b"")).unknown == 1


@pytest.mark.parametrize(
    "content", [b"{", b"", b"[]", b'{"moon":1}', b'{"priority":99}', b"[" * 100_000, b'"\xff"']
)
def test_a_template_of_another_form_is_counted(content: bytes) -> None:
    partition = applied(TemplatePut(QUEUE, "report", 1, Raw(content)))
    assert partition.misfits == 1
    assert partition.queue(QUEUE).template("report") is None


@pytest.mark.parametrize(
    "odd",
    [
        {"key_digest": "no hex", "key_until": 5},
        {"key_digest": "00", "content_digest": "no hex", "key_until": 5},
        {"key_digest": "00"},
        {"priority": -7},
        {"priority": 10**30},
        {"order": -1},
        {"ready_at": -(10**30)},
        {"ready_at": 10**30},
        {"start_timeout_us": -5},
        {"lease_us": 0},
        {"template_version": 99},
        {"labels": {"": ""}},
        {"queue": ""},
    ],
)
def test_a_job_that_no_rule_would_make_raises_nothing(odd: dict[str, Any]) -> None:
    asked = at_its_time(requested(), NOON)
    partition = applied(msgspec.structs.replace(asked, **odd))
    assert len(partition.jobs) == 1
    partition.due(Micros(10**31), 10)
    partition.next_ready(QUEUE, ("report",))
    partition.apply(Entry(2, NOON, 0, 0, (at_its_time(cancelled("at_once"), NOON),)))
    assert partition.open_bytes == 0


def test_a_lease_that_no_rule_would_grant_raises_nothing() -> None:
    odd = LeaseGranted(JOB, MAIN, BOB, Fence(-5), -3, Micros(-1))
    partition = applied(requested(), odd)
    assert partition.misfits == 1


def test_time_that_goes_back_is_not_followed() -> None:
    partition = applied(requested())
    partition.apply(Entry(2, Micros(5), 0, 0, (at_its_time(leased(), NOON),)))
    assert partition.at == NOON
    partition.take_over(TakeOver("n", Micros(7), "l", 1))
    assert (partition.at, partition.floor) == (NOON, NOON)


def test_an_entry_without_events_moves_the_offsets() -> None:
    partition = Partition(0)
    partition.apply(Entry(1, NOON, 7, 9, ()))
    assert (partition.entry, partition.commands, partition.requests) == (1, 7, 9)


# --- Equal logs, equal states --------------------------------------------------------------------
def test_readers_of_the_same_entries_are_equal() -> None:
    told = given(requested(), leased(), started())
    told.also(failed(), retried(1), cancelled("at_once"))
    one, other = told.owner.folded_anew(), told.owner.folded_anew()
    assert folded(one) == folded(other) == folded(told.owner.partition)
    assert digest(one) == digest(other)
    other.apply(Entry(99, NOON, 0, 0, ()))
    assert digest(one) != digest(other)


def test_a_jobs_own_history_gives_the_same_job() -> None:
    asked = at_its_time(requested(), NOON)
    assert isinstance(asked, JobRequested)
    assert fold([]) is None
    assert fold([(asked, NOON)]) == begin(asked, NOON)
    assert fold([(at_its_time(started(), NOON), NOON)]) is None  # type: ignore[list-item]
    assert JobId(JOB) == folded_job(requested()).id
