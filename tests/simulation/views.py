"""Read models in memory, for a projector's feed: the real folds, the checkpoint moved by
compare-and-set, rows and checkpoint in one step. Postgres itself is not simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job
from ledger.log.effective import START, Cursor
from projections.batches import Applied, Batch, advanced
from projections.checkpoints import Superseded
from projections.gathering import Gathered, gather, touched_jobs
from projections.projector import NotTogether, ViewsUnavailable
from projections.writing import DoesNotFit


class Standing(Struct, frozen=True):
    cursor: Cursor = START
    at: Micros = Micros(0)
    misfits: int = 0


class Views:
    """The database. Every process has a connection of its own to it: a `Projector`."""

    def __init__(self, topic: str, passing: Callable[[], None], answering: Callable[[], None]):
        """`passing` raises what keeps a transaction from being begun, `answering` what keeps its
        sender from hearing that it was committed."""
        self.topic = topic
        self.standing: dict[int, Standing] = {}
        self.jobs: dict[JobId, Job] = {}
        self.passing = passing
        self.answering = answering
        self.counts: Counter[str] = Counter()

    def projector(self) -> Projector:
        return Projector(self)


class Projector:
    """What `projections.projector.Projector` is to a feed."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def cursor(self, partition: int) -> Cursor:
        self._views.passing()
        return self._views.standing.setdefault(partition, Standing()).cursor

    def rest(self) -> None: ...

    def apply(self, batch: Batch) -> Applied:
        if not batch.items:
            return Applied(batch.partition, batch.before, 0, 0, 0, 0, False)
        self._views.passing()
        applied = self._applied(batch)
        self._views.answering()
        return applied

    def apply_together(self, batches: Sequence[Batch]) -> list[Applied]:
        views = self._views
        views.passing()
        before = dict(views.standing), dict(views.jobs)
        try:
            applied = [self._applied(batch) for batch in batches]
        except Superseded as error:
            views.standing, views.jobs = before
            raise NotTogether from error
        views.counts["together"] += 1
        views.answering()
        return applied

    def _applied(self, batch: Batch) -> Applied:
        views, partition = self._views, batch.partition
        standing = views.standing.get(partition, Standing())
        if standing.cursor.offset == batch.after:
            views.counts["applied before"] += 1
            return Applied(partition, batch.after, 0, 0, 0, 0, False)
        if standing.cursor.offset != batch.before:
            views.counts["superseded"] += 1
            raise Superseded(f"{views.topic}-{partition}", batch.before, standing.cursor.offset)
        jobs = batch.jobs
        rows = None if jobs is None else self._fitting(batch, standing, jobs)
        is_folded = rows is None
        if rows is None:
            touched = touched_jobs(batch.items, new_too=True)
            known = {job_id: job for job_id in touched if (job := views.jobs.get(job_id))}
            rows = gather(batch.items, standing.at, known)
            jobs = rows.folded
        assert jobs is not None
        after = Standing(
            advanced(standing.cursor, batch.items), rows.at, standing.misfits + rows.misfits
        )
        views.jobs.update({job_id: jobs[job_id] for job_id in rows.parts})
        views.standing[partition] = after
        views.counts["folded" if is_folded else "given"] += 1
        offset = after.cursor.offset
        return Applied(
            *(partition, offset, rows.entries, rows.events, len(rows.parts), rows.misfits),
            is_folded,
        )

    def _fitting(
        self, batch: Batch, standing: Standing, jobs: Mapping[JobId, Job]
    ) -> Gathered | None:
        """None: a value given is not the stored one moved by these events."""
        rows = gather(batch.items, standing.at)
        try:
            if rows.strays or not rows.parts.keys() <= jobs.keys():
                raise DoesNotFit
            for job_id, part in rows.parts.items():
                stored = self._views.jobs.get(job_id)
                before = 0 if stored is None else stored.version
                if jobs[job_id].version != before + part.events:
                    raise DoesNotFit
        except DoesNotFit:
            self._views.counts["did not fit"] += 1
            return None
        return rows

    def close(self) -> None:
        pass


def unavailable() -> None:
    raise ViewsUnavailable("the simulated store refuses")
