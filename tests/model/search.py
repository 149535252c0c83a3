"""Every state of a small world, breadth first, so that what is found wrong is found by a shortest
way; and whether each job can still end wherever the faults stop."""

from __future__ import annotations

import gc
from array import array
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from tests.model.world import Name, State, World

Progress = Callable[[int, int, int], None]
"""(states found, of these still to look at, steps taken)"""
What = tuple[str | Name, ...]
PROGRESS_EVERY = 20_000


class Found(Struct):
    states: int
    steps: int
    depth: int
    wrong: str
    trace: list[str]
    """How it came to what is wrong."""
    stuck: int = 0
    """States from which no job can end without further faults."""


def search(world: World, *, states_max: int = 5_000_000, progress: Progress | None = None) -> Found:
    # Nothing here is a cycle, and there is much to look through: it costs a sixth of the time.
    was_on = gc.isenabled()
    gc.disable()
    try:
        return Search(world, states_max, progress).run()
    finally:
        if was_on:
            gc.enable()


class Search:
    def __init__(self, world: World, states_max: int, progress: Progress | None) -> None:
        self._world = world
        self._states_max = states_max
        self._progress = progress
        start = world.start()
        self._numbers: dict[State, int] = {start: 0}
        self._ways: list[tuple[int, What]] = [(-1, ())]
        self._todo: deque[State] = deque([start])
        self._steps = 0
        self._from, self._to = array("l"), array("l")
        """Steps that are no faults."""
        self._ended: list[int] = []

    def run(self) -> Found:
        numbers, todo, world = self._numbers, self._todo, self._world
        number = -1
        while todo:
            state = todo.popleft()
            number += 1
            if world.node(world.head(state)).ended:
                self._ended.append(number)
            for step in world.steps(state):
                self._steps += 1
                known = numbers.get(step.state)
                if known is None:
                    known = numbers[step.state] = len(numbers)
                    self._ways.append((number, step.what))
                    todo.append(step.state)
                    wrong = step.wrong or world.wrong(step.state)
                    if wrong:
                        return self._found(wrong, known)
                elif step.wrong:
                    self._ways.append((number, step.what))
                    return self._found(step.wrong, len(self._ways) - 1)
                if not step.is_fault:
                    self._from.append(number)
                    self._to.append(known)
            if len(numbers) > self._states_max:
                raise MemoryError(f"more than {self._states_max} states")
            if self._progress is not None and number % PROGRESS_EVERY == 0:
                self._progress(len(numbers), len(todo), self._steps)
        return self._live(self._found("", number))

    def _found(self, wrong: str, last: int) -> Found:
        way = self._way(last)
        trace = [self._world.in_words(what) for what in way] if wrong else []
        return Found(len(self._numbers), self._steps, len(way), wrong, trace)

    def _way(self, number: int) -> list[What]:
        way = []
        while number > 0:
            number, what = self._ways[number]
            way.append(what)
        return way[::-1]

    def _live(self, found: Found) -> Found:
        """Backwards from where the job has ended, by steps that are no faults."""
        count = len(self._numbers)
        first = array("l", [-1]) * count
        following = array("l", [-1]) * len(self._to)
        for i, to in enumerate(self._to):
            following[i], first[to] = first[to], i
        live = bytearray(count)
        todo = deque(self._ended)
        for number in todo:
            live[number] = 1
        while todo:
            edge = first[todo.popleft()]
            while edge >= 0:
                before = self._from[edge]
                if not live[before]:
                    live[before] = 1
                    todo.append(before)
                edge = following[edge]
        dead = live.find(0)
        if dead < 0:
            return found
        stuck = self._found("G11: the job can end no more, though no fault comes", dead)
        stuck.stuck = count - sum(live)
        return stuck
