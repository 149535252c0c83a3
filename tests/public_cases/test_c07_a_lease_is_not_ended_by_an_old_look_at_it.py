"""riverqueue/river #1302: what rescues stuck jobs reads a list of them; one of them completes; then
the rescuer writes "try again" over "completed".

Here nothing is carried from a look to a deed: the owner decides what the clock says on the state
that its entry continues, however long ago it asked, and in whatever order that and the words of a
runtime come (I7, I10). An owner that wrote what it had looked up before is found out by the search
of the small worlds.
"""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from ledger.domain.commands import (
    CancelJob,
    Command,
    FailAttempt,
    Heartbeat,
    LockJob,
    ReleaseLease,
    RequestJob,
    RetryAsk,
    StartAttempt,
    SubmitResult,
    WaitForCompletion,
)
from ledger.domain.entries import Entry
from ledger.domain.events import AttemptExpired, JobRequested
from ledger.domain.ids import SECOND, Fence, JobId, Micros, RuntimeId
from ledger.domain.invariants import Invariants
from ledger.domain.job import status
from ledger.domain.partition import Partition
from ledger.domain.steps import current_lease
from processors.owner.partition_owner import TIMERS_MAX
from tests.model.planted import ExpiryWithoutFence
from tests.model.search import search
from tests.model.world import Plan, World
from tests.unit.owner.by_hand import Owner

LEASE_SECONDS = 10
FENCE = Fence(1)
NOBODY = JobId("")
Word = SubmitResult | FailAttempt | ReleaseLease | WaitForCompletion | Heartbeat
WORDS: tuple[Word, ...] = (
    SubmitResult(NOBODY, FENCE),
    FailAttempt(NOBODY, FENCE, "BROKEN"),
    FailAttempt(NOBODY, FENCE, "BROKEN", retryable=False),
    ReleaseLease(NOBODY, FENCE),
    WaitForCompletion(NOBODY, FENCE, 60.0),
    Heartbeat(NOBODY, FENCE),
)


class Story:
    """A job whose runtime has been silent for longer than its lease."""

    def __init__(self, attempts: int, *, started: bool, cancelled: bool) -> None:
        self.owner = Owner()
        self.entries: list[Entry] = []
        retry = RetryAsk(max_attempts=attempts, backoff_seconds=())
        asked = self.owner.does(RequestJob("sum", lease_seconds=LEASE_SECONDS, retry=retry))
        self.entries += asked.entries
        requested = asked.entries[0].events[0]
        assert isinstance(requested, JobRequested)
        self.job_id = requested.job_id
        said: list[Command] = [LockJob(self.job_id, RuntimeId("r1"))]
        said += [StartAttempt(self.job_id, FENCE)] if started else []
        said += [CancelJob(self.job_id)] if cancelled else []
        self.entries += self.owner.does(*said).entries
        self.owner.at = Micros(self.owner.at + (LEASE_SECONDS + 1) * SECOND)
        self.looked_at = self.owner.at

    def hear(self, word: Word) -> None:
        self.owner.at = Micros(self.owner.at + SECOND // 10)
        self.entries += self.owner.does(replace(word, job_id=self.job_id)).entries

    def fire(self) -> None:
        """What had fallen due when it looked; it writes now."""
        self.owner.at = Micros(self.owner.at + SECOND // 10)
        turn = self.owner.turn()
        turn.timers(self.looked_at, TIMERS_MAX)
        turn.finish()
        self.entries += turn.entries

    def expiries(self) -> list[AttemptExpired]:
        events = [event for entry in self.entries for event in entry.events]
        return [event for event in events if isinstance(event, AttemptExpired)]

    def is_sound(self) -> bool:
        checked = Invariants(Partition(0))
        return not any(checked.check(entry) for entry in self.entries)


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_a_word_that_is_read_first_stands_whatever_had_been_due(word: Word) -> None:
    for attempts, started, cancelled in product((1, 2), (False, True), (False, True)):
        story = Story(attempts, started=started, cancelled=cancelled)
        story.hear(word)
        before = story.owner.partition.job(story.job_id)
        story.fire()
        assert story.owner.partition.job(story.job_id) == before
        assert story.expiries() == []
        assert story.is_sound()


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_a_word_that_is_read_after_the_end_changes_nothing(word: Word) -> None:
    for attempts, started in product((1, 2), (False, True)):
        story = Story(attempts, started=started, cancelled=False)
        story.fire()
        assert [each.fence for each in story.expiries()] == [FENCE]
        before = story.owner.partition.job(story.job_id)
        assert before is not None
        assert status(before) == ("failed" if attempts == 1 else "pending")
        assert current_lease(before.steps[0]) is None
        story.hear(word)
        assert story.owner.partition.job(story.job_id) == before
        assert story.is_sound()


def test_an_owner_that_wrote_down_what_it_saw_before_would_be_found_out() -> None:
    assert not search(World(Plan())).wrong
    assert search(ExpiryWithoutFence(Plan())).wrong.startswith("I10")
