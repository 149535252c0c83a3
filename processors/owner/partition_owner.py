"""Owns one partition: takes it over, turns its intakes into entries, and starts anew when another
owner, or doubt about an append, says so. See docs/architecture.md for the protocol."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from ledger.domain.commands import Report
from ledger.domain.deadlines import NEVER
from ledger.domain.entries import Proven
from ledger.domain.ids import SECOND, JobId, Micros, QueueName
from ledger.domain.job import Job
from ledger.domain.partition import Partition
from ledger.log.crash_points import reach
from ledger.log.effective import START, Cursor, Effective
from ledger.log.errors import Fenced, LogError, LogUnavailable, OutcomeUnknown, TakeOverAgain
from ledger.log.term import Term
from processors.owner.credit import Offers
from processors.owner.gaps import Gap, Gaps
from processors.owner.inputs import Read, decide_inputs, read_inputs
from processors.owner.release import Batches, Release
from processors.owner.seams import Seams
from processors.owner.snapshots import Snapshotting
from processors.owner.term_clock import TermClock
from processors.owner.turn import Effects, Turn

log = structlog.get_logger(__name__)

COMMANDS_MAX = 2_000
"""Records of the commands intake in one turn."""
REQUESTS_MAX = 300
"""Of the requests intake: a burst of them delays no command by more than one such turn."""
TIMERS_MAX = 1_000
BUSY_RECORDS = 16
"""A turn of so many records is followed by a pause, so that the next is a batch again."""
BUSY_PAUSE_SECONDS = 0.005
REST_SECONDS = 0.2
"""How long beats of the idle wait for each other: a turn costs as much as fifty of them."""
FULL_RECORDS = 100
"""A turn of so many is a batch by itself."""
LEAVING_STEPS = 5
"""Steps of the loop from an append to the socket, through aiokafka's tasks; 0.1 ms in all."""
UNRECORDED_MAX = 1_000
"""So many commands without an entry are followed by one that records the offsets."""
UNRECORDED_US = 5 * SECOND
PROOF_US = 10 * SECOND
"""So often an owner that has nothing to say looks whether somebody else has taken over."""
IDLE_SECONDS = 5.0
"""The longest wait for something to arrive."""
FENCED_PAUSES = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0, 60.0)
"""Between take-overs after being fenced again and again: owners must not duel."""
CALM_SECONDS = 30.0
"""A term that stood so long starts the pauses from the first."""


