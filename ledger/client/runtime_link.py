"""The thread that talks to the owners: all Kafka I/O of a runtime, on a loop of its own, so that no
handler can starve its beats.

A broker that is away is waited for: words are kept and said again, and leases that nobody could
extend are stopped in time, by the clock of this thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from math import inf
from threading import Event, Thread

import structlog

from ledger.client.beats import TIDY_PERIOD_SECONDS, with_others
from ledger.client.clock import monotonic, wall_clock
from ledger.client.command_ids import new_command_id, new_session
from ledger.client.held import Ending, Held, Order
from ledger.client.layout import partitions_of
from ledger.client.runtime_inbox import RuntimeInbox
from ledger.client.runtime_notices import Notices
from ledger.client.runtime_session import QueueSession
from ledger.client.slots import Slots
from ledger.client.waking import woken
from ledger.domain.commands import Beat, ProgressSaid, Report
from ledger.domain.ids import QueueName, RuntimeId
from ledger.log.command_codec import command_record
from ledger.log.connection import Connection
from ledger.log.crash_points import reach
from ledger.log.errors import LogError
from ledger.log.outbox import Outbox
from ledger.log.partitions import partition_of
from ledger.log.topics import Topics

log = structlog.get_logger(__name__)

BUSY_WORDS = 16
"""A report of so many words is followed by a pause, so that the next has many, too."""
BUSY_PAUSE_SECONDS = 0.005
WATCH_SECONDS = 1.0
"""The longest wait for anything."""
RETRY_SECONDS = (0.1, 0.3, 1.0, 3.0, 5.0)
"""Between attempts to reach the brokers."""
LATE_SECONDS = 1.0
"""After the time to leave: whatever is under way is broken off."""

Give = Callable[[list[Order]], None]


class RuntimeLink:
    """`start`, then `said` from any thread; `drain`, `leave` and `left` at the end.

    Orders for the handlers are given out in this thread. `failure` is what no retry can mend.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        *,
        runtime_id: RuntimeId,
        queues: Sequence[QueueName],
        types: Sequence[str],
        slots: int,
        period_seconds: float,
        partitions: int | None,
        give: Give,
        ended: Callable[[], None],
    ) -> None:
        self.failure: BaseException | None = None
        self.ready = Event()
        """Set once the owner of every queue has answered a beat that offers slots."""
        self._connection = connection
        self._topics = topics
        self._runtime_id = runtime_id
        self._partitions = partitions
        self._give = give
        self._ended = ended
        self._source = f"runtime/{runtime_id}"
        session, now = new_session(), monotonic()
        self._sessions = {
            queue: QueueSession(
                queue,
                runtime_id=runtime_id,
                session=session,
                types=tuple(types),
                period_seconds=period_seconds,
                now=now,
            )
            for queue in queues
        }
        self._types = tuple(types)
        self._slots = Slots(slots, self._sessions.values())
        self._inboxes = [
            RuntimeInbox(connection, topics, session) for session in self._sessions.values()
        ]
        self._notices = Notices(runtime_id)
        self._mail: deque[tuple[Held, Ending | ProgressSaid | None]] = deque()
        self._mail_rung = False
        self._draining = False
        self._leave_by: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakes: dict[QueueName, asyncio.Event] = {}
        self._waits_for: dict[QueueName, float] = dict.fromkeys(self._sessions, -inf)
        """When the speaker of a queue will look by itself; -inf while it does not wait."""
        self._watching = asyncio.Event()
        self._watches_at = -inf
        self._retry = asyncio.Event()
        self._is_connecting = True
        self._thread = Thread(target=self._run, name="ledger-runtime", daemon=True)

    # --- From other threads ----------------------------------------------------------------------
    def start(self) -> None:
        self._thread.start()

    def said(self, held: Held, word: Ending | ProgressSaid | None) -> None:
        """An ending word, None for nothing to say, or progress."""
        self._mail.append((held, word))
        if not self._mail_rung:
            self._mail_rung = True
            self._call(self._collect)

    def offer(self, types: Sequence[str]) -> None:
        """Take jobs of these types from now on."""
        self._types = tuple(types)
        self._call(self._offer)

    def drain(self) -> None:
        """Take no more jobs."""
        self._draining = True
        self._call(self._drain)

    def leave(self, seconds: float) -> None:
        """Give back what still runs, and end once all is acknowledged, or when the time is up."""
        self._leave_by = monotonic() + seconds
        self._call(self._leave)

    async def left(self, seconds: float) -> bool:
        """Whether the thread has ended in time."""
        await asyncio.to_thread(self._thread.join, seconds)
        return not self._thread.is_alive()

    def _call(self, what: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # It has ended meanwhile.
                loop.call_soon_threadsafe(what)

    # --- In the thread ---------------------------------------------------------------------------
    def _run(self) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        try:
            await self._main()
        except BaseException as error:
            log.error("runtime.failed", runtime=self._runtime_id, exc_info=True)
            self.failure = error
        finally:
            self._ended()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wakes = {queue: asyncio.Event() for queue in self._sessions}
        # What was asked before there was a loop to call.
        self._collect()
        self._offer()
        if self._draining:
            self._drain()
        if self._leave_by is not None:
            self._leave()
        async with asyncio.TaskGroup() as group:
            staying = group.create_task(self._stay_connected())
            watching = group.create_task(self._watch(staying))
            await asyncio.wait([staying])
            watching.cancel()

    async def _stay_connected(self) -> None:
        """Until the runtime has left, or has nothing to say to brokers that are away."""
        failures = 0
        while not self._is_over():
            began = monotonic()
            try:
                await self._connected()
                return
            except* LogError as group:
                if monotonic() - began > RETRY_SECONDS[-1]:
                    failures = 0
                pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                log.warning(
                    "runtime.disconnected",
                    runtime=self._runtime_id,
                    reason=str(_first(group)),
                    retry_seconds=pause,
                )
            failures += 1
            until = monotonic() + pause
            while (now := monotonic()) < until and not self._is_over():
                await woken(self._retry, min(until - now, WATCH_SECONDS))

    async def _watch(self, staying: asyncio.Task[None]) -> None:
        """Leases end by the clock, whether somebody can be reached or not, and whether a record is
        under way or not."""
        while True:
            now = monotonic()
            soonest = min(session.look_at() for session in self._sessions.values())
            self._watches_at = min(soonest, now + WATCH_SECONDS)
            await woken(self._watching, self._watches_at - now)
            now = monotonic()
            for session in self._sessions.values():
                if now >= session.look_at():
                    orders = session.tick(now)
                    if orders:
                        self._give(orders)
                    self._wake_due()
                self._notices.silence(session, now)
            if self._is_over() and (self._is_connecting or self._is_late(now)):
                staying.cancel()
                return

    async def _connected(self) -> None:
        connection = self._connection
        self._is_connecting = True
        async with AsyncExitStack() as stack:
            if self._partitions is None:
                self._partitions = await partitions_of(connection, self._topics)
            outbox = Outbox(connection)
            await outbox.start()
            stack.push_async_callback(outbox.close)
            log.info("runtime.connected", runtime=self._runtime_id)
            self._is_connecting = False
            async with asyncio.TaskGroup() as group:
                listeners = [group.create_task(one.listen(self._heard)) for one in self._inboxes]
                async with asyncio.TaskGroup() as speakers:
                    for queue in self._sessions:
                        speakers.create_task(self._speak(queue, outbox, self._partitions))
                for listener in listeners:
                    listener.cancel()

    # --- Speaking --------------------------------------------------------------------------------
    async def _speak(self, queue: QueueName, outbox: Outbox, partitions: int) -> None:
        """Until the runtime has left. One record under way at a time; what comes meanwhile shares
        the next."""
        session, wake = self._sessions[queue], self._wakes[queue]
        partition = partition_of(queue, partitions)
        not_before = 0.0
        while True:
            now = monotonic()
            if self._leave_by is not None and (session.settled or now >= self._leave_by):
                await self._send(outbox, partition, session, session.last_beat(now))
                return
            due = says_at = session.due_at()
            if session.is_idle and session.period >= TIDY_PERIOD_SECONDS:
                says_at = with_others(due, now, wall_clock(), session.period)
            pause = max(says_at, not_before) - now
            if pause > 0:
                self._waits_for[queue] = due if due > not_before else -inf
                await woken(wake, min(pause, WATCH_SECONDS))
                continue
            self._waits_for[queue] = -inf
            said = session.speak(now, self._slots.free_for(session, now))
            await self._send(outbox, partition, session, said)
            busy = isinstance(said, Report) and len(said.reports) >= BUSY_WORDS
            not_before = monotonic() + BUSY_PAUSE_SECONDS if busy else 0.0

    async def _send(
        self, outbox: Outbox, partition: int, session: QueueSession, said: Report | Beat
    ) -> None:
        beat = said.beat if isinstance(said, Report) else said
        assert beat is not None
        record = command_record(
            said,
            new_command_id(),
            source=self._source,
            sent_at=wall_clock(),
            actor=self._runtime_id,
        )
        try:
            await outbox.send_one(self._topics.commands, partition, record)
            reach("runtime.after_report" if isinstance(said, Report) else "runtime.after_beat")
        except BaseException:  # Also where this is cancelled because another queue failed.
            if session.session == beat.session:
                session.unsaid(beat.beat)
            raise
        session.appended(beat.beat)

    # --- Listening -------------------------------------------------------------------------------
    def _heard(self, session: QueueSession, orders: list[Order]) -> None:
        if orders:
            self._give(orders)
        self._notices.refusals(session)
        self._notices.rival(session)
        if not self.ready.is_set() and all(s.is_served for s in self._sessions.values()):
            self.ready.set()
        self._wake_due()

    # --- Between the two -------------------------------------------------------------------------
    def _collect(self) -> None:
        """What the handlers said since the last time."""
        self._mail_rung = False
        mail, now = self._mail, monotonic()
        while mail:
            held, word = mail.popleft()
            if isinstance(word, ProgressSaid):
                held.session.progress(held, word, now)
            else:
                held.session.finish(held, word)
        self._wake_due()

    def _wake_due(self) -> None:
        now = monotonic()
        for queue, session in self._sessions.items():
            if self._slots.has_more_for(session, now):
                session.hurry()
            if session.due_at() < self._waits_for[queue] or self._leave_by is not None:
                self._wakes[queue].set()
            if session.look_at() < self._watches_at:
                self._watching.set()

    def _offer(self) -> None:
        for session in self._sessions.values():
            session.offer(self._types)
        self._wake_due()

    def _drain(self) -> None:
        for session in self._sessions.values():
            session.drain()
        self._wake_all()

    def _leave(self) -> None:
        for session in self._sessions.values():
            session.drain()
            session.abandon()
        self._wake_all()

    def _wake_all(self) -> None:
        self._retry.set()
        self._watching.set()
        for wake in self._wakes.values():
            wake.set()

    def _is_over(self) -> bool:
        """There is nothing to say, or no more time to say it."""
        if self._leave_by is None:
            return False
        settled = all(session.settled for session in self._sessions.values())
        return settled or monotonic() >= self._leave_by

    def _is_late(self, now: float) -> bool:
        return self._leave_by is not None and now > self._leave_by + LATE_SECONDS


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
