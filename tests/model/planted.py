"""The small world with one fault planted in it: each leaves out one thing that the protocol or the
rules rest on, and the search has to find out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ledger.domain.entries import Entry, TakeOver
from ledger.domain.ids import Micros
from ledger.log.effective import Cursor, Ignored
from tests.model.histories import Landed, Node, Reader
from tests.model.turns import Arrived
from tests.model.world import NONE, Active, Idle, Owner, State, Step, Taking, World


class NoProof(World):
    """Whoever's append was acknowledged holds it for good, wherever it landed."""

    def _prove(self, state: State, owner: Active, expected: int) -> str:
        return ""


class NoFence(World):
    """Readers take an entry from anybody."""

    class Any(Reader):
        def read(self, cursor: Cursor, landed: Landed) -> tuple[Cursor, Ignored]:
            if isinstance(landed.item, Entry):
                cursor = replace(cursor, nonce=landed.nonce)
            return super().read(cursor, landed)

    reader = Any()


class NoSequence(World):
    """Readers do not look at the number of an entry, nor at the chain."""

    class Any(Reader):
        def read(self, cursor: Cursor, landed: Landed) -> tuple[Cursor, Ignored]:
            if isinstance(landed.item, Entry):
                cursor = replace(cursor, entry=landed.item.number - 1, hash=landed.before)
            return super().read(cursor, landed)

    reader = Any()


class OldNonce(World):
    """A take-over that lands once more counts once more."""

    class Any(Reader):
        def read(self, cursor: Cursor, landed: Landed) -> tuple[Cursor, Ignored]:
            if isinstance(landed.item, TakeOver):
                others = tuple(each for each in cursor.nonces if each != landed.nonce)
                cursor = replace(cursor, nonces=others)
            return super().read(cursor, landed)

    reader = Any()


class StateKept(World):
    """Who was fenced, or does not know what became of its append, goes on from what it had
    decided."""

    def _dropped(self, owner: Taking | Active) -> Owner:
        return Idle(owner.ahead) if isinstance(owner, Active) else Idle(owner.kept)

    def _office(self, owner: Taking, node: Node) -> Owner:
        if owner.kept == NONE:
            return super()._office(owner, node)
        kept, _ = self.histories.read(owner.kept, owner.append)
        return Active(kept, owner.end, kept, self.node(kept).commands)


class EffectsBeforeProof(World):
    """What is decided is told at once."""

    def _sent(self, step: Step, number: int) -> Step:
        decision = self.turns.decisions[number]
        told, wrong = self._release(step.state, decision.tip, decision.told)
        return step._replace(state=step.state._replace(told=told), wrong=step.wrong or wrong)


class ExpiryWithoutFence(World):
    """What had fallen due is looked up first, and written down later as it was then."""

    def _ask(self, state: State, i: int, owner: Active) -> Step:
        return super()._ask(state, i, owner._replace(scanned=owner.ahead))

    def _decision(
        self, owner: Active, arrived: Sequence[Arrived], at: Micros, asked_at: Micros
    ) -> int:
        if not asked_at:
            return super()._decision(owner, arrived, at, asked_at)
        scanned = self.turns.fallen_due(owner.scanned, asked_at)
        return self.turns.decide(owner.ahead, owner.read, arrived, at, Micros(0), scanned)


class SilenceUnread(World):
    """A lease is ended without a look at what its runtime may have said in time."""

    def _has_read(self, owner: Active, read: int) -> bool:
        return True


PLANTED: dict[str, type[World]] = {
    "no proof": NoProof,
    "no fence": NoFence,
    "no sequence": NoSequence,
    "an old nonce counts again": OldNonce,
    "state kept over a fence": StateKept,
    "effects before proof": EffectsBeforeProof,
    "expiry without fence": ExpiryWithoutFence,
    "silence of who was not read": SilenceUnread,
}
