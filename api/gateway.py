"""Sends commands and awaits what their owners decide.

A reply is a hint: when none comes in time the answer is `Undecided`, and the read model tells the
outcome. What is granted but not handed over is given back at once, so that no job waits out the
lease of a caller who has gone; owners are told which claims wait and which are handed over, so that
none waits out the lease of a gateway that has died.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import msgspec
import structlog
from msgspec import Raw, Struct
from msgspec.structs import replace

from api.beats import Beats
from api.idempotency import release_id
from api.positions import Seen
from api.wire import Heard, Place, Sent, Wire
from ledger.domain.commands import Claim, ReleaseLease
from ledger.domain.ids import CommandId, Fence, JobId
from ledger.domain.partition import KEYED
from ledger.log.crash_points import reach
from ledger.log.errors import LogError
from ledger.log.inbox import OwnerChanged
from ledger.log.replies import Reply

ABANDONED_MAX = 10_000
"""Commands whose late grants are given back: the latest so many."""
PLACES_MAX = 10_000
"""Of commands that were not decided in time."""
DEAF_SECONDS = 1.0
"""Between two tries to hear replies again."""
RELEASE_TRIES_MAX = 3
CLOSE_SECONDS_MAX = 5.0
NOT_HANDED_OVER = "not handed over"

log = structlog.get_logger(__name__)


class Undecided(Struct, frozen=True, gc=False):
    """The command is in the log; its outcome is not known yet."""

    command_id: CommandId
    place: Place


class Decision(Struct, frozen=True, gc=False):
    """What the owner said."""

    reply: Reply
    undecided: Undecided | None
    """How to answer if what was decided cannot be shown yet; None: nobody knows where it lies."""


class Overloaded(Exception):
    """As many commands as may be awaited already are."""


class _Answer(Struct, frozen=True, gc=False):
    """Of a lock (then it has a fence), or of a claim: each item as lock answers it."""

    fence: Fence | None = None
    items: tuple[Raw, ...] = ()


class _Lease(Struct, frozen=True, gc=False):
    """What the gateway itself reads of a grant."""

    job_id: JobId
    fence: Fence


class Waiter:
    """One request that awaits one command's outcome."""

    __slots__ = ("is_parked", "is_taken", "place", "reply", "sent")

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.place: Place | None = None
        self.is_parked = False
        """Its owner has said that it waits in memory."""
        self.is_taken = False
        """What it grants is in its caller's hands, or will be told to whoever asks again."""

    def hear(self, reply: Reply) -> None:
        if reply.outcome == "parked":
            self.is_parked = True
        elif not self.reply.done():
            self.reply.set_result(reply)

    async def decided(self, deadline: float) -> Reply | None:
        """None: not by `deadline` (of the loop's clock)."""
        await asyncio.wait((self.reply,), timeout=max(0.0, deadline - now()))
        return self.reply.result() if self.reply.done() else None


