"""Walks through the small world, with the real `Term` beside it: what the model says of take-overs,
of proof and of what counts in the log must be what the real code finds, step by step.

An append lands, and is acknowledged, when the model says so. Each owner is a process of the
simulation, so that it can be killed; each of its terms is the real one, on the simulated log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from ledger.domain.entries import Entry, Proven, TakeOver
from ledger.domain.ids import Micros
from ledger.log.connection import Bounds, Connection
from ledger.log.effective import EffectiveEntries
from ledger.log.entry_codec import EntryEncoder, take_over_from, take_over_record
from ledger.log.errors import Fenced, LogError, OutcomeUnknown, TakeOverAgain
from ledger.log.records import Outgoing
from ledger.log.term import Term
from ledger.log.topics import Topics
from tests.model.histories import IGNORED, LEDGER
from tests.model.world import NONE, Active, Name, State, Step, Taking, World
from tests.simulation.broker import APPEND_TIME, Broker, Sent, Way
from tests.simulation.clients import clients_of
from tests.simulation.loop import Loop, Process
from tests.simulation.nature import simulated

FOR_EVER = 1e9
"""Nobody's patience ends by itself: when an append is given up the model says."""
BOUNDS = Bounds(
    request_seconds=FOR_EVER, append_seconds=FOR_EVER, close_seconds=0.01, poll_seconds=0.01
)
TRIP_SECONDS = 0.001
LOOK_SECONDS = 0.001
LOOKS_MAX = 5_000
UNDER_WAY = Way(arrives_in=None, answered_in=None)
ENDINGS: dict[str, type[LogError]] = {
    "is fenced": Fenced,
    "is to take over again": TakeOverAgain,
    "is in doubt": OutcomeUnknown,
}


class Disagreement(AssertionError):
    """One of the two is wrong."""


