"""The small world: one job, two owners that may both believe, two runtimes, a canceller, a log and
a network that lose, delay and double; and what may happen next in it.

What stands for which code: `_prove` for `Term._proven` and `_proven_by_reading`, `_take_over` for
`Term.take_over`, `_decide`, `_finish` and `_answer` for a turn of `TermOfOffice`. The rules, the
fold, the codec and what of a log counts are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from ledger.domain.events import (
    AttemptExpired,
    CommandDuplicated,
    CommandRejected,
    JobSucceeded,
)
from ledger.domain.ids import Micros
from tests.model.histories import BROKEN, TICK_US, Append, Histories, Node, Reader, said
from tests.model.turns import Arrived, Told, Turns, Word
from tests.support.clock import NOON

WORDS_MAX = 2
"""Of the intake, that one turn reads."""
NONE = -1


class Plan(Struct, frozen=True):
    """How large a world is."""

    faults: int = 1
    runtimes: int = 1
    attempts: int = 1
    cancels: bool = False
    fails: bool = False


class Idle(NamedTuple):
    kept: int = NONE
    """Planted: what it had folded before."""


class Taking(NamedTuple):
    append: int
    kept: int = NONE
    tip: int = NONE
    """The node up to its landed take-over."""
    end: int = NONE


class Active(NamedTuple):
    node: int
    """As far as it is proven."""
    end: int
    """Where its next append is expected."""
    ahead: int
    """As far as it has decided."""
    read: int
    asked_at: Micros = Micros(0)
    asked: int = NONE
    """End of the intake when it asked for it."""
    flight: int = NONE
    """The decision whose append is under way."""
    landed: int = NONE
    next: int = NONE
    """The decision after that."""
    scanned: int = NONE
    """Planted: the node at which it looked for what had fallen due."""


Owner = Idle | Taking | Active


class State(NamedTuple):
    """Places in the log count from its `base`, the first that anybody may still look at."""

    now: Micros
    arrived: tuple[Arrived, ...]
    base: int
    tail: tuple[int, ...]
    owners: tuple[Owner, Owner]
    adrift: tuple[int, ...]
    """Appends for which nobody waits any more, and copies: each may land at any time, or never."""
    told: frozenset[Told]
    faults: int
    """That may still happen."""
    terms: int


class Name(NamedTuple):
    """Of something that is put into words only for a trace."""

    kind: Literal["append", "decision"]
    number: int


class Step(NamedTuple):
    what: tuple[str | Name, ...]
    state: State
    is_fault: bool = False
    wrong: str = ""


class World:
    """Planted faults are subclasses."""

    reader: Reader = Reader()

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.histories = Histories(plan.attempts, self.reader)
        self.turns = Turns(self.histories)
        self.reached: set[str] = set()
        """What has happened at least once."""

    def start(self) -> State:
        return State(
            NOON,
            (),
            self.histories.root,
            (),
            (Idle(), Idle()),
            (),
            frozenset(),
            self.plan.faults,
            0,
        )

    def head(self, state: State) -> int:
        return self.histories.read_all(state.base, state.tail)

    def node(self, number: int) -> Node:
        return self.histories.nodes[number]

    # --- What must hold --------------------------------------------------------------------------
    def wrong(self, state: State) -> str:
        """What must not be of the log as every reader knows it; what must not be of a step comes
        with the step."""
        head = self.head(state)
        node = self.node(head)
        if node.wrong:
            return node.wrong
        return self.turns.skipped(head, state.arrived[: node.commands])

    # --- What may happen next --------------------------------------------------------------------
    def steps(self, state: State) -> Iterator[Step]:
        head = self.head(state)
        yield from self._time(state, head)
        yield from self._senders(state, head)
        yield from self._network(state)
        for i in (0, 1):
            owner = state.owners[i]
            if i and owner == state.owners[0]:
                continue
            if isinstance(owner, Idle):
                yield from self._assign(state, i, owner)
                continue
            if state.faults:
                yield self._give_up(state, i, owner)
            if isinstance(owner, Taking):
                yield from self._taking(state, i, owner)
            else:
                yield from self._active(state, i, owner)

    def _time(self, state: State, head: int) -> Iterator[Step]:
        due = self.node(head).due
        if due is not None and due > state.now:
            later = state._replace(now=Micros(state.now + TICK_US))
            yield Step(("a tick goes by",), later)

    # --- Who says something ----------------------------------------------------------------------
    def _senders(self, state: State, head: int) -> Iterator[Step]:
        """Runtimes ask for the job while the log shows that it waits."""
        node = self.node(head)
        words = [each.word for each in state.arrived]
        if node.waits:
            for runtime in range(self.plan.runtimes):
                word = Word("lock", runtime, node.job.fence)
                # Who comes first is ada: they differ by name only.
                if word not in words and (runtime == 0 or words):
                    yield self._say(state, word)
        if self.plan.cancels and not node.ended and Word("cancel") not in words:
            yield self._say(state, Word("cancel"))
        for told in state.told:
            yield from self._reactions(state, told, words)
        if state.faults:
            again = state._replace(faults=state.faults - 1)
            for word in words:
                if words.count(word) == 1:
                    yield self._say(again, word)._replace(is_fault=True)

    def _reactions(self, state: State, told: Told, words: list[Word]) -> Iterator[Step]:
        """Of a runtime that got what it was told, however late."""
        if not told.fence:
            return
        holder = self._holder(state, told)
        if holder is None:
            return
        kinds = ["result", "fail"] if self.plan.fails else ["result"]
        if told.outcome == "stop":
            kinds = ["acknowledge"]
        for kind in kinds:
            word = Word(kind, holder, told.fence)  # type: ignore[arg-type]
            if word not in words:
                yield self._say(state, word)

    def _holder(self, state: State, told: Told) -> int | None:
        if told.word is not None:
            return told.word.runtime
        for each in state.told:
            if each.word is not None and each.word.kind == "lock" and each.fence == told.fence:
                return each.word.runtime
        return None  # It knows nothing of its lease yet.

    def _say(self, state: State, word: Word) -> Step:
        arrived = (*state.arrived, Arrived(word, state.now))
        return Step((word.command_id, "is said"), state._replace(arrived=arrived))

    # --- The network -----------------------------------------------------------------------------
    def _network(self, state: State) -> Iterator[Step]:
        for i, number in enumerate(state.adrift):
            if i and number == state.adrift[i - 1]:
                continue
            rest = state._replace(adrift=state.adrift[:i] + state.adrift[i + 1 :])
            step = self._land(
                rest, number, ("late:", Name("append", number), "lands"), rest.owners, late=True
            )
            yield step._replace(is_fault=True)

    def _land(
        self,
        state: State,
        number: int,
        what: tuple[str | Name, ...],
        owners: tuple[Owner, Owner],
        *,
        late: bool = False,
    ) -> Step:
        """It is in the log, for whatever reader comes there."""
        head = self.head(state)
        tip, why = self.histories.read(head, number)
        append = self.histories.appends[number]
        self._note_landing(state, append, why, late=late)
        wrong = ""
        if why == BROKEN:
            wrong = "I23: an entry in sequence does not continue the history before it"
        for each in self.histories.path(head, tip):
            wrong = wrong or self._overheard(state, each)
            self._note_history(state, each)
        after = state._replace(tail=(*state.tail, number), owners=owners)
        if why:
            what = (*what, f"and does not count ({why})")
        return Step(what, self._settled(after), wrong=wrong)

    def _overheard(self, state: State, number: int) -> str:
        """I8: no expiry while a word that had arrived before it was due is unread."""
        node = self.node(number)
        if not any(isinstance(event, AttemptExpired) for event in node.events):
            return ""
        due = self.node(node.parent).due
        unread = state.arrived[node.commands :]
        late = [each.word for each in unread if due is not None and each.at < due]
        if any(each.kind in ("result", "fail") for each in late):
            return f"I8: expired while {late[0].command_id} was there, and unread"
        return ""

    # --- Owners ----------------------------------------------------------------------------------
    def _assign(self, state: State, i: int, owner: Idle) -> Iterator[Step]:
        """By the group; wrongly while another is at it."""
        wrongly = type(state.owners[1 - i]) is not Idle
        if wrongly and not state.faults:
            return
        if not wrongly and i and type(state.owners[0]) is Idle and not owner.kept > 0:
            return  # As good as the other.
        head = self.node(self.head(state))
        terms = state.terms + 1
        append = Append(f"n{terms}", Micros(max(state.now, head.at)))
        number = self.histories.append(append)
        if self._unknown(state):
            self.reached.add("a take-over during an unknown append")
        after = state._replace(
            owners=_with(state.owners, i, Taking(number, owner.kept)),
            faults=state.faults - wrongly,
            terms=terms,
        )
        yield Step(("an owner begins as", append.nonce), self._settled(after), is_fault=wrongly)

    def _give_up(self, state: State, i: int, owner: Taking | Active) -> Step:
        """Crashed, or the append is unknown: all that was folded is dropped."""
        adrift = state.adrift
        number = self._under_way(owner)
        if number != NONE:
            adrift = tuple(sorted((*adrift, number)))
        owners = _with(state.owners, i, self._dropped(owner))
        after = state._replace(owners=owners, adrift=adrift, faults=state.faults - 1)
        what = (self._nonce(owner), "crashes" if number == NONE else "gives its append up")
        return Step(what, self._settled(after), is_fault=True)

    def _dropped(self, owner: Taking | Active) -> Owner:
        return Idle()

    def _under_way(self, owner: Taking | Active) -> int:
        """Its append that has not landed."""
        if type(owner) is Taking:
            return owner.append if owner.tip == NONE else NONE
        assert type(owner) is Active
        if owner.flight == NONE or owner.landed != NONE:
            return NONE
        return self._append_of(owner.flight)

    def _landings(self, state: State, i: int, number: int, landed: Owner) -> Iterator[Step]:
        owners = _with(state.owners, i, landed)
        what = (Name("append", number), "lands")
        yield self._land(state, number, what, owners)
        if state.faults:
            adrift = tuple(sorted((*state.adrift, number)))
            copied = state._replace(adrift=adrift, faults=state.faults - 1)
            step = self._land(copied, number, (*what, "(a copy stays adrift)"), owners)
            yield step._replace(is_fault=True)

    def _taking(self, state: State, i: int, owner: Taking) -> Iterator[Step]:
        if owner.tip == NONE:
            tip, _ = self.histories.read(self.head(state), owner.append)
            landed = owner._replace(tip=tip, end=len(state.tail) + 1)
            yield from self._landings(state, i, owner.append, landed)
        else:
            yield self._take_over(state, i, owner)

    def _take_over(self, state: State, i: int, owner: Taking) -> Step:
        """Acknowledged: it reads up to its own record."""
        append = self.histories.appends[owner.append]
        node = self.node(owner.tip)
        after: Owner = Idle()
        if node.nonce == append.nonce:
            after = self._office(owner, node)
        if any(type(each) is Active for each in state.owners):
            self.reached.add("two owners that both believe")
        then = state._replace(owners=_with(state.owners, i, after))
        return Step((append.nonce, "has taken over"), self._settled(then))

    def _office(self, owner: Taking, node: Node) -> Owner:
        return Active(owner.tip, owner.end, owner.tip, node.commands)

    def _active(self, state: State, i: int, owner: Active) -> Iterator[Step]:
        if owner.flight != NONE and owner.landed == NONE:
            landed = owner._replace(landed=len(state.tail))
            yield from self._landings(state, i, self._append_of(owner.flight), landed)
        if owner.landed != NONE:
            yield self._finish(state, i, owner)
        if owner.next != NONE:
            if owner.flight == NONE:
                yield self._answer(state, i, owner)
            return
        due = self.node(owner.ahead).due
        if owner.asked == NONE and due is not None and due <= state.now:
            yield self._ask(state, i, owner)
        for many in range(min(WORDS_MAX, len(state.arrived) - owner.read) + 1):
            step = self._decide(state, i, owner, many)
            if step is not None:
                yield step

    def _ask(self, state: State, i: int, owner: Active) -> Step:
        asked = owner._replace(asked_at=state.now, asked=len(state.arrived))
        after = state._replace(owners=_with(state.owners, i, asked))
        return Step((self._nonce(owner), "asks for the end of the commands"), after)

    def _decide(self, state: State, i: int, owner: Active, many: int) -> Step | None:
        read = owner.read + many
        fires = owner.asked != NONE and self._has_read(owner, read)
        if not many and not fires:
            return None
        at = Micros(max(state.now, self.node(owner.ahead).at))
        arrived = state.arrived[owner.read : read]
        number = self._decision(owner, arrived, at, owner.asked_at if fires else Micros(0))
        decision = self.turns.decisions[number]
        after = owner._replace(ahead=decision.tip, read=read)
        if fires:
            after = after._replace(asked_at=Micros(0), asked=NONE)
        if decision.tip != decision.base and owner.flight == NONE:
            after = after._replace(flight=number)
        elif decision.tip != decision.base or decision.told:
            after = after._replace(next=number)
            if owner.flight != NONE:
                self.reached.add("a turn decided while the one before is under way")
        then = state._replace(owners=_with(state.owners, i, after))
        step = Step((self._nonce(owner), "decides", Name("decision", number)), then)
        return self._sent(step, number) if after.flight == number else step

    def _decision(
        self, owner: Active, arrived: Sequence[Arrived], at: Micros, asked_at: Micros
    ) -> int:
        return self.turns.decide(owner.ahead, owner.read, arrived, at, asked_at)

    def _has_read(self, owner: Active, read: int) -> bool:
        """Late is not dead: silence counts once all that had arrived before is read."""
        return read >= owner.asked

    def _sent(self, step: Step, number: int) -> Step:
        return step

    def _answer(self, state: State, i: int, owner: Active) -> Step:
        """Without an entry an answer needs the proof that nobody took over."""
        decision = self.turns.decisions[owner.next]
        if self._is_alone(state, owner):
            self.reached.add("an answer without an entry")
            after = owner._replace(next=NONE)
            told, wrong = self._release(state, decision.tip, decision.told)
            then = state._replace(owners=_with(state.owners, i, after), told=told)
            return Step((self._nonce(owner), "answers"), self._settled(then), wrong=wrong)
        at = Micros(max(state.now, self.node(owner.ahead).at))
        number = self.turns.consumed(owner.ahead, owner.read, at, decision.told)
        tip = self.turns.decisions[number].tip
        after = owner._replace(flight=number, next=NONE, ahead=tip)
        then = state._replace(owners=_with(state.owners, i, after))
        return Step((self._nonce(owner), "finds that somebody wrote"), then)

    def _is_alone(self, state: State, owner: Active) -> bool:
        return owner.end == len(state.tail)

    def _finish(self, state: State, i: int, owner: Active) -> Step:
        """Acknowledged: proven, and its effects are released; or the term ends."""
        decision = self.turns.decisions[owner.flight]
        why = self._prove(state, owner, decision.tip)
        if why:
            self.reached.add(f"an owner {why}")
            owners = _with(state.owners, i, self._dropped(owner))
            what = (self._nonce(owner), f"is {why}")
            return Step(what, self._settled(state._replace(owners=owners)))
        told, wrong = self._release(state, decision.tip, decision.told)
        after = owner._replace(node=decision.tip, end=owner.landed + 1, flight=NONE, landed=NONE)
        following = owner.next
        if following != NONE:
            follows = self.turns.decisions[following]
            if follows.tip != follows.base:
                after = after._replace(flight=following, next=NONE)
        then = state._replace(owners=_with(state.owners, i, after), told=told)
        step = Step((self._nonce(owner), "has proof"), self._settled(then), wrong=wrong)
        return self._sent(step, following) if after.flight != NONE else step

    def _prove(self, state: State, owner: Active, expected: int) -> str:
        """By where it landed: "", or why the term ends."""
        if owner.landed == owner.end:
            return ""
        node, is_doubled = owner.node, False
        for number in state.tail[owner.end : owner.landed + 1]:
            append = self.histories.appends[number]
            node, why = self.histories.read(node, number)
            if append.base < 0 and not why:
                return "fenced"
            is_doubled = is_doubled or append.base < 0
        if is_doubled:
            return "to take over again"
        return "" if node == expected else "in doubt"

    # --- Effects ---------------------------------------------------------------------------------
    def _release(
        self, state: State, tip: int, replies: tuple[Told, ...]
    ) -> tuple[frozenset[Told], str]:
        """What its senders may hear from now on, and what is wrong with that."""
        head = self.head(state)
        self._note_release(state, tip, replies)
        told = state.told.union(reply for reply in replies if _is_kept(reply))
        if not self.histories.stands(tip, head):
            return told, "I5: effects of entries that do not stand"
        for reply in replies:
            if reply.word is not None and (wrong := self._unexplained(state, tip, reply)):
                return told, wrong
        return told, ""

    def _unexplained(self, state: State, tip: int, reply: Told) -> str:
        """I5: what is accepted is in the log, what is refused is not. But a copy of what was done
        may be told that the job has ended."""
        word = reply.word
        assert word is not None
        did = self.histories.has(tip, lambda node: _did(node, word))
        if reply.outcome == "accepted" and not did:
            return f"I5: {word.command_id} was accepted, and nothing says so"
        copied = [each.word for each in state.arrived].count(word) > 1
        if reply.outcome == "refused" and did and not copied:
            return f"I5: {word.command_id} was refused, and done"
        return ""

    # --- One of many equal states ----------------------------------------------------------------
    def _settled(self, state: State) -> State:
        """Cut off what of the log nobody will look at, and put owners in order."""
        keep = len(state.tail)
        for owner in state.owners:
            if type(owner) is Active or (type(owner) is Taking and owner.end != NONE):
                keep = min(keep, owner.end)
        owners = state.owners
        base, tail = state.base, state.tail
        if keep:
            base = self.histories.read_all(base, tail[:keep])
            tail = tail[keep:]
            owners = (_moved(owners[0], keep), _moved(owners[1], keep))
        read = min(self.node(base).commands, *(o.read for o in owners if type(o) is Active), 99)
        arrived = state.arrived
        if read and arrived[read - 1].at:
            past = (Arrived(each.word, Micros(0)) for each in arrived[:read])
            arrived = (*past, *arrived[read:])
        if _order(owners[0]) > _order(owners[1]):
            owners = (owners[1], owners[0])
        return state._replace(base=base, tail=tail, owners=owners, arrived=arrived)

    # --- What happened ---------------------------------------------------------------------------
    def _unknown(self, state: State) -> bool:
        return any(self.histories.appends[each].base >= 0 for each in state.adrift)

    def _note_landing(self, state: State, append: Append, why: str, *, late: bool) -> None:
        kind = "take-over" if append.base < 0 else "entry"
        if late:
            self.reached.add(f"late {kind}: {why or 'counts'}")
        elif why == "foreign":
            self.reached.add("a zombie wrote and was ignored")

    def _note_history(self, state: State, number: int) -> None:
        node = self.node(number)
        before = self.node(node.parent)
        late = before.due is not None and node.at >= before.due
        kinds = {type(event) for event in node.events}
        if AttemptExpired in kinds:
            self.reached.add("a lease ran out")
            if any(each.word.kind == "result" for each in state.arrived[node.commands :]):
                self.reached.add("a result came too late for its lease")
        if JobSucceeded in kinds and late:
            self.reached.add("a result was read before its lease was ended")
        if JobSucceeded in kinds and before.job.cancel is not None:
            self.reached.add("a result won against a cancel")
        if node.job.end == "cancelled" and "result" in {each.word.kind for each in state.arrived}:
            self.reached.add("a cancel won against a result")
        if node.job.fence > 1:
            self.reached.add("a second attempt")

    def _note_release(self, state: State, tip: int, replies: tuple[Told, ...]) -> None:
        node = self.node(tip)
        again = any(isinstance(event, CommandDuplicated) for event in node.events)
        if again and any(each.fence and each not in state.told for each in replies):
            self.reached.add("effects that were lost are said again")
        for each in replies:
            if each.word is not None and each.outcome == "refused":
                self.reached.add(f"a {each.word.kind} is refused: {node.job.end or 'open'}")

    # --- In words --------------------------------------------------------------------------------
    def _nonce(self, owner: Taking | Active) -> str:
        if type(owner) is Taking:
            return self.histories.appends[owner.append].nonce
        assert type(owner) is Active
        return self.node(owner.node).nonce

    def _append_of(self, decision: int) -> int:
        _, tip, _, _ = found = self.turns.decisions[decision]
        nonce = self.node(tip).nonce
        return self.histories.append(Append(nonce, Micros(0), found.base, tip))

    def in_words(self, what: Sequence[str | Name]) -> str:
        return " ".join(each if isinstance(each, str) else self._named(each) for each in what)

    def _named(self, name: Name) -> str:
        if name.kind == "append":
            append = self.histories.appends[name.number]
            if append.base < 0:
                return f"the take-over of {append.nonce}"
            return f"{append.nonce}: {self._entries(append.base, append.tip)}"
        decision = self.turns.decisions[name.number]
        told = ", ".join(map(str, decision.told))
        entries = self._entries(decision.base, decision.tip) or "no entry"
        return f"{entries} (to tell: {told})" if told else entries

    def _entries(self, base: int, tip: int) -> str:
        return " | ".join(said(self.node(each)) for each in self.histories.path(base, tip))


def _with(owners: tuple[Owner, Owner], i: int, owner: Owner) -> tuple[Owner, Owner]:
    return (owner, owners[1]) if i == 0 else (owners[0], owner)


def _moved(owner: Owner, by: int) -> Owner:
    if type(owner) is Active:
        landed = owner.landed if owner.landed == NONE else owner.landed - by
        return owner._replace(end=owner.end - by, landed=landed)
    if type(owner) is Taking and owner.end != NONE:
        return owner._replace(end=owner.end - by)
    return owner


def _is_kept(told: Told) -> bool:
    """What somebody will act on; all else that was told is in the log."""
    return told.fence > 0


def _order(owner: Owner) -> tuple[int, ...]:
    return (len(owner), *owner)


def _did(node: Node, word: Word) -> bool:
    """Whether the item did what the word asked for, or found it done."""
    if node.command_id != word.command_id:
        return False
    return not any(isinstance(event, CommandRejected) for event in node.events)
