"""An owner whose turns a test makes one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ledger.domain.commands import Asked, Command, RequestJob
from ledger.domain.entries import Entry
from ledger.domain.events import JobRequested
from ledger.domain.ids import SECOND, CommandId, JobId, Micros, QueueName
from ledger.domain.partition import Partition
from processors.owner.credit import Offers
from processors.owner.turn import Turn

QUEUE = QueueName("default")
NOON = Micros(1_800_000_000 * SECOND)


class Owner:
    """A partition with an owner's memory, turned by hand."""

    def __init__(self) -> None:
        self.partition = Partition(0)
        self.offers = Offers()
        self.at = NOON
        self.ahead = 0
        """Of the brokers' clock."""
        self.suppressed: Counter[tuple[str, ...]] = Counter()
        self.bulk_todo: dict[str, list[JobId]] = {}
        self.fits: Callable[[Entry], bool] = lambda _: True
        self._sent = 0

    def turn(self) -> Turn:
        return Turn(
            self.partition,
            self.offers,
            self.at,
            ahead=self.ahead,
            fits=self.fits,
            suppressed=self.suppressed,
            bulk_todo=self.bulk_todo,
        )

    def asked(self, command: Command, *, reply_to: str = "", command_id: str = "") -> Asked:
        self._sent += 1
        return Asked(
            command=command,
            command_id=CommandId(command_id or f"c{self._sent}"),
            reply_to=reply_to,
            appended_at=Micros(self.at - self.ahead),
            offset=self._sent - 1,
        )

    def does(self, *commands: Command, reply_to: str = "", command_id: str = "") -> Turn:
        turn = self.turn()
        for command in commands:
            asked = self.asked(command, reply_to=reply_to, command_id=command_id)
            if isinstance(command, RequestJob):
                turn.read_request(asked)
            else:
                turn.read_command(asked)
        turn.assign()
        turn.finish()
        return turn

    def submit(self, many: int = 1, **fields: object) -> list[JobId]:
        turn = self.does(*(RequestJob(type="sum", **fields) for _ in range(many)))  # type: ignore[arg-type]
        return [e.job_id for e in events_of(turn) if isinstance(e, JobRequested)]


def events_of(turn: Turn) -> list[object]:
    return [event for entry in turn.entries for event in entry.events]
