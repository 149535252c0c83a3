"""Bulk cancels: one operation, a part in each partition, and requests that were there before it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from ledger.domain import bulk, operations
from ledger.domain.cancel import cancel
from ledger.domain.commands import (
    CancelJobs,
    CancelPart,
    CancelPolicy,
    ConfirmPart,
    PutTemplate,
    RequestJob,
    Template,
    Where,
)
from ledger.domain.decide import Decided
from ledger.domain.entries import Entry, TakeOver
from ledger.domain.events import (
    BulkEnded,
    BulkPartAdvanced,
    BulkPartConfirmed,
    BulkPartEnded,
    BulkPartStarted,
    BulkStarted,
    JobCancelled,
    JobRequested,
)
from ledger.domain.ids import LEDGER_QUEUE, QueueName
from ledger.domain.job import status
from ledger.domain.rejections import Rejected, Rejection
from tests.support.builders import (
    JOB,
    QUEUE,
    job_id,
    keyed,
    leased,
    requested,
    started,
)
from tests.support.clock import after
from tests.support.given import Given, given

pytestmark = pytest.mark.rule("S1.10")

USER = Where(labels={"user": "1"})
OTHER = job_id("other")


def start(told: Given, where: Where = USER, command_id: str | None = None) -> Decided:
    return told.when(CancelJobs(where, "no consent"), command_id).decided()


def part(told: Given, where: Where = USER, *, requests_end: int = 0) -> None:
    events = bulk.start_part(
        told.owner.partition,
        CancelPart("op_1", 0, where, "no consent", "ada"),
        requests_end,
    )
    told.owner.append(*events)


def turn(told: Given) -> int:
    """As the owner's: cancel what is selected, in one entry. How many."""
    partition = told.owner.partition
    events: list[Any] = []
    for selected in bulk.selected(partition, "op_1"):
        said = cancel(partition.jobs[selected], "no consent", "ada", told.now)
        assert not isinstance(said, Rejected)
        events += said
    if events:
        told.owner.append(*events, bulk.advanced("op_1", len(events)))
    return len(events)


# --- The operation -------------------------------------------------------------------------------
def test_an_operation_is_a_fact_with_all_partitions_to_confirm_it() -> None:
    told = given()
    told.owner.partition.take_over(TakeOver("n", told.now, "l", 16))
    decided = start(told)
    [event] = decided.events
    assert isinstance(event, BulkStarted)
    assert (event.queue, event.partitions, event.by) == (LEDGER_QUEUE, 16, "tester")
    assert decided.operation_id == event.operation_id


def test_the_same_command_again_is_the_same_operation() -> None:
    told = given()
    first = start(told, command_id="cmd-1")
    again = start(told, command_id="cmd-1")
    assert (again.operation_id, again.events, again.replayed) == (first.operation_id, (), True)


def test_a_keyed_one_too() -> None:
    told = given()
    first = start(told, command_id=keyed("bulk", "a"))
    again = start(told, command_id=keyed("bulk", "a"))
    assert (again.operation_id, again.events) == (first.operation_id, ())
    told.when(CancelJobs(Where(scope="x")), keyed("bulk", "b")).then(
        Rejection.IDEMPOTENCY_KEY_REUSED
    )


@pytest.mark.parametrize("where", [Where(), Where(labels={}), Where(types=())])
def test_a_condition_that_is_none_is_an_error(where: Where) -> None:
    told = given().when(CancelJobs(where)).then(Rejection.VALIDATION_FAILED)
    assert told.refusal.pointer == "/where"


def test_it_ends_when_every_partition_has_confirmed() -> None:
    told = given()
    told.owner.partition.take_over(TakeOver("n", told.now, "l", 2))
    operation = start(told).operation_id
    assert operation is not None
    told.when(ConfirmPart(operation, 0, 3)).then(BulkPartConfirmed(LEDGER_QUEUE, operation, 0, 3))
    told.when(ConfirmPart(operation, 0, 3)).then()
    told.when(ConfirmPart(operation, 1, 4)).then(
        BulkPartConfirmed(LEDGER_QUEUE, operation, 1, 4), BulkEnded(LEDGER_QUEUE, operation, 7)
    )
    told.when(ConfirmPart("op_none", 0, 3)).then()