class PartitionOwner:
    """One partition, for as long as this process is assigned it. `run` ends when told to stop."""

    def __init__(self, number: int, seams: Seams) -> None:
        self.number = number
        self._seams = seams
        self._active = asyncio.Event()
        self.leaving = asyncio.Event()
        """Set by `leave`: no further turn begins."""
        self.woken = asyncio.Event()
        """Something arrived that no turn has looked for yet, or there is no next turn."""
        self._term: Term | None = None
        self._office: TermOfOffice | None = None
        self.fenced = 0
        """How often somebody else was found to have taken over."""
        self.takeovers = 0
        self.folded = 0
        """Events that the last take-over read: all, or those behind a snapshot."""
        self.turns = 0
        self.last_error: str | None = None
        """Why the last term ended; None once the one after it stands."""
        self.decided: tuple[int, int] | None = None
        """Offsets of commands and requests to read next, by the last proven entry of this term."""

    # --- Told by the group -----------------------------------------------------------------------
    def pause(self) -> None:
        """A rebalance began. State is kept: if the partition comes back, it goes on."""
        self._active.clear()

    def resume(self) -> None:
        self._active.set()

    def leave(self) -> None:
        """`run` ends by itself, once what is under way stands and its effects are sent."""
        self.leaving.set()
        self._active.set()
        self.woken.set()

    @property
    def holds_office(self) -> bool:
        """It has taken over, and nothing has ended that."""
        return self._term is not None and not self._term.ended

    @property
    def is_owner(self) -> bool:
        return self.holds_office and self._active.is_set()

    @property
    def gaps(self) -> list[Gap]:
        """Input that is missing, and not declared lost."""
        return [] if self._office is None else self._office.gaps.found

    # --- Terms -----------------------------------------------------------------------------------
    async def run(self, rejoin: asyncio.Event) -> None:
        """Term after term. Sets `rejoin` when fenced: the assignment is not to be trusted until the
        group, left and joined anew, says it again. Raises what no new term can mend."""
        strikes = 0
        while await self.may_go_on():
            began = asyncio.get_running_loop().time()
            try:
                await self._one_term()
            except Fenced as error:
                if self.leaving.is_set():
                    return  # Whoever has it next has begun already.
                self.fenced += 1
                self.last_error = str(error)
                log.warning("owner.fenced", partition=self.number, reason=str(error))
                self._active.clear()
                rejoin.set()
                if asyncio.get_running_loop().time() - began > CALM_SECONDS:
                    strikes = 0
                await asyncio.sleep(FENCED_PAUSES[min(strikes, len(FENCED_PAUSES) - 1)])
                strikes += 1
            except (TakeOverAgain, OutcomeUnknown, LogUnavailable) as error:
                self.last_error = repr(error)
                log.warning("owner.term_ended", partition=self.number, reason=repr(error))
                await asyncio.sleep(0.2 if isinstance(error, LogUnavailable) else 0)
            finally:
                await self._leave()

    async def _leave(self) -> None:
        term, self._term = self._term, None
        self._office = None
        self.decided = None
        self._seams.commands.unfollow(self.number)
        self._seams.requests.unfollow(self.number)
        self._seams.feed.unfollow(self.number)
        if term is not None:
            with suppress(LogError):
                await asyncio.shield(term.close())

    async def _one_term(self) -> None:
        seams = self._seams
        partition, cursor = await self._begin()
        folded = 0

        def apply(items: Sequence[Effective]) -> None:
            nonlocal folded
            for item in items:
                if isinstance(item, Proven):
                    partition.apply(item.entry)
                    folded += len(item.entry.events)
                else:
                    partition.take_over(item.take_over)
            partition.touched.clear()

        reach("owner.before_take_over")
        self._term = term = await Term.take_over(
            seams.connection,
            seams.topics,
            self.number,
            ledger_id=seams.ledger_id,
            partitions=seams.partitions,
            at=lambda: Micros(max(seams.wall(), partition.at)),
            apply=apply,
            cursor=cursor,
            owner=seams.process,
        )
        reach("owner.after_take_over")
        self.takeovers += 1
        self.folded = folded
        self.last_error = None
        log.info(
            "owner.took_over",
            partition=self.number,
            nonce=term.nonce,
            entry=term.entry,
            open_jobs=len(partition.jobs),
            folded=folded,
        )
        seams.feed.follow(self.number, term.cursor.offset)
        seams.commands.follow(self.number, partition.commands, self.woken)
        seams.requests.follow(self.number, partition.requests, self.woken)
        self._office = TermOfOffice(self._seams, self, term, partition, folded)
        await self._office.serve()

    async def _begin(self) -> tuple[Partition, Cursor]:
        seams = self._seams
        stored = None
        if seams.snapshots is not None:
            stored = await seams.snapshots.newest(self.number, seams.bounds)
        return stored or (Partition(self.number, seams.bounds), START)

    async def may_go_on(self) -> bool:
        """Waits out a rebalance. False: leave."""
        await self._active.wait()
        return not self.leaving.is_set()


@dataclass(frozen=True, slots=True)
class Decided:
    """A turn with what is released once its entries stand."""

    turn: Turn
    batches: Batches
    touched: dict[JobId, Job]


