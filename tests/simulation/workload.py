"""Who asks for what: producers and operators over Kafka, callers over the gateway, and handlers
that do what a job's payload tells them. All remember what they were told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from api.claims import Claimed, Claims
from api.gateway import Decision, Gateway, Overloaded
from api.idempotency import fresh_id, keyed_id
from api.wire import Sent
from ledger.client.errors import NotAcknowledged, Refused, Undecided
from ledger.client.job_context import AwaitCompletion, Context, GiveBack, JobCancelled, JobFailure
from ledger.client.operators import Operator
from ledger.client.producer import Accepted
from ledger.domain.commands import (
    Claim,
    Command,
    FailAttempt,
    Heartbeat,
    RequestJob,
    StartAttempt,
    SubmitResult,
)
from ledger.domain.ids import CommandId, Fence, JobId, QueueName, RuntimeId
from ledger.log.errors import LogError
from tests.simulation.coverage import ACCEPTED, RESUMED, STALE, UNSURE
from tests.simulation.plan import FLOW_TYPE, HTTP_TYPE, LOAD_SECONDS, payload

if TYPE_CHECKING:
    from tests.simulation.world import World

GRACE = {"grace_seconds": 1.0}
RETRY = {"max_attempts": 4, "backoff_seconds": [0.2, 1.0], "jitter": 0.5}


def handler(world: World, name: str) -> Callable[[Context], Awaitable[object]]:
    async def work(ctx: Context) -> object:
        world.evidence.ran(ctx.job_id, ctx.fence, name)
        told = ctx.payload
        does = told.get("do", "succeed")
        seconds = told.get("seconds", 0.0)
        try:
            for percent in (10, 50, 90):
                await asyncio.sleep(seconds / 3)
                if does == "progress":
                    ctx.progress(percent, "simulated")
        except asyncio.CancelledError:
            world.states[RESUMED] += ctx.cancelled.is_lost
            raise
        if ctx.cancelled:
            raise JobCancelled
        match does:
            case "fail once" if ctx.attempt == 1:
                raise JobFailure("PASSING", retryable=True)
            case "fail":
                raise JobFailure("PASSING", retryable=True)
            case "fatal":
                raise JobFailure("BROKEN", retryable=False)
            case "give back" if Random(f"{ctx.job_id}/{ctx.fence}").random() < 0.7:
                raise GiveBack("simulated")
            case "wait":
                raise AwaitCompletion(1.5)
            case _:
                return {"by": name, "fence": ctx.fence}

    return work


TIDY_AGAIN_SECONDS = 10.0


class Requests:
    """One producer's list of things to ask. It goes on over restarts of its process."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._chance = Random(f"{world.seed}/{name}/requests")
        self._left = world.plan.actions
        self._jobs: list[JobId] = []
        self._pauses: set[str] = set()
        self._sent: list[tuple[str, dict[str, Any]]] = []
        self._prepared = False
        self.done = False

    async def run(self, producer: Operator, stop: asyncio.Event) -> None:
        plan, chance, loop = self._world.plan, self._chance, self._world.loop
        if not self._prepared:
            await self._prepare(producer)
            self._prepared = True
        while self._left and loop.now < LOAD_SECONDS and not stop.is_set():
            self._left -= 1
            await asyncio.sleep(chance.random() * 2 * LOAD_SECONDS / (plan.actions + 2))
            await self._act(producer)
        if loop.now < LOAD_SECONDS and stop.is_set():
            return
        await asyncio.sleep(max(0.0, LOAD_SECONDS - loop.now))
        await self._tidy(producer)
        self.done = True
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(TIDY_AGAIN_SECONDS):
                    await stop.wait()
            # What was said long before may have landed after that.
            await self._tidy(producer)

    async def _prepare(self, producer: Operator) -> None:
        plan = self._world.plan
        for queue in plan.queues:
            limits = [{"key": ["/scope"], "max": 2}]
            for job_type, template in (
                ("plain", {"repeatable": True}),
                ("limited", {"limits": limits}),
                (HTTP_TYPE, {}),
                (FLOW_TYPE, {"steps": _STEPS, "success_when": "all_steps_succeeded"}),
            ):
                content = {
                    "lease_seconds": plan.lease_seconds,
                    "timeout_seconds": 8.0,
                    "retry": RETRY,
                    "cancel": GRACE,
                    **template,
                }
                await self._surely(producer.put_template, queue, job_type, content)
            if plan.has_schedule:
                schedule = {
                    "cron": "* * * * *",
                    "type": "plain",
                    "catch_up": self._chance.choice(("none", "last", "all")),
                }
                await self._surely(producer.put_schedule, queue, "minutely", schedule)

    async def _tidy(self, producer: Operator) -> None:
        """Nothing is to wait for an operator, or to come for ever."""
        for queue in self._world.plan.queues:
            if self._world.plan.has_schedule:
                await self._surely(producer.disable_schedule, queue, "minutely")
            await self._surely(producer.resume_queue, queue)

    async def _surely(self, ask: Callable[..., Awaitable[Any]], *args: Any) -> None:
        while True:
            outcome = await self._ask(ask, *args)
            if outcome in ("accepted", "refused"):
                return
            await asyncio.sleep(0.5)

    async def _act(self, producer: Operator) -> None:
        chance = self._chance
        queue = chance.choice(self._world.plan.queues)
        roll = chance.random()
        if roll < 0.62 or not self._jobs:
            await self._submit(producer, queue)
        elif roll < 0.74:
            await self._ask(producer.cancel, chance.choice(self._jobs), "simulated")
        elif roll < 0.80:
            await self._ask(producer.rerun, chance.choice(self._jobs))
        elif roll < 0.84:
            await self._ask(producer.collect, chance.choice(self._jobs))
        elif roll < 0.91 and self._sent:
            queue, fields = chance.choice(self._sent)
            await self._ask(producer.submit, fields["type"], **_but(fields, "type"))
        elif roll < 0.95:
            asking = producer.resume_queue if queue in self._pauses else producer.pause_queue
            self._pauses ^= {queue}
            await self._ask(asking, queue)
        elif roll < 0.97:
            await self._ask(producer.put_queue, queue)
        else:
            await self._ask(producer.cancel_where)

    async def _submit(self, producer: Operator, queue: str) -> None:
        chance = self._chance
        types = ["plain"] * 4 + ["limited", FLOW_TYPE]
        if self._world.plan.callers:
            types += [HTTP_TYPE] * 3
        fields: dict[str, Any] = {
            "type": chance.choice(types),
            "queue": queue,
            "payload": payload(chance),
            "command_id": f"job-{len(self._sent)}-{chance.randrange(1 << 40)}",
        }
        if chance.random() < 0.4:
            fields["priority"] = chance.randrange(10)
        if chance.random() < 0.2:
            fields["delay_seconds"] = round(chance.random() * 5, 3)
        if chance.random() < 0.25:
            fields["idempotency_key"] = f"key-{chance.randrange(4)}"
            fields["payload"] = {"do": "succeed", "seconds": 0.2}
            fields["type"] = "plain"
        if fields["type"] == "limited":
            fields["scope"] = f"scope-{chance.randrange(2)}"
        if chance.random() < 0.1:
            fields["start_timeout_seconds"] = 6.0
        self._sent.append((queue, fields))
        if chance.random() < 0.25:
            await self._ask(producer.submit, fields["type"], **_but(fields, "type"), wait=False)
        else:
            await self._ask(producer.submit, fields["type"], **_but(fields, "type"))

    async def _ask(self, ask: Callable[..., Awaitable[Any]], *args: Any, **words: Any) -> str:
        evidence = self._world.evidence
        try:
            answer = await ask(*args, **words)
        except Refused as refused:
            if refused.command_id is not None:
                evidence.refused(refused.command_id, refused.code)
            return "refused"
        except Undecided as undecided:
            evidence.undecided(undecided.command_id)
            return "undecided"
        except (NotAcknowledged, LogError):
            return "unknown"
        if isinstance(answer, Accepted):
            evidence.accepted(answer.command_id, answer.position, answer.job_id)
            if answer.job_id and answer.job_id not in self._jobs:
                self._jobs.append(answer.job_id)
        return "accepted"


