"""The models that there are, as the read model has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from ledger.client import GiveBack
from ledger.domain.commands import Model
from ledger.domain.ids import MODELS_QUEUE
from ledger.log.errors import LogUnavailable
from projections.answers import ModelState, Rows
from projections.reads import ReadsUnavailable

VIEW_SECONDS = 2.0
"""How long a call waits for the read model to show what was said of its model before."""


class ModelReads(Protocol):
    """What of the read side is asked here: `Reads`."""

    async def models(self) -> Rows[ModelState]: ...

    async def model(self, name: str) -> ModelState | None: ...

    async def open_types(self, queue: str) -> list[str]: ...

    async def reached(self, partition: int, offset: int, seconds_max: float) -> bool: ...


class Registry:
    """`events_end` is the offset after the last event of the models' partition."""

    def __init__(
        self, reads: ModelReads, *, partition: int, events_end: Callable[[], Awaitable[int]]
    ) -> None:
        self._reads = reads
        self._partition = partition
        self._events_end = events_end
        self._known: Mapping[str, Model] = {}

    @property
    def known(self) -> Mapping[str, Model]:
        """As of the last `offered`."""
        return self._known

    async def offered(self, types_max: int) -> list[str]:
        """Which types of jobs are to be taken: all models, and those that were deleted while jobs
        of theirs wait, which somebody must tell so. Raises `ReadsUnavailable`."""
        models = (await self._reads.models()).items
        self._known = {state.name: state.model for state in models}
        deleted = [
            job_type
            for job_type in await self._reads.open_types(MODELS_QUEUE)
            if job_type not in self._known
        ]
        return [*self._known, *deleted][:types_max]

    async def find(self, name: str) -> Model | None:
        """With all that was said of it before this was asked; None: it was deleted. While the read
        model is away, as it was last seen. Raises `GiveBack` where nobody can tell."""
        try:
            is_certain = await self._caught_up()
            found = await self._reads.model(name)
        except ReadsUnavailable:
            model = self._known.get(name)
            if model is None:
                raise GiveBack("the read models are away") from None
            return model
        if found is None and not is_certain:
            raise GiveBack("the read models are behind")
        return None if found is None else found.model

    async def _caught_up(self) -> bool:
        with suppress(LogUnavailable):
            end = await self._events_end()
            return end == 0 or await self._reads.reached(self._partition, end - 1, VIEW_SECONDS)
        return False