class TermOfOffice:
    """What happens between a take-over and its end: turns."""

    def __init__(
        self,
        seams: Seams,
        owner: PartitionOwner,
        term: Term,
        partition: Partition,
        folded: int = 0,
    ) -> None:
        """`folded`: events since the snapshot that the term began with."""
        self._seams = seams
        self._snapshotting: Snapshotting | None = None
        if seams.snapshots is not None:
            self._snapshotting = Snapshotting(seams.snapshots, owner.number, folded)
        self.gaps = Gaps(seams, partition)
        self._owner = owner
        self._term = term
        self._partition = partition
        self._offers = Offers()
        self._release = Release(seams, partition, self._offers)
        self._clock = TermClock(
            seams.wall, seams.monotonic, last=partition.at, appended_at=term.appended_at
        )
        self._suppressed: Counter[tuple[str, ...]] = Counter()
        self._bulk_todo: dict[str, list[JobId]] = {}
        self._unrecorded = 0
        self._unrecorded_since = Micros(0)
        self._silence_at = Micros(0)
        """Before it nobody can have been silent for too long."""
        self._proven_at = self._clock.running()
        """When it last found, or began to find, that nobody else has taken over."""
        self._asked: tuple[Micros, int] | None = None
        """(when it was asked, end of the commands then): timers due before it may fire once the
        commands are read up to there."""
        self._sending: asyncio.Task[None] | None = None
        """Also one of `_tasks`."""
        self._settling: asyncio.Task[None] | None = None
        """The turn before: its append, its proof. The next one is decided meanwhile."""
        self._is_resting = False
        """When last anything came, runtimes said only that they live, and there was nothing to give
        them."""
        self._opening: set[QueueName] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        """Beside the turns; see `_look_after`."""
        self._owed = Effects()
        """What other partitions are still to be told."""

    async def serve(self) -> None:
        try:
            await self._announce()
            while await self._owner.may_go_on():
                busy = await self._turn()
                await self._snapshot(idle=not busy)
                if BUSY_RECORDS <= busy < FULL_RECORDS:
                    await asyncio.sleep(BUSY_PAUSE_SECONDS)
                elif busy and self._has_more():
                    await self._let_it_leave()
                else:
                    await self._settle()
                    await self._wait()
                    if self._is_resting and self._owner.woken.is_set():
                        await self._wait_for_other_beats()
            await self._drain()
        finally:
            under_way = self._tasks | ({self._settling} if self._settling is not None else set())
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            if self._snapshotting is not None:
                await self._snapshotting.close()

    async def _announce(self) -> None:
        """Tell runtimes and gateways that their owner is new, and other partitions what is owed."""
        for queue in self._partition.queues.values():
            if queue.sessions:
                self._begin_inbox(queue.name)
        await self._send_all(self._release.claim_again(), Effects())
        self._owed.parts.update(
            operation_id
            for operation_id, operation in self._partition.bulks.items()
            if not operation.ended
        )
        self._owed.confirmations.update(self._partition.bulk_done)

    async def _turn(self) -> int:
        """Read, decide, append, prove, release. How many records and timers it dealt with."""
        seams, number = self._seams, self._owner.number
        self._owner.woken.clear()
        self._look_after()
        await self._ask_for_due()
        commands = await self.gaps.take("commands", COMMANDS_MAX)
        requests = await self.gaps.take("requests", REQUESTS_MAX)
        reach("owner.after_poll")
        read_commands = await read_inputs(seams, number, commands, self.gaps) if commands else []
        read_requests = await read_inputs(seams, number, requests, self.gaps) if requests else []
        if self._clock.outruns(self._term.appended_at) and (
            commands or requests or self._soonest_due() <= self._clock.running()
        ):
            await self._tick()
        turn = self._new_turn()
        fired = self._decide(turn, read_commands, read_requests)
        turn.finish()
        if commands or requests or turn.entries:
            self._is_resting = self._found_nothing_to_do(turn)
        if read_commands:
            self._note_inboxes(read_commands)
        self._count_unrecorded(turn)
        is_proof_due = self._clock.running() >= self._proven_at + PROOF_US
        if not (turn.entries or turn.effects.any() or self._owed.any() or is_proof_due):
            return len(commands) + len(requests) + fired
        reach("owner.after_decide")
        self._add_owed(turn.effects)
        decided = Decided(
            turn, self._release.records(turn.effects, turn.at), self._partition.drain_touched()
        )
        await self._settle()
        self._settling = asyncio.create_task(self._finish(decided))
        if not turn.entries:
            await self._settle()
        self._owner.turns += 1
        if turn.input_lost:
            await self._drain()
            # A new term reads on behind the gap, and takes nobody's silence in it for silence.
            raise TakeOverAgain("input was declared lost")
        return len(commands) + len(requests) + fired + len(turn.entries)

    async def _snapshot(self, *, idle: bool) -> None:
        snapshotting = self._snapshotting
        if snapshotting is not None and snapshotting.is_due(self._partition, idle=idle):
            await self._settle()
            snapshotting.begin(self._partition, self._term.cursor)

    async def _settle(self) -> None:
        """Wait for the turn before this one to stand, and raise what ended it instead."""
        settling, self._settling = self._settling, None
        if settling is not None:
            await settling

    async def _let_it_leave(self) -> None:
        """A turn never waits for anything: without this, what the last one appends would be sent
        only once the next is decided, and the owner would then wait for it with nothing to do."""
        for _ in range(LEAVING_STEPS):
            await asyncio.sleep(0)

    async def _drain(self) -> None:
        """What is decided stands, and its effects are sent."""
        await self._settle()
        if self._sending is not None:
            await asyncio.wait([self._sending])
        self._look_after()

    def _look_after(self) -> None:
        """What nobody expected of a task beside the turns ends the term, as it does of a turn."""
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()

    async def _finish(self, decided: Decided) -> None:
        proven = await self._prove(decided.turn, decided.touched)
        reach("owner.before_effects")
        await self._send(decided, proven)

    def _new_turn(self) -> Turn:
        return Turn(
            self._partition,
            self._offers,
            self._clock.read(self._term.appended_at),
            ahead=self._clock.ahead,
            fits=self._term.fits,
            suppressed=self._suppressed,
            bulk_todo=self._bulk_todo,
        )

    def _found_nothing_to_do(self, turn: Turn) -> bool:
        """It heard that the idle are alive, and has nothing to give them."""
        if turn.entries or not turn.effects.are_answers_to_the_idle():
            return False
        return not any(self._partition.may_give(name, turn.at) for name in self._partition.queues)

    def _decide(self, turn: Turn, commands: Read, requests: Read) -> int:
        decide_inputs(turn, commands, requests)
        fired = 0
        silence_counts = not self.gaps.in_commands
        if self._asked is not None:
            asked_at, end = self._asked
            if self._seams.commands.position(self._owner.number) >= end and silence_counts:
                self._asked = None
                fired = turn.timers(asked_at, TIMERS_MAX)
        if schedules := turn.schedules(turn.at, TIMERS_MAX):
            reach("schedule.before_entry")
            fired += schedules
        if turn.at >= self._silence_at and silence_counts:
            self._silence_at = turn.silences()
        self._silence_at = min(self._silence_at, turn.lapses_at)
        turn.claims_over()
        turn.bulks()
        turn.assign()
        return fired

    async def _ask_for_due(self) -> None:
        """Late is not dead: silence counts only once all that had arrived before is read."""
        due = self._next_silence()
        asked_at = self._now()
        if due is None or self._asked is not None or due > asked_at:
            return
        end = await self._seams.offsets.end(self._seams.topics.commands, self._owner.number)
        self._asked = (asked_at, end)

    def _next_silence(self) -> Micros | None:
        """When somebody may have been silent for too long."""
        dues = (self._partition.timers.next_due(), self._offers.next_unconfirmed())
        return min((due for due in dues if due is not None), default=None)

    def _now(self) -> Micros:
        return self._clock.read(self._term.appended_at)

    # --- Append and prove ------------------------------------------------------------------------
    async def _prove(self, turn: Turn, touched: dict[JobId, Job]) -> Sequence[Proven]:
        """The entries, once they stand. Answers without an entry need the proof
        that nobody took over since their command was read (and nothing is decided meanwhile)."""
        self._proven_at = self._clock.running()
        if not turn.entries:
            end = await self._seams.offsets.end(self._seams.topics.events, self._owner.number)
            if end == self._term.end:
                return ()
            turn.consumed(0)  # Somebody wrote: the append finds out who.
        before = self._term.cursor.offset
        proven = await self._term.append(turn.entries)
        reach("owner.after_append")
        self._clock.confirm(self._term.appended_at)
        if turn.schedules_fired:
            reach("schedule.after_entry")
        self._owner.decided = (proven[-1].entry.commands, proven[-1].entry.requests)
        self._seams.feed.offer(self._owner.number, before, proven, touched)
        if self._snapshotting is not None:
            self._snapshotting.note(self._term.cursor.offset - before)
        return proven

    async def _tick(self) -> None:
        """An entry that only tells the time: after a long silence the clock may not run ahead of
        what the broker has confirmed."""
        await self._settle()
        turn = self._new_turn()
        turn.consumed(self._unrecorded)
        self._unrecorded = 0
        await self._prove(turn, self._partition.drain_touched())

    def _count_unrecorded(self, turn: Turn) -> None:
        if turn.entries:
            self._unrecorded = 0
            return
        if turn.unrecorded and not self._unrecorded:
            self._unrecorded_since = turn.at
        self._unrecorded += turn.unrecorded
        late = self._unrecorded and turn.at >= self._unrecorded_since + UNRECORDED_US
        if late or self._unrecorded >= UNRECORDED_MAX:
            turn.consumed(self._unrecorded)
            self._unrecorded = 0

    # --- Effects ---------------------------------------------------------------------------------
    async def _send(self, decided: Decided, proven: Sequence[Proven]) -> None:
        """In order, one batch of effects under way at a time; they may be lost, never wrong."""
        batches, effects = decided.batches, decided.turn.effects
        if effects.replies:
            positions = {one.entry.number: one.last_offset for one in proven}
            self._release.add_replies(batches, effects, positions, self._term.end - 1)
        if not batches:
            return
        if self._sending is not None:
            await asyncio.wait([self._sending])
        self._sending = asyncio.create_task(self._send_all(batches, effects))
        self._tasks.add(self._sending)

    async def _send_all(self, batches: Batches, effects: Effects) -> None:
        try:
            await self._release.send(batches)
            reach("owner.after_effects")
        except LogError as error:
            log.warning("owner.effects_delayed", partition=self._owner.number, reason=str(error))
            self._owed.parts.update(effects.parts)
            self._owed.confirmations.update(effects.confirmations)

    def _add_owed(self, effects: Effects) -> None:
        owed, self._owed = self._owed, Effects()
        effects.parts.update(owed.parts)
        effects.confirmations.update(owed.confirmations)

    def _note_inboxes(self, read: Read) -> None:
        """A queue's inbox topic is made when its first runtime beats: beside the turns."""
        for _, found in read:
            command = getattr(found, "command", None)
            beat = command.beat if isinstance(command, Report) else command
            queue = getattr(beat, "queue", None)
            if queue is None or not hasattr(beat, "slots") or queue in self._release.inboxes:
                continue
            self._begin_inbox(queue)

    def _begin_inbox(self, queue: QueueName) -> None:
        if queue not in self._opening:
            self._opening.add(queue)
            self._tasks.add(asyncio.create_task(self._open_inbox(queue)))

    async def _open_inbox(self, queue: QueueName) -> None:
        try:
            await self._seams.topics.ensure_assigned(
                self._seams.connection, queue, mode=self._seams.mode
            )
            reach("owner.after_inbox_made")
            self._release.inboxes.add(queue)
            # What was answered before the topic was there is lost: let its runtimes beat again.
            await self._send_all(self._release.beat_again([queue]), Effects())
        except LogError as error:
            log.warning("owner.inbox_not_made", queue=queue, reason=str(error))
        finally:
            self._opening.discard(queue)

    # --- Waiting ---------------------------------------------------------------------------------
    def _has_more(self) -> bool:
        """Whether there is something to do at once."""
        return self._has_news() or self._soonest_due() <= self._clock.running()

    def _has_news(self) -> bool:
        """Something has arrived that is more than a sign of life of the idle."""
        seams, number = self._seams, self._owner.number
        if seams.requests.buffered(number) and not self.gaps.in_requests:
            return True
        if not seams.commands.buffered(number) or self.gaps.in_commands:
            return False
        return not self._is_resting or seams.commands.presses(number)

    async def _wait(self) -> None:
        """Until something arrives, or something falls due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience()):
                await self._owner.woken.wait()

    async def _wait_for_other_beats(self) -> None:
        """Unless anything else has arrived, or arrives, or something falls due."""
        owner = self._owner
        with suppress(TimeoutError):
            async with asyncio.timeout(min(REST_SECONDS, self._patience())):
                while not (owner.leaving.is_set() or self._has_news()):
                    owner.woken.clear()
                    await owner.woken.wait()

    def _patience(self) -> float:
        """Seconds until the next thing falls due, or a look at the log, at most IDLE_SECONDS."""
        due = min(self._soonest_due(), self._proven_at + PROOF_US)
        left = (due - self._clock.running()) / SECOND
        return min(IDLE_SECONDS, max(0.001, left))

    def _soonest_due(self) -> Micros:
        dues = [self._offers.next_end(), self._partition.schedule_timers.next_due()]
        if self._unrecorded:
            dues.append(Micros(self._unrecorded_since + UNRECORDED_US))
        if self._partition.bulk_parts and not self.gaps.in_requests:
            dues.append(self._clock.running())
        if not self.gaps.in_commands:
            dues += self._silences_due()
        return min((due for due in dues if due is not None), default=NEVER)

    def _silences_due(self) -> list[Micros | None]:
        """What falls due by somebody's silence, which counts only while the commands are read."""
        dues = [self._next_silence(), self._silence_at]
        if self._asked is not None:
            dues.append(self._clock.running())
        return dues