_STEPS = [
    {"name": "first", "worker_type": "draft"},
    {"name": "second", "worker_type": "review", "needs": ["first"], "retry": {"max_attempts": 2}},
]


def _but(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


class _Lease(Struct, frozen=True):
    job_id: JobId
    fence: Fence


class Calls:
    """Callers of the gateway, as routes call it: they claim, start, beat, and report."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._count = 0

    async def run(self, gateway: Gateway, claims: Claims, stop: asyncio.Event) -> None:
        self._count += 1
        over = asyncio.create_task(stop.wait())
        async with asyncio.TaskGroup() as group:
            callers = [
                group.create_task(self._caller(gateway, claims, number))
                for number in range(self._world.plan.callers)
            ]
            await over
            for caller in callers:
                caller.cancel()

    async def _caller(self, gateway: Gateway, claims: Claims, number: int) -> None:
        chance = Random(f"{self._world.seed}/caller/{number}/{self._count}")
        runtime_id = RuntimeId(f"caller-{number}")
        while True:
            if chance.random() < 0.15 and self._world.loop.now < LOAD_SECONDS:
                await self._post(gateway, chance)
            for lease in await self._claim(gateway, claims, chance, runtime_id):
                await self._work(gateway, chance, lease)
            await asyncio.sleep(0.1 + chance.random())

    async def _post(self, gateway: Gateway, chance: Random) -> None:
        """As `POST /v1/jobs` with an Idempotency-Key, sometimes sent again."""
        queue = chance.choice(self._world.plan.queues)
        body = payload(chance)
        command = RequestJob("plain", QueueName(queue), Raw(msgspec.json.encode(body)))
        command_id = keyed_id("default", "POST /v1/jobs", f"k{chance.randrange(8)}", body)
        await self._say(gateway, command, command_id, "")
        if chance.random() < 0.3:
            await self._say(gateway, command, command_id, "")

    async def _claim(
        self, gateway: Gateway, claims: Claims, chance: Random, runtime_id: RuntimeId
    ) -> list[_Lease]:
        queues = tuple(QueueName(queue) for queue in self._world.plan.queues)
        if self._world.partitions > 1:
            queues = (chance.choice(queues),)
        claim = Claim(runtime_id, queues, (HTTP_TYPE,), 2, chance.choice((0.0, 2.0, 5.0)))
        patience = 20.0 if chance.random() < 0.9 else chance.random() * 2
        try:
            async with asyncio.timeout(patience):  # Some callers hang up.
                outcome = await claims.claim(Sent(claim, fresh_id(), runtime_id), 2.0)
        except (LogError, Overloaded, TimeoutError):
            return []
        if not isinstance(outcome, Claimed):
            return []
        return [msgspec.json.decode(item, type=_Lease) for item in outcome.items]

    async def _work(self, gateway: Gateway, chance: Random, lease: _Lease) -> None:
        actor = "caller"
        job_id, fence = lease.job_id, lease.fence
        self._world.evidence.ran(job_id, fence, actor)
        await self._say(gateway, StartAttempt(job_id, fence), fresh_id(), actor)
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(chance.random())
            await self._say(gateway, Heartbeat(job_id, fence), fresh_id(), actor)
        if chance.random() < 0.1:
            await asyncio.sleep(6.0)  # Its lease lapses; the report comes late.
        last: Command = SubmitResult(job_id, fence, Raw(b'{"by":"caller","fence":%d}' % fence))
        if chance.random() < 0.2:
            last = FailAttempt(job_id, fence, "PASSING", retryable=True)
        command_id = fresh_id()
        for _ in range(1 + (chance.random() < 0.3)):
            await self._say(gateway, last, command_id, actor)

    async def _say(
        self, gateway: Gateway, command: Command, command_id: CommandId, actor: str
    ) -> None:
        evidence, states = self._world.evidence, self._world.states
        try:
            outcome = await gateway.decide(Sent(command, command_id, actor), 2.0)
        except (LogError, Overloaded):
            states[UNSURE] += 1
            evidence.undecided(command_id)
            return
        if not isinstance(outcome, Decision):
            states[ACCEPTED] += 1
            evidence.undecided(command_id)
            return
        reply = outcome.reply
        if reply.outcome == "rejected":
            evidence.refused(command_id, reply.code or "")
            if reply.code in ("LEASE_STALE", "JOB_CLOSED"):
                states[STALE] += isinstance(command, SubmitResult)
        elif not isinstance(command, Heartbeat):
            evidence.accepted(command_id, reply.position, reply.job_id)