# --- Its part in a partition ---------------------------------------------------------------------
def test_pending_jobs_are_cancelled_and_running_ones_asked_to_stop() -> None:
    mine = {"user": "1", "x": "y"}
    told = given(requested(labels=mine), leased(), started(), after(1))
    told.also(requested(OTHER, labels=mine))
    part(told)
    assert turn(told) == 2
    assert status(told.job) == "cancelling"
    assert status(told.known(OTHER)) == "cancelled"
    assert turn(told) == 0


@pytest.mark.parametrize(
    ("where", "matches"),
    [
        (Where(labels={"user": "1"}), True),
        (Where(labels={"user": "1", "x": "z"}), False),
        (Where(queue=QUEUE), True),
        (Where(queue=QueueName("other")), False),
        (Where(types=("report", "quiz")), True),
        (Where(types=("quiz",)), False),
        (Where(scope="s"), True),
        (Where(scope=""), False),
        (Where(QUEUE, ("report",), {"user": "1"}, "s"), True),
        (Where(QUEUE, ("report",), {"user": "1"}, "t"), False),
    ],
)
def test_all_conditions_hold_for_what_is_selected(where: Where, matches: bool) -> None:
    told = given(requested(labels={"user": "1", "x": "y"}, scope="s"))
    part(told, where)
    assert bulk.selected(told.owner.partition, "op_1") == ([JOB] if matches else [])


def test_jobs_that_allow_no_cancel_are_left_alone() -> None:
    told = given(requested(labels={"user": "1"}, cancel_supported=False))
    part(told)
    assert bulk.selected(told.owner.partition, "op_1") == []


def test_requests_that_were_there_before_are_created_cancelled() -> None:
    told = given()
    part(told, requests_end=1)
    early = told.when(RequestJob("report", labels={"user": "1"})).decided()
    requested_event, cancelled_event, advanced = early.events
    assert isinstance(requested_event, JobRequested)
    assert isinstance(cancelled_event, JobCancelled)
    assert cancelled_event.by == "ada"
    assert isinstance(advanced, BulkPartAdvanced)
    assert status(told.known(requested_event.job_id)) == "cancelled"
    late = told.when(RequestJob("report", labels={"user": "1"})).decided()
    assert len(late.events) == 1


def test_requests_of_others_and_those_that_allow_no_cancel_are_not() -> None:
    told = given()
    told.when(PutTemplate(QUEUE, "fixed", Template(cancel=CancelPolicy(supported=False)))).decided()
    part(told, requests_end=100)
    assert len(told.when(RequestJob("report", labels={"user": "2"})).decided().events) == 1
    assert len(told.when(RequestJob("fixed", labels={"user": "1"})).decided().events) == 1


def test_a_part_ends_once_the_requests_before_it_are_read() -> None:
    told = given(requested(labels={"user": "1"}))
    part(told, requests_end=2)
    turn(told)
    assert bulk.end_part(told.owner.partition, "op_1") == ()
    for user in ("1", "2"):
        told.when(RequestJob("report", labels={"user": user})).decided()
    [ended] = bulk.end_part(told.owner.partition, "op_1")
    assert ended == BulkPartEnded(LEDGER_QUEUE, "op_1", 2)
    told.owner.append(ended)
    assert told.owner.partition.bulk_done == {"op_1": 2}
    assert bulk.start_part(told.owner.partition, CancelPart("op_1", 0, USER), 9) == ()


def test_a_part_is_started_once() -> None:
    told = given()
    part(told, requests_end=5)
    assert bulk.start_part(told.owner.partition, CancelPart("op_1", 0, USER), 9) == ()


# --- Logs of another version ---------------------------------------------------------------------
def test_conditions_that_are_unknown_here_do_not_fit() -> None:
    told = given()
    odd = BulkPartStarted(LEDGER_QUEUE, "op_1", Raw(b'{"moon":"full"}'), 5)
    told.owner.partition.apply(Entry(1, told.now, 0, 0, (odd,)))
    assert told.owner.partition.misfits == 1
    assert told.owner.partition.bulk_parts == {}


def test_ended_operations_are_forgotten_one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "ENDED_MAX", 3)
    told = given()
    for number in range(9):
        operation = start(told, command_id=f"cmd-{number}").operation_id
        assert operation is not None
        told.when(ConfirmPart(operation, 0, 0)).decided()
    assert len(told.owner.partition.bulks) == 3
