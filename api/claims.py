"""`claim` over HTTP: leases from one partition, or from several, at most as many as were asked for.

Over several partitions they are asked in turn for what is left of `limit`; if none has any, the
claim is parked at all of them, the first to grant wins, and any surplus is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import structlog
from msgspec import Raw, Struct
from msgspec.structs import replace

from api.gateway import Gateway, Undecided, Waiter, granted, now
from api.idempotency import part_id
from api.wire import Sent
from ledger.domain.commands import Claim
from ledger.domain.ids import CommandId, QueueName
from ledger.domain.partition import KEYED, identity_of
from ledger.domain.rejections import Rejection
from ledger.log.errors import LogError
from ledger.log.replies import Reply

GRACE_SECONDS = 1.0
"""Beyond a claim's own wait, for its owner's last word."""
REMEMBERED_MAX = 10_000
"""Keyed claims whose answers are kept."""

log = structlog.get_logger(__name__)


class Claimed(Struct, frozen=True, gc=False):
    """Leases, each as `lock` answers it; none: nothing came within the wait."""

    items: tuple[Raw, ...]
    position: str = ""
    replayed: bool = False


Outcome = Claimed | Undecided | Reply
"""A `Reply` is a refusal."""
Key = str
_Keyed = tuple[CommandId, asyncio.Task[Outcome | Exception]]


class Claims:
    """One a process. A keyed claim goes on when its caller leaves, and answers the repeat; what any
    other grants to a caller who has gone is given back."""

    def __init__(
        self,
        gateway: Gateway,
        partition_of: Callable[[QueueName], int],
    ) -> None:
        self._gateway = gateway
        self._partition_of = partition_of
        self._keyed: dict[Key, _Keyed] = {}

    async def claim(self, sent: Sent, decision_seconds: float) -> Outcome:
        """`decision_seconds`: for an owner's first word. Raises what `Gateway.decide` does."""
        if not sent.command_id.startswith(KEYED):
            return await self._claimed(sent, decision_seconds)
        key, _ = identity_of(sent.command_id)
        known = self._keyed.get(key)
        if known is None:
            known = (
                sent.command_id,
                asyncio.create_task(self._quietly(sent, decision_seconds, key)),
            )
            self._keyed[key] = known
            while len(self._keyed) > REMEMBERED_MAX:
                del self._keyed[next(iter(self._keyed))]
            return _or_raise(await asyncio.shield(known[1]))
        command_id, task = known
        if command_id != sent.command_id:
            return _key_reused(sent)
        outcome = _or_raise(await asyncio.shield(task))
        return replace(outcome, replayed=True) if isinstance(outcome, Claimed) else outcome

    async def close(self) -> None:
        tasks = [task for _, task in self._keyed.values() if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _quietly(self, sent: Sent, decision_seconds: float, key: Key) -> Outcome | Exception:
        """Only an answer is kept; after anything else the repeat asks anew."""
        try:
            outcome: Outcome | Exception = await self._claimed(sent, decision_seconds)
        except Exception as error:
            outcome = error
        if not isinstance(outcome, Claimed):
            self._keyed.pop(key, None)
        return outcome

    async def _claimed(self, sent: Sent, decision_seconds: float) -> Outcome:
        claim = _claim_of(sent)
        parts: dict[int, list[QueueName]] = {}
        for queue in dict.fromkeys(claim.queues):
            parts.setdefault(self._partition_of(queue), []).append(queue)
        if len(parts) == 1:
            with self._gateway.waiting(sent, gives_back=True) as waiter:
                outcome = await self._of_one(waiter, decision_seconds)
                waiter.is_taken = waiter.reply.done()
                return outcome
        until = now() + claim.wait_seconds
        outcome = await self._in_turn(sent, parts, decision_seconds)
        nothing = isinstance(outcome, Claimed) and not outcome.items
        if nothing and claim.wait_seconds > 0:
            return await self._parked(sent, parts, until)
        return outcome

    async def _of_one(self, waiter: Waiter, decision_seconds: float) -> Outcome:
        gateway, wait_seconds = self._gateway, _claim_of(waiter.sent).wait_seconds
        parked_seconds = wait_seconds + GRACE_SECONDS if wait_seconds else 0.0
        deadline = now() + max(decision_seconds, parked_seconds)
        await gateway.append(waiter)
        reply = await waiter.decided(deadline)
        if reply is None and waiter.is_parked:
            return self._unsaid(waiter, Claimed(()))
        if reply is None:
            return gateway.undecided(waiter)
        if reply.outcome == "rejected":
            return reply
        return Claimed(granted(reply), reply.position, reply.replayed)

    def _unsaid(self, parked: Waiter, nothing: Claimed) -> Outcome:
        """Of a wait that is over without its owner's last word. Nothing came to this caller; under
        a key only the owner can say so, for all who repeat it."""
        is_keyed = parked.sent.command_id.startswith(KEYED)
        return self._gateway.undecided(parked) if is_keyed else nothing

    async def _in_turn(
        self, sent: Sent, parts: Mapping[int, list[QueueName]], decision_seconds: float
    ) -> Outcome:
        claim = _claim_of(sent)
        items: list[Raw] = []
        answers: list[Outcome] = []
        with ExitStack() as stack:  # What was granted until something goes wrong is given back.
            waiters: list[Waiter] = []
            for partition, queues in parts.items():
                left = claim.limit - len(items)
                if left == 0:
                    break
                ask = replace(claim, queues=tuple(queues), limit=left, wait_seconds=0.0)
                part = _part(sent, ask, f"ask.{partition}")
                waiters.append(stack.enter_context(self._gateway.waiting(part, gives_back=True)))
                answer = await self._of_one(waiters[-1], decision_seconds)
                answers.append(answer)
                if isinstance(answer, Claimed):
                    items += answer.items
                elif is_reused(answer):
                    return answer
            for waiter in waiters:
                waiter.is_taken = waiter.reply.done()
        claimed = [answer for answer in answers if isinstance(answer, Claimed)]
        if not claimed:  # Nobody could say: the first one's refusal, or that it is undecided.
            return next((a for a in answers if isinstance(a, Undecided)), answers[0])
        positions = ",".join(answer.position for answer in claimed if answer.position)
        return Claimed(tuple(items), positions, any(answer.replayed for answer in claimed))

    async def _parked(
        self, sent: Sent, parts: Mapping[int, list[QueueName]], until: float
    ) -> Outcome:
        gateway, claim = self._gateway, _claim_of(sent)
        with ExitStack() as stack:
            waiters: list[Waiter] = []
            for partition, queues in parts.items():
                ask = replace(claim, queues=tuple(queues), wait_seconds=max(0.0, until - now()))
                part = _part(sent, ask, f"park.{partition}")
                waiter = stack.enter_context(gateway.waiting(part, gives_back=True))
                try:
                    await gateway.append(waiter)
                    waiters.append(waiter)
                except LogError as error:
                    log.warning("claim_not_parked", partition=partition, reason=str(error))
            claimed = await _first_granted(waiters, claim.limit, until + GRACE_SECONDS)
            unsaid = [waiter for waiter in waiters if not waiter.reply.done()]
            return claimed if claimed.items or not unsaid else self._unsaid(unsaid[0], claimed)


async def _first_granted(waiters: list[Waiter], limit: int, deadline: float) -> Claimed:
    """What the first of them grants, with what others granted by then, as far as it fits."""
    pending = {waiter.reply for waiter in waiters}
    items: list[Raw] = []
    positions: list[str] = []
    replayed = False
    while pending and not items:
        done, pending = await asyncio.wait(
            pending, timeout=max(0.0, deadline - now()), return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            break
        for waiter in waiters:
            if waiter.reply not in done:
                continue
            reply = waiter.reply.result()
            positions.append(reply.position)
            got = granted(reply)
            if len(items) + len(got) <= limit:
                waiter.is_taken = True
                items += got
                replayed = replayed or reply.replayed
    return Claimed(tuple(items), ",".join(positions), replayed)


def is_reused(outcome: Outcome) -> bool:
    return isinstance(outcome, Reply) and outcome.code == Rejection.IDEMPOTENCY_KEY_REUSED


def _key_reused(sent: Sent) -> Reply:
    return Reply(
        command_id=sent.command_id,
        outcome="rejected",
        position="",
        code=Rejection.IDEMPOTENCY_KEY_REUSED,
        detail="the same key came with another body",
    )


def _claim_of(sent: Sent) -> Claim:
    assert isinstance(sent.command, Claim)
    return sent.command


def _part(sent: Sent, claim: Claim, part: str) -> Sent:
    return replace(sent, command=claim, command_id=part_id(sent.command_id, part))


def _or_raise(outcome: Outcome | Exception) -> Outcome:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
