"""An owner of one queue by script: it assigns and answers what a test says, by the rules of the
wire. For the session of a runtime without a broker, on a clock that the test turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Raw

from ledger.client.command_ids import new_session
from ledger.client.held import Begin, Held, Order
from ledger.client.runtime_session import QueueSession
from ledger.domain.brief import Brief
from ledger.domain.commands import Beat, Report, Reported, ReportedResult
from ledger.domain.ids import Fence, JobId, QueueName, RuntimeId, Session, StepName
from ledger.log.inbox import (
    Assigned,
    AssignedItem,
    BeatAnswered,
    CancelAsked,
    LeaseDropped,
    LeaseLeft,
    ReportRefused,
)

QUEUE = QueueName("q")
RUNTIME = RuntimeId("r1")
LEASE_SECONDS = 60.0
PERIOD_SECONDS = 5.0
INSTANT = "2026-01-01T12:00:00.000Z"
UUID = "01890000-0000-7000-8000-{:012x}"


def job_id(number: int) -> JobId:
    return JobId(f"{QUEUE}.{UUID.format(number)}")


@dataclass
class World:
    """A session and its scripted owner. `now` moves only by `later`."""

    now: float = 1000.0
    lease_seconds: float = LEASE_SECONDS
    slots: int = 10
    inputs: dict[str, Raw] = field(default_factory=dict)
    """Of every job."""
    numbers: int = 0
    said: list[Report | Beat] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    opens: bool = True
    enters: bool = True
    """Handlers begin as soon as they are told to."""

    def __post_init__(self) -> None:
        self.session = QueueSession(
            QUEUE,
            runtime_id=RUNTIME,
            session=new_session(),
            types=("echo",),
            period_seconds=PERIOD_SECONDS,
            now=self.now,
        )
        if self.opens:
            self.session.open_inbox()
            self.speak()
            self.answer()

    # --- The runtime ------------------------------------------------------------------------------
    @property
    def is_due(self) -> bool:
        return self.session.due_at() <= self.now

    def later(self, seconds: float) -> None:
        """Time passes, and the runtime looks at the clock."""
        self.now += seconds
        self.orders += self.session.tick(self.now)

    def speak(self, *, lost: bool = False) -> Report | Beat:
        said = self.session.speak(self.now, self.slots - self.session.occupied)
        self.said.append(said)
        number = beat_of(said).beat
        if lost:
            self.session.unsaid(number)
        else:
            self.session.appended(number)
        return said

    def finish(self, held: Held) -> None:
        self.session.finish(held, result(held))

    # --- The owner --------------------------------------------------------------------------------
    def assign(
        self,
        *numbers: int,
        beat: int | None = None,
        session: Session | None = None,
        type: str = "echo",
        void: bool = False,
        lease_left: float | None = None,
    ) -> list[Held]:
        """What handlers are told to begin."""
        items = tuple(
            AssignedItem(
                number=number,
                job_id=job_id(number),
                step=StepName("main"),
                attempt=1,
                fence=Fence(1),
                lease_since=INSTANT,
                lease_expires_at=INSTANT,
                lease_seconds=self.lease_seconds if lease_left is None else lease_left,
                beat=self.session.beat if beat is None else beat,
                job=None if void else self._brief(type),
                void=void,
            )
            for number in numbers
        )
        record = Assigned(session or self.session.session, QUEUE, items)
        return self._taken(self.session.take(record, self.now))

    def _brief(self, type: str) -> Brief:
        payload = Raw(b'{"n":1}')
        return Brief(type, payload, 120.0, self.lease_seconds, INSTANT, inputs=self.inputs)

    def answer(
        self,
        beat: int | None = None,
        *,
        left: dict[int, float] | None = None,
        drop: tuple[int, ...] = (),
        cancel: dict[int, float] | None = None,
        refused: dict[int, str] | None = None,
        session: Session | None = None,
    ) -> list[Held]:
        """By job number: seconds left, jobs to drop, seconds of grace, codes of refusal."""
        one = Fence(1)
        record = BeatAnswered(
            session=session or self.session.session,
            queue=QUEUE,
            beat=self.session.beat if beat is None else beat,
            leases=tuple(LeaseLeft(job_id(n), one, s, "") for n, s in (left or {}).items()),
            drop=tuple(LeaseDropped(job_id(n), one) for n in drop),
            cancel=tuple(CancelAsked(job_id(n), one, s, "why") for n, s in (cancel or {}).items()),
            refused=tuple(ReportRefused(job_id(n), one, c) for n, c in (refused or {}).items()),
        )
        return self._taken(self.session.take(record, self.now))

    def _taken(self, orders: list[Order]) -> list[Held]:
        self.orders += orders
        begun = [order.held for order in orders if isinstance(order, Begin)]
        for held in begun:
            held.entered = self.enters
        return begun


def beat_of(said: Report | Beat) -> Beat:
    beat = said.beat if isinstance(said, Report) else said
    assert beat is not None
    return beat


def words_of(said: Report | Beat) -> tuple[Reported, ...]:
    return said.reports if isinstance(said, Report) else ()


def leases_of(said: Report | Beat) -> list[int]:
    """Numbers of the jobs whose leases a beat lists."""
    return [int(held.job_id[-12:], 16) for held in beat_of(said).leases]


def result(held: Held, output: bytes = b"null") -> ReportedResult:
    return ReportedResult(held.job_id, held.fence, Raw(output), None, "0" * 64)
