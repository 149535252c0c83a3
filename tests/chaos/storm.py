"""One storm: everything runs, faults strike, all is mended, and what must hold is looked at."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.faults import KINDS, Faults
from tests.chaos.load import Load
from tests.chaos.stack import SMALL, Size, Stack, running
from tests.chaos.verdict import Verdict, judge, until_quiet

CALM_SECONDS = (1.0, 6.0)
"""Between two faults of a lane."""
SETTLE_SECONDS = 300.0
QUIET_SECONDS = 300.0
"""After the last fault: every lease that can lapse has, every retry and delay is due."""


@dataclass(frozen=True)
class Plan:
    seed: int
    seconds: float
    kinds: frozenset[str]
    """Of faults; see `tests.chaos.faults`."""
    is_small: bool = False

    @property
    def lanes(self) -> dict[str, list[str]]:
        chosen = {lane: [k for k in kinds if k in self.kinds] for lane, kinds in KINDS.items()}
        return {lane: kinds for lane, kinds in chosen.items() if kinds}

    @property
    def words(self) -> str:
        """The command that raises it again."""
        every = {kind for kinds in KINDS.values() for kind in kinds}
        kinds = "" if self.kinds == every else f" --kinds '{','.join(sorted(self.kinds))}'"
        small = " --small" if self.is_small else ""
        return f"python -m tests.chaos --seconds {self.seconds:g} --seed {self.seed}{small}{kinds}"


@dataclass
class Storm:
    plan: Plan
    directory: Path
    faults: Counter[str] = field(default_factory=Counter)

    async def run(self) -> Verdict:
        self._began = asyncio.get_running_loop().time()
        self._say(self.plan.words)
        chance = random.Random(self.plan.seed)
        size = SMALL if self.plan.is_small else Size()
        async with running(self.directory, size, chance) as stack:
            self._say(f"three brokers and Postgres; logs in {stack.cluster.directory}")
            await stack.start_all()
            self._say("every role is there")
            async with Load(stack.producer, list(stack.urls.values()), chance) as load:
                await load.prepare()
                return await self._strike(stack, load)

    async def _strike(self, stack: Stack, load: Load) -> Verdict:
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(stack.watch())
            asking = group.create_task(load.run(enough))
            self._say("the faults begin")
            end = asyncio.get_running_loop().time() + self.plan.seconds
            async with asyncio.TaskGroup() as lanes:
                for lane, kinds in self.plan.lanes.items():
                    lanes.create_task(self._lane(lane, kinds, stack, load, end))
            self._say("no more faults")
            enough.set()
            await asking
            await load.settle(SETTLE_SECONDS)
            self._say("every producer has its answer")
            open_jobs = await until_quiet(stack, QUIET_SECONDS)
            self._say("quiet" if not open_jobs else f"{len(open_jobs)} jobs are open")
            verdict = await judge(stack, load.journal)
            verdict.must_be_empty(f"open {QUIET_SECONDS:g} s after the last fault", open_jobs)
            watching.cancel()
        return verdict

    async def _lane(
        self, lane: str, kinds: list[str], stack: Stack, load: Load, end: float
    ) -> None:
        loop = asyncio.get_running_loop()
        chance = random.Random(f"{self.plan.seed} {lane}")
        faults = Faults(stack, load, chance, lambda text: self._say(text, lane))
        for kind in endless(kinds, chance):
            await asyncio.sleep(chance.uniform(*CALM_SECONDS))
            if loop.time() > end:
                return
            self.faults[kind] += 1
            await KINDS[lane][kind](faults)

    def _say(self, text: str, lane: str = "") -> None:
        seconds = asyncio.get_running_loop().time() - self._began
        print(f"{seconds:7.1f} s  {lane:10} {text}", flush=True)


def endless(kinds: list[str], chance: random.Random) -> Iterator[str]:
    """All of them in some order, then all again."""
    while True:
        yield from chance.sample(kinds, len(kinds))
