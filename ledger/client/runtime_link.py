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
from msgspec import Struct

from ledger.client.clock import monotonic, wall_clock
from ledger.client.command_ids import new_command_id, new_session
from ledger.client.held import Ending, Held, Order
from ledger.client.layout import partitions_of
from ledger.client.runtime_session import QueueSession
from ledger.domain.commands import Beat, ProgressSaid, Report
from ledger.domain.ids import QueueName, RuntimeId
from ledger.log.admin import Admin
from ledger.log.command_codec import command_record
from ledger.log.connection import Connection
from ledger.log.crash_points import reach
from ledger.log.errors import LogError, LogUnavailable, OffsetOutOfRange
from ledger.log.inbox import inbox_from
from ledger.log.intake import Intake
from ledger.log.offsets import Offsets
from ledger.log.outbox import Outbox
from ledger.log.partitions import INBOX_PARTITIONS, partition_of
from ledger.log.topics import Topics

log = structlog.get_logger(__name__)

BUSY_WORDS = 16
"""A report of so many words is followed by a pause, so that the next has many, too."""
BUSY_PAUSE_SECONDS = 0.005
INBOX_LOOK_SECONDS = 0.1
"""Between one look and the next whether the owner has made the inbox."""
INBOX_RECORDS_MAX = 1_000
WATCH_SECONDS = 1.0
"""The longest wait for anything."""
RETRY_SECONDS = (0.1, 0.3, 1.0, 3.0, 5.0)
"""Between attempts to reach the brokers."""
SILENCE_SECONDS = 15.0
"""A queue whose owner says nothing for so long is worth a line in the log."""

LATE_SECONDS = 1.0
"""After the time to leave: whatever is under way is broken off."""

Give = Callable[[list[Order]], None]


class Silence(Struct):
    """Beats of a queue are not answered."""

    since: float
    told: bool = False


