"""Batches of several partitions in one transaction: the rows of each in its own, all or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest
from msgspec.structs import replace

from ledger.domain.commands import CancelJob
from ledger.domain.ids import JobId
from projections.batches import Batch
from projections.checkpoints import Superseded
from projections.projector import NotTogether, Projector
from projections.schema import connect, migrate
from tests.support.views import differences
from tests.unit.projections.histories import Script, long_job, plain_job, random_history

pytestmark = pytest.mark.services
TOPIC = "ledger.events.v1"
FLUSHES = """
    SELECT partition, position, sum(jobs), array_agg(born ORDER BY born)
    FROM (SELECT partition, position, 1 AS jobs, unnest(born) AS born FROM {}.flushes) AS each
    GROUP BY partition, position ORDER BY partition, position
"""


@pytest.fixture
def projector(views: str) -> Iterator[Projector]:
    with Projector(views, topic=TOPIC) as projector:
        for partition in range(3):
            projector.cursor(partition)
        yield projector


def entries(views: str) -> list[tuple[object, ...]]:
    """That each partition has read."""
    return rows(views, "SELECT partition, entry FROM partitions ORDER BY partition")


def rows(views: str, sql: str) -> list[tuple[object, ...]]:
    with connect(views) as connection:
        return connection.execute(sql.encode()).fetchall()


def histories(*seeds: int) -> list[Script]:
    """Each of a partition of its own, with queues of the same names."""
    found = [random_history(Random(seed), 150) for seed in seeds]
    for number, script in enumerate(found):
        script.number = number
        long_job(script, 30)
    return found


def jobs_of(number: int, many: int = 2) -> Script:
    script = Script(number)
    for _ in range(many):
        plain_job(script)
    return script


def applied_in(projector: Projector, batches: list[Batch], *, together: bool) -> bool:
    """Whether in one transaction: what no rule writes is not."""
    if together:
        with suppress(NotTogether):
            applied = projector.apply_together(batches)
            assert [its.partition for its in applied] == [0, 1, 2]
            assert {its.partition: its.offset for its in applied} == {
                batch.partition: batch.after for batch in batches
            }
            return True
    for batch in sorted(batches, key=lambda batch: batch.partition):
        projector.apply(batch)
    return False


@pytest.mark.parametrize("seed", range(0, 18, 3))
def test_the_rows_are_those_of_each_alone(dsn: str, seed: int) -> None:
    random = Random(seed)
    fed = seed % 2 == 0
    scripts = histories(seed, seed + 1, seed + 2)
    cut = [
        script.batches(sorted(random.sample(range(1, len(script.items)), 7)), fed=fed)
        for script in scripts
    ]
    found: list[bool] = []
    for schema in ("alone", "together"):
        migrate(dsn, schema=schema)
        with Projector(dsn, topic=TOPIC, schema=schema) as projector:
            for script in scripts:
                projector.cursor(script.number)
            found = [
                applied_in(projector, random.sample(batches, 3), together=schema == "together")
                for batches in zip(*cut, strict=True)
            ]
    assert any(found)
    assert differences(dsn, "alone", "together") == []
    assert rows(dsn, FLUSHES.format("together")) == rows(dsn, FLUSHES.format("alone"))
    commands = "SELECT * FROM {}.commands ORDER BY id"
    assert rows(dsn, commands.format("together")) == rows(dsn, commands.format("alone"))


def test_where_one_is_superseded_none_is_applied(views: str, projector: Projector) -> None:
    first, second = jobs_of(0).batches((3,)), jobs_of(1).batches()
    with Projector(views, topic=TOPIC) as rival:
        rival.cursor(0)
        rival.apply(first[0])
    [whole] = jobs_of(0).batches()
    with pytest.raises(NotTogether):
        projector.apply_together([whole, *second])
    assert entries(views)[1] == (1, 0)
    with pytest.raises(Superseded):
        projector.apply(whole)
    assert projector.apply_together([first[1], *second])[1].jobs == 2


def test_what_was_applied_before_is_no_news(views: str, projector: Projector) -> None:
    [first], [second] = jobs_of(0).batches(), jobs_of(1).batches()
    projector.apply(second)
    applied = projector.apply_together([first, second])
    assert [(its.offset, its.jobs) for its in applied] == [(first.after, 2), (second.after, 0)]
    again = projector.apply_together([first, second])
    assert [its.entries for its in again] == [0, 0]
    assert rows(views, "SELECT sum(succeeded)::int FROM queues") == [(4,)]


def test_where_one_has_values_that_do_not_fit_none_is_applied(
    views: str, projector: Projector
) -> None:
    [honest], [lying] = jobs_of(0).batches(), jobs_of(1).batches()
    assert lying.jobs is not None
    lies = {job_id: replace(job, version=9) for job_id, job in lying.jobs.items()}
    with pytest.raises(NotTogether):
        projector.apply_together([honest, replace(lying, jobs=lies)])
    assert entries(views) == [(0, 0), (1, 0), (2, 0)]
    assert not projector.apply(honest).folded
    assert projector.apply(replace(lying, jobs=lies)).folded


def test_what_postgres_refuses_of_one_it_takes_of_the_others(
    views: str, projector: Projector
) -> None:
    """Whatever it is: it is no reason for the others to wait."""
    with connect(views) as connection:
        connection.execute(
            "ALTER TABLE ledger.job_events ADD CONSTRAINT nobody CHECK (partition <> 1)"
        )
    [first], [second] = jobs_of(0).batches(), jobs_of(1).batches()
    with pytest.raises(NotTogether):
        projector.apply_together([first, second])
    assert projector.apply(first).jobs == 2


def test_a_command_that_two_partitions_tell_of_has_one_row(
    views: str, projector: Projector
) -> None:
    """As each alone would leave it: an acceptance stays."""
    accepting, refusing = Script(0), Script(0)
    accepting.do(CancelJob(accepting.submit(), "why"), awaited=True)
    accepted = accepting.commands
    for _ in range(accepted):
        refusing.do(CancelJob(JobId("default.none"), "why"), awaited=True)
    [one], [other] = accepting.batches(), refusing.batches()
    moved = Batch(1, other.before, other.items, other.jobs)
    projector.apply_together([one, moved])
    told = f"SELECT outcome FROM commands WHERE id = 'command-0-{accepted}'"
    assert rows(views, told) == [("accepted",)]
