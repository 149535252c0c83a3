"""Every statement of a projector's batch fails once, in every way a statement can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Literal, get_args

import psycopg
import pytest
import stamina
from psycopg import errors

from projections import projector as module
from projections.batches import Batch
from projections.checkpoints import Superseded
from projections.compare import compare
from projections.projector import Projector, ViewsUnavailable
from projections.schema import connect, migrate
from tests.unit.projections.histories import random_history

pytestmark = pytest.mark.services
TOPIC = "ledger.events.v1"
ITEMS = 8
"""Of one batch."""

Fault = Literal["timed out", "deadlock", "lost before", "lost after", "surprise"]
"""A statement is cancelled, or killed for a deadlock; the connection goes before it was carried
out, or after it and before the answer; or something that nobody has thought of."""


class Surprise(Exception):
    """What nobody has thought of."""


class Faults:
    """Counts statements, copies and commits of every connection; one of them fails."""

    def __init__(self, dsn: str, fault: Fault) -> None:
        self._dsn = dsn
        self._fault = fault
        self._left = 0
        self.reached = 0

    def arm(self, number: int) -> None:
        self._left = number

    def around(self, connection: psycopg.Connection[Any], do: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left != 0:
            return do()
        self.reached += 1
        match self._fault:
            case "timed out":
                raise errors.QueryCanceled("canceling statement due to statement timeout")
            case "deadlock":
                raise errors.DeadlockDetected("deadlock detected")
            case "surprise":
                raise Surprise
            case "lost before":
                self._end(connection)
                return do()
            case "lost after":
                do()
                self._end(connection)
                connection.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")

    def _end(self, connection: psycopg.Connection[Any]) -> None:
        """Returns once the server's side of it is gone."""
        with psycopg.connect(self._dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (connection.info.backend_pid,))

    def connection(self, *args: Any, **words: Any) -> psycopg.Connection[Any]:
        faults = self
        made = connect(*args, **words)

        class Cursor(psycopg.Cursor[Any]):
            def execute(self, *args: Any, **words: Any) -> Any:
                return faults.around(made, lambda: super(Cursor, self).execute(*args, **words))

            @contextmanager
            def copy(self, *args: Any, **words: Any) -> Iterator[psycopg.Copy]:
                inner = super().copy
                faults.around(made, lambda: None)
                with inner(*args, **words) as copy:
                    yield copy

        commit = made.commit
        made.cursor_factory = Cursor
        made.commit = lambda: faults.around(made, commit)  # type: ignore[method-assign]
        return made


@pytest.fixture(autouse=True)
def without_pauses() -> Iterator[None]:
    """Between attempts."""
    stamina.set_testing(True, attempts=module.ATTEMPTS_MAX)
    yield
    stamina.set_testing(False)


def apply_somehow(projector: Projector, batch: Batch) -> int:
    """As the feed does: again from the checkpoint until it stands. How often it was refused."""
    for refused in range(5):
        with suppress(ViewsUnavailable, Superseded, Surprise):
            if projector.cursor(batch.partition).offset == batch.after:
                return refused
            projector.apply(batch)
            return refused
    raise AssertionError("it never stood")


@pytest.mark.parametrize("fed", [True, False], ids=["fed", "read"])
@pytest.mark.parametrize("fault", get_args(Fault))
def test_whichever_statement_fails_the_rows_are_the_fold(
    dsn: str, monkeypatch: pytest.MonkeyPatch, fault: Fault, fed: bool
) -> None:
    """Batch after batch of one history, each with a fault one statement later than the one before,
    until a batch is over before its fault comes; then from the first statement again."""
    script = random_history(Random(45), 250)
    migrate(dsn)
    migrate(dsn, schema="other")
    faults = Faults(dsn, fault)
    monkeypatch.setattr(module, "connect", faults.connection)
    number, rounds, furthest = 0, 0, 0
    with Projector(dsn, topic=TOPIC) as projector:
        projector.cursor(0)
        for batch in script.batches(range(ITEMS, len(script.items), ITEMS), fed=fed):
            number += 1
            before = faults.reached
            faults.arm(number)
            refused = apply_somehow(projector, batch)
            assert refused <= 1
            if faults.reached > before:
                furthest = max(furthest, number)
            else:
                number, rounds = 0, rounds + 1
        faults.arm(0)
        assert projector.cursor(0).offset == script.offset
    print(f"{faults.reached} faults, {rounds} rounds, up to statement {furthest} of a batch")
    assert rounds >= 1
    assert furthest >= 10
    monkeypatch.undo()
    with Projector(dsn, topic=TOPIC, schema="other") as other:
        other.cursor(0)
        for batch in script.batches(fed=False):
            other.apply(batch)
    with connect(dsn, schema="ledger") as one, connect(dsn, schema="other") as two:
        assert [str(difference) for difference in compare(one, two)] == []


@pytest.mark.parametrize("fault", get_args(Fault))
def test_whichever_statement_of_the_first_look_fails_the_partition_is_begun_once(
    dsn: str, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    migrate(dsn)
    faults = Faults(dsn, fault)
    monkeypatch.setattr(module, "connect", faults.connection)
    begun = 0
    for partition in range(30):
        begun += 1
        before = faults.reached
        faults.arm(partition + 1)
        with Projector(dsn, topic=TOPIC) as projector:
            for _ in range(2):
                with suppress(Surprise):
                    projector.cursor(partition)
            faults.arm(0)
            assert projector.cursor(partition).offset == 0
        if faults.reached == before:
            break
    assert faults.reached >= 5
    with connect(dsn) as connection:
        rows = connection.execute("SELECT application_name FROM checkpoints").fetchall()
        rows.remove(("__migration__",))  # The library's own.
        assert sorted(name for (name,) in rows) == sorted(f"{TOPIC}-{n}" for n in range(begun))