class RuntimeLink:
    """`start`, then `said` from any thread; `drain`, `leave` and `join` at the end.

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
        self._slots = slots
        self._partitions = partitions
        self._give = give
        self._ended = ended
        self._source = f"runtime/{runtime_id}"
        self._inbox = partition_of(runtime_id, INBOX_PARTITIONS)
        self._inbox_key = runtime_id.encode()
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
        self._order = list(self._sessions)
        self._positions: dict[QueueName, int] = {}
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
        self._rival_told = False
        self._silences: dict[QueueName, Silence] = {}
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

    def drain(self) -> None:
        """Take no more jobs."""
        self._draining = True
        self._call(self._drain)

    def leave(self, seconds: float) -> None:
        """Give back what still runs, and end once all is acknowledged, or when the time is up."""
        self._leave_by = monotonic() + seconds
        self._call(self._leave)

    def join(self, seconds: float) -> bool:
        """Whether the thread has ended in time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _call(self, what: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # It has ended meanwhile.
                loop.call_soon_threadsafe(what)

    # --- In the thread ---------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            asyncio.run(self._main())
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
                await _woken(self._retry, min(until - now, WATCH_SECONDS))

    async def _watch(self, staying: asyncio.Task[None]) -> None:
        """Leases end by the clock, whether somebody can be reached or not, and whether a record is
        under way or not."""
        while True:
            now = monotonic()
            soonest = min(session.look_at() for session in self._sessions.values())
            self._watches_at = min(soonest, now + WATCH_SECONDS)
            await _woken(self._watching, self._watches_at - now)
            now = monotonic()
            for session in self._sessions.values():
                if now >= session.look_at():
                    orders = session.tick(now)
                    if orders:
                        self._give(orders)
                    self._wake_due()
                self._note_silence(session, now)
            if self._is_over() and (self._is_connecting or self._is_late(now)):
                staying.cancel()
                return

    def _note_silence(self, session: QueueSession, now: float) -> None:
        silence = self._silences.get(session.queue)
        if session.answered >= session.beat:
            if silence is not None:
                del self._silences[session.queue]
                if silence.told:
                    log.info("runtime.answered", runtime=self._runtime_id, queue=session.queue)
        elif silence is None:
            self._silences[session.queue] = Silence(now)
        elif not silence.told and now > silence.since + SILENCE_SECONDS:
            silence.told = True
            log.warning("runtime.unanswered", runtime=self._runtime_id, queue=session.queue)

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
                listeners = [group.create_task(self._listen(queue)) for queue in self._sessions]
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
            due = session.due_at()
            pause = max(due, not_before) - now
            if pause > 0:
                self._waits_for[queue] = due if due > not_before else -inf
                await _woken(wake, min(pause, WATCH_SECONDS))
                continue
            self._waits_for[queue] = -inf
            said = session.speak(now, self._free_for(session))
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
            if isinstance(said, Report):
                reach("runtime.after_report")
        except BaseException:  # Also where this is cancelled because another queue failed.
            if session.session == beat.session:
                session.unsaid(beat.beat)
            raise
        session.appended(beat.beat)

    def _free_for(self, session: QueueSession) -> int:
        """Slots are shared by the queues: an even part each, what is over goes round in turn. What
        was offered to one is free for another once its owner has answered that it is not any
        more."""
        sessions = self._sessions
        free = self._slots - sum(other.occupied for other in sessions.values())
        if len(sessions) == 1 or free <= 0:
            return free
        even, over = divmod(free, len(sessions))
        turn = int(monotonic() / session.period)
        place = (self._order.index(session.queue) + turn) % len(sessions)
        offered = sum(other.outstanding for other in sessions.values() if other is not session)
        return min(even + (place < over), free - offered)

    # --- Listening -------------------------------------------------------------------------------
    async def _listen(self, queue: QueueName) -> None:
        topic = self._topics.assigned(queue)
        session, wake = self._sessions[queue], self._wakes[queue]
        async with AsyncExitStack() as stack:
            await self._wait_for_inbox(topic)
            offsets = await stack.enter_async_context(Offsets(self._connection))
            intake = Intake(self._connection, topic, isolation="read_uncommitted")
            await intake.start()
            stack.push_async_callback(intake.close)
            if queue not in self._positions:
                self._positions[queue] = await offsets.end(topic, self._inbox)
            intake.follow(self._inbox, self._positions[queue])
            session.open_inbox()
            wake.set()
            arrived = intake.arrived(self._inbox)
            while True:
                await _woken(arrived, WATCH_SECONDS)
                if intake.failure is not None:
                    raise LogUnavailable(f"{topic} cannot be read: {intake.failure!r}")
                try:
                    self._read(session, intake)
                except OffsetOutOfRange as error:
                    # What was assigned there meanwhile is sent again, by its number.
                    log.warning("runtime.inbox_lost", queue=queue, reason=str(error))
                    self._positions[queue] = await offsets.end(topic, self._inbox)
                    intake.follow(self._inbox, self._positions[queue])
                self._wake_due()

    async def _wait_for_inbox(self, topic: str) -> None:
        """The owner makes it when it first hears a runtime of the queue."""
        async with Admin(self._connection) as admin:
            while True:
                if topic in await admin.find([topic]):
                    return
                await asyncio.sleep(INBOX_LOOK_SECONDS)

    def _read(self, session: QueueSession, intake: Intake) -> None:
        """Hot: one plain loop over what has arrived."""
        key = self._inbox_key
        orders: list[Order] = []
        while records := intake.take(self._inbox, INBOX_RECORDS_MAX):
            now = monotonic()
            for record in records:
                if record.key is not None and record.key != key:
                    continue
                content = inbox_from(record)
                if content is not None:
                    orders += session.take(content, now)
        self._positions[session.queue] = intake.position(self._inbox)
        if orders:
            self._give(orders)
        if session.refusals:
            self._tell_refusals(session)
        if session.rival is not None and not self._rival_told:
            self._rival_told = True
            log.error("runtime.id_in_use", runtime=self._runtime_id, session=session.rival)
        if not self.ready.is_set() and all(s.is_served for s in self._sessions.values()):
            self.ready.set()

    def _tell_refusals(self, session: QueueSession) -> None:
        refusals, session.refusals = session.refusals, []
        first = refusals[0]
        log.warning(
            "runtime.words_refused",
            runtime=self._runtime_id,
            queue=session.queue,
            count=len(refusals),
            job=first.job_id,
            fence=first.fence,
            code=first.code,
            detail=first.detail,
        )

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
        for queue, session in self._sessions.items():
            self._offer_more(session)
            if session.due_at() < self._waits_for[queue] or self._leave_by is not None:
                self._wakes[queue].set()
            if session.look_at() < self._watches_at:
                self._watching.set()

    def _offer_more(self, session: QueueSession) -> None:
        """A slot that another queue gave up."""
        if len(self._sessions) == 1 or session.draining or not session.is_served:
            return
        if self._free_for(session) > session.offered:
            session.hurry()

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


async def _woken(wake: asyncio.Event, seconds: float) -> None:
    """Returns when `wake` is set, which clears it, or when the time is up."""
    if not wake.is_set() and seconds > 0:
        timer = asyncio.get_running_loop().call_later(seconds, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()
    wake.clear()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
