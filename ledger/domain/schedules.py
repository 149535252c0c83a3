"""Schedules: when jobs of a type are to be, by themselves. Each nominal time comes to one run,
whichever owner notices it: what is next stands in the log, and moves with the run's own entry."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain import admission, occurrences
from ledger.domain.commands import (
    Asked,
    DeleteSchedule,
    DisableSchedule,
    EnableSchedule,
    PutSchedule,
    RequestJob,
    RunSchedule,
    Schedule,
)
from ledger.domain.cron import parsed
from ledger.domain.decisions import Decided, Decision
from ledger.domain.events import (
    Event,
    ScheduleDeleted,
    ScheduleDisabled,
    ScheduleEnabled,
    ScheduleFired,
    SchedulePut,
    ScheduleSkipped,
    ScheduleStopped,
)
from ledger.domain.ids import CommandId, Micros, QueueName
from ledger.domain.partition import Partition
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.schedule_table import Scheduled
from ledger.domain.wrong import Wrong

Edit = PutSchedule | DeleteSchedule | EnableSchedule | DisableSchedule
"""Before one is decided, the schedule's occurrences up to its append are fired."""
Change = PutSchedule | DeleteSchedule | EnableSchedule | DisableSchedule | RunSchedule


def change(partition: Partition, command: Change, asked: Asked, at: Micros) -> Decision:
    """What an operator says of a schedule. What comes after an edit's append follows the new
    word."""
    known = _known(partition, command.queue, command.name)
    if isinstance(command, PutSchedule):
        return _put(partition, command, known, asked, at)
    if known is None:
        return not_found(command.name)
    match command:
        case DeleteSchedule():
            return Decided((ScheduleDeleted(command.queue, command.name),))
        case EnableSchedule():
            return _enable(command, known, asked, at)
        case DisableSchedule():
            if not known.schedule.enabled:
                return Decided()
            return Decided((ScheduleDisabled(command.queue, command.name),))
        case RunSchedule():
            return _run(partition, command, known, asked, at)
        case _:
            assert_never(command)


def fire(
    partition: Partition, queue: QueueName, name: str, until: Micros, now: Micros
) -> tuple[Event, ...]:
    """What the first occurrence that is due at `until` comes to, one entry; the one after it may be
    due, too. Nothing where nothing is due. How late it is, and what becomes of it, is told by
    `now`, the instant of the entry."""
    known = _known(partition, queue, name)
    if known is None or known.next_at is None or known.next_at > until:
        return ()
    times = parsed(known.schedule.cron, known.schedule.timezone)
    if isinstance(times, Wrong):
        return (ScheduleStopped(queue, name, times.message),)
    catch_up = known.schedule.catch_up
    due = occurrences.due_occurrences(times, known.next_at, now, catch_up, limit=1, until=until)
    if not due.fire:
        end = Micros(until + 1) if due.next_at is None else min(due.next_at, Micros(until + 1))
        return (ScheduleSkipped(queue, name, due.skipped, known.next_at, end, due.next_at),)
    nominal = due.fire[0]
    entry: tuple[Event, ...] = ()
    if due.skipped:
        entry = (ScheduleSkipped(queue, name, due.skipped, known.next_at, nominal, nominal),)
    return (*entry, *_occurrence(partition, queue, name, known, nominal, due.next_at, now))


def _occurrence(
    partition: Partition,
    queue: QueueName,
    name: str,
    known: Scheduled,
    nominal: Micros,
    next_at: Micros | None,
    at: Micros,
) -> tuple[Event, ...]:
    """The job of a nominal time, or why there is none: either way it has had its run."""
    seed = CommandId(f"{known.command_id}@{nominal}")
    decided = _request(partition, queue, name, known, seed, at, born=nominal)
    fired = ScheduleFired(queue, name, nominal, next_at=next_at)
    if isinstance(decided, Rejected):
        return (replace(fired, code=str(decided.code), detail=decided.detail[:2048]),)
    return (*decided.events, replace(fired, job_id=decided.job_id))


