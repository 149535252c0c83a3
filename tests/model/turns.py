"""What an owner decides: the real `Turn` on a fold of its own, for the commands of the small world.
Found once for each history and each thing that was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from ledger.domain.commands import (
    AcknowledgeCancel,
    Asked,
    CancelJob,
    Command,
    FailAttempt,
    LockJob,
    SubmitResult,
)
from ledger.domain.decide import due
from ledger.domain.entries import Entry, command_of
from ledger.domain.events import Event
from ledger.domain.ids import CommandId, Fence, Micros, RuntimeId
from ledger.domain.partition import Partition
from ledger.log.replies import Reply
from processors.owner.credit import Offers
from processors.owner.partition_owner import TIMERS_MAX
from processors.owner.turn import Turn
from tests.model.histories import Histories
from tests.support.builders import ADA, BOB, JOB

RUNTIMES = (ADA, BOB)
ANSWERED_AT = "0/sender"


class Word(NamedTuple):
    """A command of the small world; whoever says it again says it under the same id."""

    kind: Literal["lock", "result", "fail", "acknowledge", "cancel"]
    runtime: int = -1
    fence: int = 0
    """Of the lease; of a lock, the last one before it."""

    @property
    def command_id(self) -> CommandId:
        who = "operator" if self.runtime < 0 else RUNTIMES[self.runtime]
        return CommandId(f"{self.kind} of {who} {self.fence}")

    @property
    def command(self) -> Command:
        match self.kind:
            case "lock":
                return LockJob(JOB, RUNTIMES[self.runtime])
            case "result":
                digest = f"{self.runtime}{self.fence}".rjust(64, "0")
                return SubmitResult(JOB, Fence(self.fence), output_hash=digest)
            case "fail":
                return FailAttempt(JOB, Fence(self.fence), "BROKEN")
            case "acknowledge":
                return AcknowledgeCancel(JOB, Fence(self.fence))
            case "cancel":
                return CancelJob(JOB)


class Arrived(NamedTuple):
    """A word in the intake of commands."""

    word: Word
    at: Micros


class Told(NamedTuple):
    """A reply, or the question to stop, which its addressee may have got or not."""

    word: Word | None
    """None: the runtime that holds the lease is asked to stop."""
    outcome: str
    fence: int = 0
    """Of the lease that was given, or is to be stopped."""

    def __str__(self) -> str:
        about = f"holder of lease {self.fence}" if self.word is None else self.word.command_id
        return f"{about}: {self.outcome}"


class Decision(NamedTuple):
    base: int
    tip: int
    """The node behind its entries; `base` where it has none."""
    told: tuple[Told, ...]
    fired: bool


class Turns:
    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self._decided: dict[tuple[Any, ...], int] = {}
        self.decisions: list[Decision] = []
        self._numbers: dict[Decision, int] = {}
        self._skipped: dict[tuple[int, tuple[Arrived, ...]], str] = {}

    def decide(
        self,
        node: int,
        first: int,
        arrived: Sequence[Arrived],
        at: Micros,
        asked_at: Micros,
        scanned: tuple[Event, ...] = (),
    ) -> int:
        """As in `TermOfOffice._decide`: the words from offset `first` on, then what had fallen due
        at `asked_at` (0: silence does not count). `scanned` is planted: recorded unlooked at."""
        key = (node, first, tuple(arrived), at, asked_at, scanned)
        number = self._decided.get(key)
        if number is None:
            turn = self._turn(node, first, at)
            for offset, each in enumerate(arrived, first):
                turn.read_command(_asked(each, offset))
            fired = bool(asked_at) and turn.timers(asked_at, TIMERS_MAX) > 0
            if scanned:
                turn._append(scanned, "timer", "owner")
            turn.finish()
            number = self._decided[key] = self._number(node, turn, fired)
        return number

    def consumed(self, node: int, read: int, at: Micros, told: tuple[Told, ...]) -> int:
        """As where an answer without an entry finds that somebody wrote: this finds out who."""
        key = (node, read, at, told)
        number = self._decided.get(key)
        if number is None:
            turn = self._turn(node, read, at)
            turn.consumed(0)
            decision = self.decisions[self._number(node, turn, False)]
            number = self._decided[key] = self._interned(decision._replace(told=told))
        return number

    def fallen_due(self, node: int, at: Micros) -> tuple[Event, ...]:
        partition = self._histories.partition(node)
        found: list[Event] = []
        for job in partition.due(at, TIMERS_MAX):
            found += due(partition, job, at)
        return tuple(found)

    def skipped(self, node: int, arrived: tuple[Arrived, ...]) -> str:
        """A command below the recorded offset that has no outcome, "" if there is none."""
        key = (node, arrived)
        found = self._skipped.get(key)
        if found is None:
            found = self._skipped[key] = self._skipped_in(node, arrived)
        return found

    def _skipped_in(self, node: int, arrived: tuple[Arrived, ...]) -> str:
        partition = self._histories.partition(node)
        items = self._histories.items(node)
        causes = {command_of(item.cause) for item in items if isinstance(item, Entry)}
        for each in arrived:
            command_id = each.word.command_id
            if command_id not in causes and not _was_refused(partition, each.word):
                return f"I4: {command_id} was passed over"
        return ""

    def _turn(self, node: int, read: int, at: Micros) -> Turn:
        partition = self._histories.partition(node)
        partition.commands = read
        return Turn(partition, Offers(), at, fits=_fits, suppressed=Counter(), bulk_todo={})

    def _number(self, node: int, turn: Turn, fired: bool) -> int:
        told = [_told(waiting.reply) for waiting in turn.effects.replies]
        job = turn.partition.job(JOB)
        assert job is not None
        if turn.effects.cancels:
            told.append(Told(None, "stop", job.fence))
        tip = self._histories.decided(node, turn.entries)
        return self._interned(Decision(node, tip, tuple(told), fired))

    def _interned(self, decision: Decision) -> int:
        number = self._numbers.get(decision)
        if number is None:
            number = self._numbers[decision] = len(self.decisions)
            self.decisions.append(decision)
        return number


def _asked(arrived: Arrived, offset: int) -> Asked:
    word = arrived.word
    return Asked(
        word.command,
        word.command_id,
        actor="sender",
        reply_to=ANSWERED_AT,
        sent_at=arrived.at,
        appended_at=arrived.at,
        offset=offset,
    )


def _told(reply: Reply) -> Told:
    kind, _, who, fence = reply.command_id.split(" ")
    runtime = next((i for i, each in enumerate(RUNTIMES) if each == RuntimeId(who)), -1)
    word = Word(kind, runtime, int(fence))  # type: ignore[arg-type]
    given = 0
    if kind == "lock" and reply.data is not None:
        given = msgspec.json.decode(reply.data).get("fence", 0)
    outcome = "refused" if reply.outcome == "rejected" else "accepted"
    return Told(word, outcome, given)


def _was_refused(partition: Partition, word: Word) -> bool:
    """Within its minute an equal refusal is told, and not recorded."""
    runtime = RUNTIMES[word.runtime] if word.kind == "lock" else ""
    return any(
        (key[0], key[2], key[3]) == (word.command.TYPE, JOB, runtime)
        for key in partition.refused_at
        if len(key) == 4
    )


def _fits(_: Entry) -> bool:
    return True
