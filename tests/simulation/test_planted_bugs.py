"""Bugs put into the rules and the protocol: each is found within a few seeds. A simulation that
misses them would miss ours, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from ledger.domain import deadlines, leases
from ledger.domain.entries import Proven, TakeOver
from ledger.domain.ids import Fence
from ledger.domain.job import Job, Step, retry_of
from ledger.domain.partition import Bounds, Partition
from ledger.domain.rejections import Rejected
from ledger.domain.remembered import Outcomes
from ledger.log.term import Term
from processors.owner.partition_owner import Decided, TermOfOffice
from projections.batches import Applied, Batch
from projections.projector import ViewsUnavailable
from tests.simulation.views import Projector
from tests.simulation.world import World

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS_MAX = 30


def no_fence_is_checked(patch: pytest.MonkeyPatch) -> None:
    def current(job: Job, fence: Fence) -> Step | Rejected:
        return leases.refuse_closed(job) or job.steps[0]

    patch.setattr(leases, "_current", current)


def one_attempt_too_many(patch: pytest.MonkeyPatch) -> None:
    def generous(job: Job, step: Step) -> Any:
        retry = retry_of(job, step)
        return replace(retry, max_attempts=retry.max_attempts + 1)

    patch.setattr(deadlines, "retry_of", generous)


def effects_leave_before_the_proof(patch: pytest.MonkeyPatch) -> None:
    async def finish(office: TermOfOffice, decided: Decided) -> None:
        claimed: list[Proven] = []
        end = office._term.end
        for entry in decided.turn.entries:
            first, end = end, end + len(entry.events)
            claimed.append(Proven(entry, first, end - 1, b""))
        await office._send(decided, claimed)
        await office._prove(decided.turn, decided.touched)

    patch.setattr(TermOfOffice, "_finish", finish)


def nobody_reads_who_wrote_in_between(patch: pytest.MonkeyPatch) -> None:
    async def believed(term: Term, entries: Sequence[Any], until: int) -> list[Proven]:
        base = until - sum(len(encoded.records) for _, encoded in entries)
        proven = []
        for entry, encoded in entries:
            last = base + len(encoded.records) - 1
            proven.append(Proven(entry, base, last, encoded.hash))
            base = last + 1
        return proven

    patch.setattr(Term, "_proven_by_reading", believed)


def outcomes_are_remembered_by_an_owner_only(patch: pytest.MonkeyPatch) -> None:
    take_over = Partition.take_over

    def forgetful(partition: Partition, record: TakeOver) -> None:
        take_over(partition, record)
        partition.outcomes = Outcomes(Bounds())

    patch.setattr(Partition, "take_over", forgetful)


def the_checkpoint_moves_before_the_rows(patch: pytest.MonkeyPatch) -> None:
    apply = Projector.apply

    def torn(projector: Projector, batch: Batch) -> Applied:
        rows = dict(projector._views.jobs)
        try:
            return apply(projector, batch)
        except ViewsUnavailable:
            projector._views.jobs = rows
            raise

    patch.setattr(Projector, "apply", torn)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        no_fence_is_checked,
        one_attempt_too_many,
        effects_leave_before_the_proof,
        nobody_reads_who_wrote_in_between,
        outcomes_are_remembered_by_an_owner_only,
        the_checkpoint_moves_before_the_rows,
    ],
)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(World(seed).run().violations for seed in range(SEEDS_MAX))