class Gateway:
    """One a process, see `opened`. Every wait and every table has a bound."""

    def __init__(self, wire: Wire, seen: Seen, *, in_flight_max: int) -> None:
        self._wire = wire
        self._seen = seen
        self._in_flight_max = in_flight_max
        self._in_flight = 0
        self._waiters: dict[CommandId, list[Waiter]] = {}
        self._abandoned: dict[CommandId, Sent] = {}
        self._places: dict[CommandId, Place] = {}
        self.beats = Beats(wire, self._waiting_claims)
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_hearing = True

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def place_of(self, command_id: str) -> Place | None:
        """Where a command lies that this gateway answered as undecided."""
        return self._places.get(CommandId(command_id))

    async def decide(
        self, sent: Sent, wait_seconds: float, *, gives_back: bool = False
    ) -> Decision | Undecided:
        """Raises `LogError`, `RecordTooLarge` and `Overloaded`.

        `gives_back`: what is granted to a caller who left before the reply is released, unless the
        command is keyed: then its caller gets it by asking again.
        """
        deadline = now() + wait_seconds
        gives_back = gives_back and not sent.command_id.startswith(KEYED)
        with self.waiting(sent, gives_back=gives_back) as waiter:
            await self.append(waiter)
            reply = await waiter.decided(deadline)
            waiter.is_taken = True
            if reply is None:
                return self.undecided(waiter)
            place = waiter.place
            return Decision(reply, None if place is None else Undecided(sent.command_id, place))

    # --- The parts of it, for claims over several partitions -------------------------------------
    @contextmanager
    def waiting(self, sent: Sent, *, gives_back: bool) -> Iterator[Waiter]:
        """Replies are awaited inside; registered before the command is sent, so none is missed."""
        if self._in_flight >= self._in_flight_max:
            raise Overloaded
        waiter = Waiter(sent)
        waiters = self._waiters.setdefault(sent.command_id, [])
        waiters.append(waiter)
        self._in_flight += 1
        try:
            yield waiter
        finally:
            self._in_flight -= 1
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[sent.command_id]
            if gives_back and not waiter.is_taken:
                self._abandon(waiter)
            if isinstance(sent.command, Claim):
                self._tell_owner(waiter, sent.command)

    async def append(self, waiter: Waiter) -> None:
        try:
            reach("gateway.before_append")
            waiter.place = await self._wire.append(waiter.sent)
            reach("gateway.after_append")
        except LogError:
            if not waiter.reply.done():  # Else it has landed all the same.
                raise

    def undecided(self, waiter: Waiter) -> Undecided:
        assert waiter.place is not None
        return self.remember(Undecided(waiter.sent.command_id, waiter.place))

    def remember(self, undecided: Undecided) -> Undecided:
        """So that `place_of` can tell where it lies."""
        self._places[undecided.command_id] = undecided.place
        _trim(self._places, PLACES_MAX)
        return undecided

    def give_back(self, sent: Sent, items: Sequence[Raw]) -> None:
        """Release what was granted to `sent`; nobody waits for it, and twice is no news."""
        for item in items:
            lease = msgspec.json.decode(item, type=_Lease)
            command = ReleaseLease(lease.job_id, lease.fence, NOT_HANDED_OVER)
            command_id = release_id(sent.command_id, lease.job_id, lease.fence)
            self._start(self._send(Sent(command, command_id, sent.actor, sent.traceparent)))

    def _abandon(self, waiter: Waiter) -> None:
        self._abandoned[waiter.sent.command_id] = waiter.sent
        _trim(self._abandoned, ABANDONED_MAX)
        if waiter.reply.done():
            self.give_back(waiter.sent, granted(waiter.reply.result()))

    # --- What owners are told of claims ----------------------------------------------------------
    def _waiting_claims(self) -> dict[int, list[CommandId]]:
        """By partition: claims whose callers have no answer yet."""
        claims: dict[int, list[CommandId]] = {}
        for command_id, (waiter, *_) in self._waiters.items():
            if isinstance(waiter.sent.command, Claim):
                partition = self._wire.partition_of(waiter.sent.command)
                claims.setdefault(partition, []).append(command_id)
        return claims

    def _tell_owner(self, waiter: Waiter, claim: Claim) -> None:
        """Of what was granted and not taken the release tells."""
        partition, command_id = self._wire.partition_of(claim), waiter.sent.command_id
        if not waiter.reply.done():
            self.beats.given_up(partition, command_id)
        elif waiter.is_taken and granted(waiter.reply.result()):
            self.beats.handed_over(partition, command_id)

    # --- What comes back -------------------------------------------------------------------------
    async def listen(self) -> None:
        """For ever. While replies cannot be heard, writes answer 202."""
        while True:
            try:
                heard = await self._wire.hear()
            except Exception as error:  # Whatever it was: a gateway that is deaf is of no use.
                self.is_hearing = False
                log.warning("replies_not_heard", reason=repr(error))
                await asyncio.sleep(DEAF_SECONDS)
                continue
            self.is_hearing = True
            for one in heard:
                try:
                    self._hear_one(one)
                except Exception:  # Whatever one reply holds, the next must be heard.
                    log.exception("reply_not_understood")

    def _hear_one(self, heard: Heard) -> None:
        if isinstance(heard, OwnerChanged):
            self._ask_again(heard.partition)
        else:
            self._hear(heard)

    def _hear(self, reply: Reply) -> None:
        self._seen.note(reply.position)
        waiters = self._waiters.get(reply.command_id)
        if waiters is None:
            if sent := self._abandoned.get(reply.command_id):
                self.give_back(sent, granted(reply))
            return
        reach("gateway.after_reply")
        first, *others = waiters
        first.hear(reply)
        for waiter in others:  # The same key, asked again while the first was in flight.
            waiter.hear(replace(reply, replayed=True))

    def _ask_again(self, partition: int) -> None:
        """Claims are parked in an owner's memory only; a new owner has to hear of them."""
        for waiters in self._waiters.values():
            waiter = waiters[0]
            if (
                isinstance(waiter.sent.command, Claim)
                and not waiter.reply.done()
                and waiter.place is not None
                and waiter.place.partition == partition
            ):
                self._start(self._send(waiter.sent, awaited=True))

    # --- Work that no request waits for ----------------------------------------------------------
    async def _send(self, sent: Sent, *, awaited: bool = False) -> None:
        for _ in range(RELEASE_TRIES_MAX):
            try:
                await self._wire.append(sent, awaited=awaited)
                reach("gateway.after_unawaited")
                return
            except Exception as error:  # Nobody else is told of it.
                log.warning(
                    "command_not_sent",
                    type=sent.command.TYPE,
                    command_id=sent.command_id,
                    reason=repr(error),
                )
                await asyncio.sleep(DEAF_SECONDS)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, seconds_max: float) -> None:
        """Let what no request waits for go out."""
        self._start(self.beats.drain())
        await asyncio.wait(self._tasks, timeout=seconds_max)
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def opened(wire: Wire, seen: Seen, *, in_flight_max: int) -> AsyncIterator[Gateway]:
    gateway = Gateway(wire, seen, in_flight_max=in_flight_max)
    listening = asyncio.create_task(gateway.listen())
    beating = asyncio.create_task(gateway.beats.run())
    try:
        yield gateway
    finally:
        beating.cancel()
        await gateway.drain(CLOSE_SECONDS_MAX)
        listening.cancel()
        await asyncio.wait((listening, beating))


def granted(reply: Reply) -> tuple[Raw, ...]:
    """The leases that a reply hands over: a lock's one, a claim's many."""
    if reply.outcome == "rejected" or reply.data is None:
        return ()
    answer = msgspec.json.decode(reply.data, type=_Answer)
    if answer.fence is not None:
        return (reply.data,)
    return answer.items


def now() -> float:
    return asyncio.get_running_loop().time()


def _trim(table: dict[CommandId, Place] | dict[CommandId, Sent], size_max: int) -> None:
    while len(table) > size_max:
        del table[next(iter(table))]