def _request(
    partition: Partition,
    queue: QueueName,
    name: str,
    known: Scheduled,
    seed: CommandId,
    at: Micros,
    born: Micros,
) -> Decision:
    schedule = known.schedule
    request = RequestJob(
        type=schedule.type,
        queue=queue,
        payload=schedule.payload,
        labels=schedule.labels,
        scope=schedule.scope,
    )
    if not is_schedulable(partition, queue, schedule.type):
        return not_schedulable(schedule.type)
    asked = Asked(request, seed, actor=f"schedule:{name}", offset=partition.requests)
    return admission.admit(partition, request, asked, at, born=born, schedule=name)


def _put(
    partition: Partition, command: PutSchedule, known: Scheduled | None, asked: Asked, at: Micros
) -> Decision:
    schedule = command.schedule
    times = parsed(schedule.cron, schedule.timezone)
    if isinstance(times, Wrong):
        return Rejected(Rejection.INVALID_SCHEDULE, times.message, pointer=times.pointer)
    if not is_schedulable(partition, command.queue, schedule.type):
        return not_schedulable(schedule.type)
    if known is not None and known.stopped is None and _same(known.schedule, schedule):
        return Decided()
    fired_at = None if known is not None else _deleted(partition, command.queue, command.name)
    since = max(_since(known, asked, at), fired_at or 0)
    next_at = times.next_after(Micros(since)) if schedule.enabled else None
    content = Raw(msgspec.json.encode(schedule))
    put = SchedulePut(command.queue, command.name, content, asked.command_id, next_at)
    return Decided((put,), created=known is None)


def _same(one: Schedule, other: Schedule) -> bool:
    """As a reader sees them: what is said as the default makes no other schedule."""
    return bool(_content(one) == _content(other))


def _content(schedule: Schedule) -> dict[str, Any]:
    absent: dict[str, Any] = {"payload": {}, "labels": {}, "scope": None}
    said: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schedule))
    return absent | said


def _enable(command: EnableSchedule, known: Scheduled, asked: Asked, at: Micros) -> Decision:
    if known.schedule.enabled:
        return Decided()
    times = parsed(known.schedule.cron, known.schedule.timezone)
    if isinstance(times, Wrong):
        return Rejected(Rejection.INVALID_SCHEDULE, times.message, pointer=times.pointer)
    next_at = times.next_after(_since(known, asked, at))
    return Decided((ScheduleEnabled(command.queue, command.name, next_at),))


def _run(
    partition: Partition, command: RunSchedule, known: Scheduled, asked: Asked, at: Micros
) -> Decision:
    """By hand: beside the occurrences, also of a disabled one."""
    if too_old := admission.expired(asked, partition.bounds.commands_us):
        return too_old
    decided = _request(partition, command.queue, command.name, known, asked.command_id, at, born=at)
    if isinstance(decided, Rejected):
        return decided
    fired = ScheduleFired(
        command.queue, command.name, at, decided.job_id, next_at=known.next_at, manual=True
    )
    return Decided((*decided.events, fired), decided.job_id, deduplicated=decided.deduplicated)


def _since(known: Scheduled | None, asked: Asked, at: Micros) -> Micros:
    """Occurrences count from the command's append, but never again from before the last one."""
    appended = min(asked.appended_at or at, at)
    last = None if known is None else known.last_nominal_at
    return appended if last is None else max(appended, last)


def _deleted(partition: Partition, queue: QueueName, name: str) -> Micros | None:
    """The last occurrence of a schedule of that name that is no more: it may have been deleted and
    put again before its owner read of either."""
    its = partition.queues.get(queue)
    return its.schedules.deleted.get(name) if its is not None else None


def is_schedulable(partition: Partition, queue: QueueName, job_type: str) -> bool:
    its = partition.queues.get(queue)
    newest = its.template(job_type) if its is not None else None
    return newest is None or newest.template.schedulable


def not_schedulable(job_type: str) -> Rejected:
    detail = f"the template of {job_type} allows no schedule"
    return Rejected(Rejection.NOT_SCHEDULABLE, detail, pointer="/type")


def not_found(name: str) -> Rejected:
    return Rejected(Rejection.SCHEDULE_NOT_FOUND, f"there is no schedule {name}", pointer="/name")


def _known(partition: Partition, queue: QueueName, name: str) -> Scheduled | None:
    its = partition.queues.get(queue)
    return its.schedules.get(name) if its is not None else None
