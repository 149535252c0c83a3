"""Tells owners what became of claims here, so that none grants to a gateway that has died, and what
one granted as it died is not lost for the length of a lease."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count, zip_longest

import structlog

from api.idempotency import fresh_id
from api.wire import Sent, Wire
from ledger.domain.commands import CLAIMS_BEATEN_MAX, GATEWAY_BEAT_SECONDS, GatewayBeat
from ledger.domain.ids import CommandId
from ledger.log.crash_points import reach

PAUSE_SECONDS = 0.5
"""News of one partition gather so long into one record."""
PAUSES = round(GATEWAY_BEAT_SECONDS / PAUSE_SECONDS)
"""After so many, what still waits is told anew."""
NEWS_MAX = 10_000
"""Of one partition, while its log takes none: the latest so many."""
ACTOR = "api"

Waiting = Mapping[int, Sequence[CommandId]]
"""Claims whose callers wait, by partition."""

log = structlog.get_logger(__name__)


class Beats:
    """One a gateway. Nothing is sent while there is no claim and no news of one."""

    def __init__(self, wire: Wire, waiting: Callable[[], Waiting]) -> None:
        self._wire = wire
        self._waiting = waiting
        self._handed_over: dict[int, deque[CommandId]] = defaultdict(_news)
        self._given_up: dict[int, deque[CommandId]] = defaultdict(_news)
        self._sending: dict[int, asyncio.Task[None]] = {}

    def handed_over(self, partition: int, command_id: CommandId) -> None:
        self._handed_over[partition].append(command_id)

    def given_up(self, partition: int, command_id: CommandId) -> None:
        self._given_up[partition].append(command_id)

    async def run(self) -> None:
        """For ever."""
        for pause in count(1):
            await asyncio.sleep(PAUSE_SECONDS)
            self.send(self._waiting() if pause % PAUSES == 0 else {})

    def send(self, waiting: Waiting) -> None:
        """The news, and these. A partition that takes none holds up no other's."""
        for partition in {*waiting, *self._handed_over, *self._given_up} - self._sending.keys():
            sending = self._send(partition, waiting.get(partition, ()))
            self._sending[partition] = asyncio.create_task(sending)

    async def drain(self) -> None:
        """Let the news go out."""
        await asyncio.gather(*self._sending.values())
        self.send({})
        await asyncio.gather(*self._sending.values())

    async def _send(self, partition: int, waiting: Sequence[CommandId]) -> None:
        handed_over = self._handed_over.pop(partition, ())
        given_up = self._given_up.pop(partition, ())
        lists = map(_cut, (waiting, handed_over, given_up))
        try:
            for parts in zip_longest(*lists, fillvalue=()):
                beat = GatewayBeat(partition, *parts)
                await self._wire.append(Sent(beat, fresh_id(), ACTOR))
                reach("gateway.after_beat")
        except Exception as error:  # Nobody else is told of it.
            log.warning("claims_not_told", partition=partition, reason=repr(error))
            self._handed_over[partition].extend(handed_over)
            self._given_up[partition].extend(given_up)
        finally:
            del self._sending[partition]


def _news() -> deque[CommandId]:
    return deque(maxlen=NEWS_MAX)


def _cut(claims: Sequence[CommandId]) -> list[tuple[CommandId, ...]]:
    ids = tuple(claims)
    return [ids[n : n + CLAIMS_BEATEN_MAX] for n in range(0, len(ids), CLAIMS_BEATEN_MAX)]