class Calm:
    """The weather: short trips, and fetches that are cut anywhere."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    def append(self, sent: Sent) -> Way:
        return UNDER_WAY

    def fetch_seconds(self, process: Process | None) -> float:
        return TRIP_SECONDS

    def trip_seconds(self, process: Process | None) -> float:
        return TRIP_SECONDS

    def records_max(self) -> int:
        return self._chance.randint(1, 4)


@dataclass(eq=False)
class Batch:
    sent: Sent
    answer: Callable[[int | None, int], None]
    offset: int | None = None
    """Where it landed first."""


class HeldBack(Broker):
    """What is sent to it lands when it is told to let it."""

    def __init__(self, loop: Loop, chance: Random) -> None:
        super().__init__(loop, Calm(chance), group_seconds=FOR_EVER)
        self.sent: list[Batch] = []

    def carry(self, sent: Sent, answer: Callable[[int | None, int], None]) -> Way:
        self.sent.append(Batch(sent, answer))
        return UNDER_WAY

    def land(self, batch: Batch) -> None:
        offset = self._append(batch.sent, "" if batch.offset is None else "again")
        if batch.offset is None:
            batch.offset = offset

    def acknowledge(self, batch: Batch, *, says_where: bool = True) -> None:
        batch.answer(batch.offset if says_where else None, self.now_ms())


@dataclass(eq=False)
class Owner:
    """One real term, from its beginning on."""

    process: Process
    under_way: Batch
    taking: asyncio.Task[Term]
    appending: asyncio.Task[list[Proven]] | None = None
    flight: int = NONE
    """The decision whose entries were handed over."""

    @property
    def term(self) -> Term:
        return self.taking.result()


@dataclass
class Walks:
    """What became of them, one after the other."""

    count: int = 0
    steps: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    """By the real code."""
    wrong: list[str] = field(default_factory=list)
    """What the model itself says must not be."""


class Beside:
    """The real ones in one history; `Disagreement` if they are not where the model is."""

    def __init__(self, world: World, loop: Loop, chance: Random, reached: Counter[str]) -> None:
        self._world = world
        self._reached = reached
        self._chance = chance
        self._loop = loop
        self._broker = HeldBack(loop, chance)
        self._topics = Topics()
        self._connection = Connection(
            bootstrap="simulated", bounds=BOUNDS, clients=clients_of(self._broker)
        )
        self._broker.create(self._topics.events, 1, 1, {"message.timestamp.type": APPEND_TIME})
        self._log = self._broker.log(self._topics.events, 0)
        self._owners: dict[str, Owner] = {}
        """By the model's nonce."""
        self._nonces: dict[str, str] = {}
        """The model's, by the real one."""
        self._batches: dict[int, Batch] = {}
        """By the number of the append."""
        self._write_first()
        self._ends = [self._log.end]
        """Before the first append that lands, and behind each."""
        self._ignored: Counter[str] = Counter()

    async def follow(self, step: Step) -> None:
        match step.what:
            case ("an owner begins as", str(nonce)):
                await self._begin(nonce, step.state)
            case (str(nonce), "crashes" | "gives its append up"):
                await self._drop(nonce)
            case (Name() as append, "lands", *_):
                self._land(append.number)
            case ("late:", Name() as append, "lands", *but):
                self._land(append.number)
                kind = (
                    "entry"
                    if self._world.histories.appends[append.number].base >= 0
                    else "take-over"
                )
                self._reached[" ".join(("late", kind, "lands", *map(str, but)))] += 1
            case (str(nonce), "has taken over"):
                await self._taken_over(nonce, step.state)
            case (str(nonce), "has proof"):
                await self._proven(nonce)
            case (str(nonce), "is fenced" | "is to take over again" | "is in doubt" as how):
                await self._ended(nonce, ENDINGS[how])
            case (str(nonce), "answers" | "finds that somebody wrote" as how):
                alone = self._owners[nonce].term.end == self._log.end
                _same(f"{nonce} is alone", alone, how == "answers")
            case _:
                pass  # Nothing that an owner would do to the log.
        await self._hand_over(step.state)
        self._compare(step.state)

    # --- What is done ----------------------------------------------------------------------------
    def _land(self, number: int) -> None:
        self._broker.land(self._batches[number])
        self._ends.append(self._log.end)

    async def _begin(self, nonce: str, state: State) -> None:
        (taking,) = (o for o in state.owners if type(o) is Taking and self._nonce(o) == nonce)
        append = self._world.histories.appends[taking.append]
        process = Process(f"owner {nonce}", self._loop)
        task = process.start(self._take_over(nonce, append.at))
        batch = await self._sent(f"the take-over of {nonce}")
        _, value, _ = batch.sent.records[0]
        take_over = take_over_from(value)
        assert take_over is not None
        self._nonces[take_over.nonce] = nonce
        self._batches[taking.append] = batch
        self._owners[nonce] = Owner(process, batch, task)

    async def _take_over(self, nonce: str, at: Micros) -> Term:
        return await Term.take_over(
            self._connection,
            self._topics,
            0,
            ledger_id=LEDGER,
            partitions=1,
            at=lambda: at,
            apply=lambda items: None,
            owner=nonce,
        )

    async def _taken_over(self, nonce: str, state: State) -> None:
        owner = self._owners[nonce]
        self._broker.acknowledge(owner.under_way)
        await self._until(owner.taking.done, f"{nonce} has taken over, or not")
        error = owner.taking.exception()
        stands = any(type(o) is Active and self._nonce(o) == nonce for o in state.owners)
        _same(f"{nonce} is owner ({error!r})", error is None, stands)
        if error is not None:
            self._reached[f"take-over: {type(error).__name__}"] += 1
            del self._owners[nonce]

    async def _hand_over(self, state: State) -> None:
        """The entries of a turn, to the term that is to append them."""
        for owner in state.owners:
            if type(owner) is not Active or owner.flight == NONE:
                continue
            nonce = self._nonce(owner)
            real = self._owners[nonce]
            if owner.flight == real.flight:
                continue
            entries = self._entries(owner.flight)
            real.flight = owner.flight
            real.appending = real.process.start(real.term.append(entries))
            real.under_way = await self._sent(f"{nonce}'s entries {[e.number for e in entries]}")
            self._batches[self._world._append_of(owner.flight)] = real.under_way

    async def _proven(self, nonce: str) -> None:
        owner = self._owners[nonce]
        proven = await self._acknowledged(nonce)
        if isinstance(proven, BaseException):
            raise Disagreement(f"{nonce} has proof, but {proven!r}")
        _same(f"{nonce}'s proof", [each.entry for each in proven], self._entries(owner.flight))
        owner.appending, owner.flight = None, NONE

    async def _ended(self, nonce: str, how: type[LogError]) -> None:
        ended = await self._acknowledged(nonce)
        _same(f"how {nonce} ended", type(ended), how)
        self._reached[how.__name__] += 1
        await self._close(nonce)

    async def _acknowledged(self, nonce: str) -> list[Proven] | BaseException:
        owner = self._owners[nonce]
        assert owner.appending is not None
        self._broker.acknowledge(owner.under_way)
        await self._until(owner.appending.done, f"{nonce} has proof, or not")
        return owner.appending.exception() or owner.appending.result()

    async def _drop(self, nonce: str) -> None:
        """By kill -9, or because nobody says what became of the append."""
        owner = self._owners[nonce]
        how = self._chance.choice(["killed", "closed", "told without an offset"])
        waits = owner.appending or owner.taking
        if how == "told without an offset" and owner.under_way.offset is not None:
            if not waits.done():
                self._broker.acknowledge(owner.under_way, says_where=False)
                await self._until(waits.done, f"{nonce} hears that nobody knows")
                _same(f"how {nonce} ended", type(waits.exception()), OutcomeUnknown)
                self._reached["OutcomeUnknown"] += 1
        elif how == "killed":
            owner.process.kill()
            del self._owners[nonce]
            self._reached["killed"] += 1
            return
        if owner.taking.done() and owner.taking.exception() is None:
            await self._close(nonce)
            return
        owner.taking.cancel()
        await self._until(owner.taking.done, f"{nonce} gives its take-over up")
        del self._owners[nonce]

    async def _close(self, nonce: str) -> None:
        owner = self._owners.pop(nonce)
        closing = owner.process.start(owner.term.close())
        await self._until(closing.done, f"{nonce} has closed")
        if owner.appending is not None:
            await self._until(owner.appending.done, f"{nonce}'s append has ended")
            assert owner.appending.exception() is not None
        refused = owner.process.start(owner.term.append([]))
        await self._until(refused.done, f"{nonce} appends no more")
        _same(f"whether the term of {nonce} has ended", owner.term.ended, True)
        assert refused.exception() is not None

    async def _sent(self, what: str) -> Batch:
        sent = self._broker.sent
        await self._until(lambda: bool(sent), f"{what} leaves")
        batch = sent.pop()
        _same("batches under way", len(sent), 0)
        return batch

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        for _ in range(LOOKS_MAX):
            if holds():
                return
            await asyncio.sleep(LOOK_SECONDS)
        raise Disagreement(f"it does not come about: {what}")

    # --- What must be the same -------------------------------------------------------------------
    def _compare(self, state: State) -> None:
        items, hashes = self._effective()
        head = self._world.head(state)
        _same("the records that count", items, self._world.histories.items(head))
        active = {self._nonce(o): o for o in state.owners if isinstance(o, Taking | Active)}
        _same("owners", set(self._owners), set(active))
        for nonce, owner in active.items():
            if type(owner) is Active:
                self._compare_term(nonce, owner, state, hashes)

    def _compare_term(
        self, nonce: str, owner: Active, state: State, hashes: dict[int, bytes]
    ) -> None:
        term = self._owners[nonce].term
        proven = self._world.node(owner.node).cursor.entry
        handed_over = owner.node
        if owner.flight != NONE:
            handed_over = self._world.turns.decisions[owner.flight].tip
        _same(f"{nonce} is over", term.ended, False)
        _same(f"{nonce} has proof up to entry", term.entry, proven)
        _same(f"the hash that {nonce} has proof of", term.hash, hashes[proven])
        _same(f"{nonce} expects its next append at", term.end, self._end(state, owner.end))
        next_entry = self._world.node(handed_over).cursor.entry + 1
        _same(f"the next entry of {nonce}", term.next_entry, next_entry)

    def _effective(self) -> tuple[list[Entry | TakeOver], dict[int, bytes]]:
        """What every reader makes of the whole log, in the model's words, and the hash of each
        entry."""
        effective = EffectiveEntries(self._topics.events, 0)
        items: list[Entry | TakeOver] = []
        hashes = {}
        for item in effective.feed_all(self._log.records):
            if isinstance(item, Proven):
                items.append(item.entry)
                hashes[item.entry.number] = item.hash
            else:
                said = item.take_over
                nonce = self._nonces[said.nonce]
                items.append(TakeOver(nonce, said.at, said.ledger_id, said.partitions))
        ignored = Counter({name: getattr(effective.ignored, name) for name in IGNORED})
        for name, many in (ignored - self._ignored).items():
            self._reached[f"ignored: {name}"] += many
        self._ignored = ignored
        return items, hashes

    def _end(self, state: State, place: int) -> int:
        """The offset at a place of the model's, which counts appends."""
        return self._ends[len(self._ends) - 1 - len(state.tail) + place]

    def _entries(self, decision: int) -> list[Entry]:
        found = self._world.turns.decisions[decision]
        path = self._world.histories.path(found.base, found.tip)
        items = [self._world.node(number).item for number in path]
        return [item for item in items if isinstance(item, Entry)]

    def _nonce(self, owner: Taking | Active) -> str:
        return self._world._nonce(owner)

    def _write_first(self) -> None:
        """What stands in the log when the world begins."""
        take_over, entry = (node.item for node in self._world.histories.nodes[:2])
        assert isinstance(take_over, TakeOver)
        assert isinstance(entry, Entry)
        self._nonces[take_over.nonce] = take_over.nonce
        encoder = EntryEncoder(partition=0, ledger_id=LEDGER, nonce=take_over.nonce)
        records: Sequence[Outgoing] = [
            take_over_record(take_over, partition=0),
            *encoder.encode(entry, b"").records,
        ]
        self._broker.land(Batch(Sent(0, 0, self._topics.events, 0, records, ""), _unheard))


