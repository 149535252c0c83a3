"""Which hard states a run has reached: read from its log, its counters and its log lines. A run
that never met one proves nothing of it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from ledger.domain.commands import CancelJob
from ledger.domain.events import (
    AttemptExpired,
    CancelRequested,
    CommandDuplicated,
    CommandRejected,
    JobCancelled,
    JobSucceeded,
    LeaseReleased,
    ScheduleFired,
)
from ledger.domain.ids import JobId
from ledger.log.effective import TakenOver
from ledger.log.entry_codec import TAKEN_OVER, take_over_from
from ledger.log.headers import text_header
from tests.simulation.loop import Loop, current

if TYPE_CHECKING:
    from tests.simulation.world import World

ZOMBIE = "an owner that was replaced wrote, and was ignored"
OWN_LATE = "an append landed after its own process had taken over again"
ZOMBIE_FIRED = "a schedule was fired twice, and once by nobody's right"
DOUBLED = "a batch of entries landed twice"
DOUBLED_TAKE_OVER = "a take-over landed twice"
UNKNOWN = "an append's outcome was unknown to its owner"
FENCED = "an owner found that it was fenced"
LATE_TAKE_OVER = "an owner met a late take-over of its own"
MOVED = "a partition changed hands"
DISTURBED = "a rebalance began while an append was under way"
EFFECTS_DELAYED = "effects of proven entries could not be sent"
EXPIRED_THEN_WORD = "a lease expired, and its runtime's word came after"
RESUMED = "a Kafka runtime went on after its lease had run out"
STALE = "a result under a stale fence was refused (409)"
CANCEL_LOST = "a cancel came behind the result, and was told so"
CANCEL_WON = "a cancel won over a handler at work"
DUPLICATE = "a command came again, and made nothing"
REPLAYED = "a projector gave a batch again that was applied"
RIVALS = "two projectors were at the same partition"
FOLDED = "a projector folded a batch from the log"
TOGETHER = "a projector moved several partitions in one transaction"
STORE_AWAY = "a projector had to wait for its store"
ACCEPTED = "the gateway answered that nothing is decided yet (202)"
UNSURE = "the gateway could not say (503)"
CAME = "what had no answer in time was decided after all"
GIVEN_BACK = "what a claim was granted and nobody took was given back"
DISCONNECTED = "a runtime lost its brokers, and came back"
DIED = "a process gave up, and another took its place"

STATES: tuple[str, ...] = (
    ZOMBIE,
    OWN_LATE,
    ZOMBIE_FIRED,
    DOUBLED,
    DOUBLED_TAKE_OVER,
    UNKNOWN,
    FENCED,
    LATE_TAKE_OVER,
    MOVED,
    DISTURBED,
    EFFECTS_DELAYED,
    EXPIRED_THEN_WORD,
    RESUMED,
    STALE,
    CANCEL_LOST,
    CANCEL_WON,
    DUPLICATE,
    REPLAYED,
    RIVALS,
    FOLDED,
    TOGETHER,
    STORE_AWAY,
    ACCEPTED,
    UNSURE,
    CAME,
    GIVEN_BACK,
    DISCONNECTED,
    DIED,
)

RARE = {OWN_LATE, ZOMBIE_FIRED, DOUBLED_TAKE_OVER, LATE_TAKE_OVER, UNSURE}
"""Met by one seed in thirty or fewer."""

_LINES = {
    "owner.fenced": FENCED,
    "owner.effects_delayed": EFFECTS_DELAYED,
    "projector_paused": STORE_AWAY,
    "runtime.disconnected": DISCONNECTED,
}
_REASONS = {"OutcomeUnknown": UNKNOWN, "TakeOverAgain": LATE_TAKE_OVER}


class Journal:
    """The log lines of a run."""

    def __init__(self, loop: Loop) -> None:
        self.told: Counter[str] = Counter()
        self.prints = False
        self._loop = loop

    @contextmanager
    def kept(self) -> Iterator[None]:
        before = structlog.get_config()
        structlog.configure(processors=[self._keep])
        try:
            yield
        finally:
            structlog.configure(**before)

    def _keep(self, logger: WrappedLogger, method: str, line: EventDict) -> Any:
        event = line.pop("event")
        if event in _LINES:
            self.told[_LINES[event]] += 1
        elif event == "owner.term_ended":
            self.told[_REASONS.get(line["reason"].partition("(")[0], "")] += 1
        if self.prints:
            process = current()
            by = "" if process is None else process.name
            print(f"{self._loop.now:10.3f} {by:12} {event} {line}")
        raise structlog.DropEvent


def reached(world: World) -> Counter[str]:
    evidence, counts = world.evidence, world.views.counts
    found: Counter[str] = Counter({name: n for name, n in world.journal.told.items() if name})
    found[REPLAYED] = counts["applied before"]
    found[RIVALS] = counts["superseded"]
    found[FOLDED] = counts["folded"]
    found[TOGETHER] = counts["together"]
    found[DISTURBED] = world.broker.group.disturbed
    found[DIED] = len(evidence.deaths)
    causes = evidence.causes()
    found[CAME] = sum(command_id in causes for command_id in evidence.unknown)
    for number, items in enumerate(evidence.items):
        ignored = evidence.readers[number].ignored
        found[DOUBLED] += ignored.out_of_sequence
        found[DOUBLED_TAKE_OVER] += ignored.doubled
        owners = [
            item.take_over.nonce.partition("-")[0] for item in items if isinstance(item, TakenOver)
        ]
        found[MOVED] += sum(a != b for a, b in itertools.pairwise(owners))
        _strangers(world, number, found)
    _races(world, found)
    return +found


def _strangers(world: World, number: int, found: Counter[str]) -> None:
    """Records of entries by a nonce that was not in force where they landed."""
    nonce, seen = "", set[str]()
    for record in world.broker.log(world.topics.events, number).records:
        kind = text_header(record.headers, "ce_type")
        if kind == TAKEN_OVER:
            take_over = take_over_from(record.value)
            if take_over is not None and take_over.nonce not in seen:
                nonce = take_over.nonce
                seen.add(nonce)
            continue
        by = text_header(record.headers, "ce_ledger").split(";")[2]
        if by != nonce:
            is_own = by.partition("-")[0] == nonce.partition("-")[0]
            found[OWN_LATE if is_own else ZOMBIE] += 1
            found[ZOMBIE_FIRED] += kind == ScheduleFired.TYPE


def _races(world: World, found: Counter[str]) -> None:
    expired: set[JobId] = set()
    cancelled: set[JobId] = set()
    for _, event in world.evidence.events():
        match event:
            case AttemptExpired(job_id=job_id):
                expired.add(job_id)
            case CancelRequested(job_id=job_id):
                cancelled.add(job_id)
            case CommandRejected(code="LEASE_STALE", job_id=job_id) if job_id in expired:
                found[EXPIRED_THEN_WORD] += 1
            case JobSucceeded(job_id=job_id):
                found[CANCEL_LOST] += job_id in cancelled
            case CommandRejected(command_type=CancelJob.TYPE, code="JOB_CLOSED"):
                found[CANCEL_LOST] += 1
            case JobCancelled(job_id=job_id):
                found[CANCEL_WON] += job_id in cancelled
            case CommandDuplicated():
                found[DUPLICATE] += 1
            case LeaseReleased(reason="not handed over"):
                found[GIVEN_BACK] += 1
            case _:
                pass


def missing(states: Counter[str]) -> Sequence[str]:
    return [state for state in STATES if not states[state]]