def walked(world: World, seed: int, *, steps: int) -> Walks:
    """Histories drawn from the seed, until they have so many steps in all. Raises `Disagreement`,
    with how it came to that."""
    walks, loop = Walks(), Loop(seed)
    with simulated(loop):
        try:
            loop.run_until_complete(_walked(world, loop, Random(seed), steps, walks))
        finally:
            loop.give_up()
    return walks


async def _walked(world: World, loop: Loop, chance: Random, steps: int, walks: Walks) -> None:
    while walks.steps < steps:
        walks.count += 1
        trace: list[str] = []
        try:
            await _history(world, Beside(world, loop, chance, walks.reached), chance, trace, walks)
        except (AssertionError, ValueError, LogError) as error:
            story = "\n".join(f"{n:3} {said}" for n, said in enumerate(trace, 1))
            raise Disagreement(f"{error!r}\n{story}") from error


async def _history(
    world: World, beside: Beside, chance: Random, trace: list[str], walks: Walks
) -> None:
    state = world.start()
    while ways := list(world.steps(state)):
        step = chance.choice(ways)
        trace.append(world.in_words(step.what))
        walks.steps += 1
        await beside.follow(step)
        state = step.state
        if wrong := step.wrong or world.wrong(state):
            walks.wrong.append(wrong)


def _same(what: str, real: object, model: object) -> None:
    if real != model:
        raise Disagreement(f"{what}: really {real!r}, in the model {model!r}")


def _unheard(offset: int | None, at: int) -> None:
    pass
