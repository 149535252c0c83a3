"""Turns the effects of a turn into records, and sends them. Called for proven entries only."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from ledger.domain.brief import brief_of
from ledger.domain.commands import CancelPart, ConfirmPart, Where
from ledger.domain.flows import gives_the_result
from ledger.domain.ids import (
    LEDGER_QUEUE,
    MAIN,
    SECOND,
    CommandId,
    Fence,
    JobId,
    Micros,
    QueueName,
    RuntimeId,
    rfc3339,
)
from ledger.domain.job import Cancel, Job, Step, cancel_of, held_lease
from ledger.domain.partition import Partition
from ledger.domain.runtimes import news
from ledger.log.command_codec import command_record
from ledger.log.inbox import (
    Assigned,
    AssignedItem,
    BeatAnswered,
    CancelAsked,
    InboxRecord,
    LeaseDropped,
    LeaseLeft,
    OwnerChanged,
    ReportRefused,
    inbox_record,
)
from ledger.log.partitions import INBOX_PARTITIONS, REPLIES_PARTITIONS, partition_of
from ledger.log.records import Outgoing
from ledger.log.replies import reply_record
from processors.owner.credit import RESEND_US, Credit, Offers, leased_under
from processors.owner.seams import Seams
from processors.owner.turn import Effects, Heard

ITEMS_BYTES_MAX = 256_000
"""Of assignments in one record, unless a single one takes more."""
Batches = dict[tuple[str, int], list[Outgoing]]


class Release:
    """Makes records of effects for one partition. `inboxes` are the queues whose topic exists."""

    def __init__(self, seams: Seams, partition: Partition, offers: Offers) -> None:
        self._seams = seams
        self._partition = partition
        self._offers = offers
        self.inboxes: set[QueueName] = set()
        self._count = 0

    async def send(self, batches: Batches) -> None:
        """Raises what went wrong with the first that was not acknowledged; others may have been."""
        posted = (
            self._seams.outbox.posted(topic, partition, records)
            for (topic, partition), records in batches.items()
        )
        for outcome in await asyncio.gather(*posted, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def add_replies(
        self, batches: Batches, effects: Effects, positions: dict[int, int], proven: int
    ) -> None:
        """`positions`: last offset by entry number; `proven`: of the last proven record."""
        number = self._partition.number
        for waiting in effects.replies:
            offset = positions.get(waiting.entry, proven)
            reply = replace(waiting.reply, position=f"{number}:{offset}")
            try:
                target, record = reply_record(reply, waiting.reply_to, source=self._seams.source)
            except ValueError:
                continue  # Nobody can be there: the address is none.
            if target < REPLIES_PARTITIONS:
                batches[self._seams.topics.replies, target].append(record)

    def records(self, effects: Effects, at: Micros) -> Batches:
        """All but the replies, from the partition as the turn left it: the next one may not have
        been decided on it yet, for what that says is not proven."""
        batches: Batches = defaultdict(list)
        for (queue, runtime_id), grants in effects.assignments.items():
            credit = self._offers.heard(queue, RuntimeId(runtime_id))
            if credit is not None:
                items = [self._item(grant.number, grant.job_id, credit, at) for grant in grants]
                self._assign(batches, queue, credit, items, at)
        for queue, credit in effects.resend:
            self._resend(batches, queue, credit, at)
        for heard in effects.beats:
            self._answer(batches, heard, at)
        for job_id in effects.cancels:
            self._push_cancel(batches, job_id, at)
        for operation_id in effects.parts:
            self._tell_parts(batches, operation_id)
        for operation_id, matched in effects.confirmations.items():
            self._confirm_part(batches, operation_id, matched)
        return batches

    def beat_again(self, queues: Iterable[QueueName]) -> Batches:
        """To every runtime of these queues: a new owner knows no free slots."""
        batches: Batches = defaultdict(list)
        number = self._partition.number
        for queue in queues:
            for inbox in range(INBOX_PARTITIONS):
                record = self._inbox_record(OwnerChanged(queue, number), None)
                batches[self._seams.topics.assigned(queue), inbox].append(record)
        return batches

    def claim_again(self) -> Batches:
        """To every gateway: a new owner knows no waiting claims."""
        batches: Batches = defaultdict(list)
        number = self._partition.number
        changed = OwnerChanged(LEDGER_QUEUE, number)
        for partition in range(REPLIES_PARTITIONS):
            record = self._inbox_record(changed, None)
            batches[self._seams.topics.replies, partition].append(record)
        return batches

    # --- Inboxes ---------------------------------------------------------------------------------
    def _item(self, number: int, job_id: JobId, credit: Credit, at: Micros) -> AssignedItem:
        job = self._partition.jobs.get(job_id)
        found = leased_under(job, credit, number) if job else None
        if job is None or found is None:
            return _void(number, job_id, credit)
        step, lease = found
        return AssignedItem(
            number,
            job_id,
            step.name,
            step.attempt,
            lease.fence,
            rfc3339(lease.since),
            rfc3339(lease.until),
            max(0, lease.until - at) / SECOND,
            credit.beat,
            brief_of(job, step, self._output_schema(job, step)),
        )

    def _output_schema(self, job: Job, step: Step) -> Raw | UnsetType:
        version = job.request.template_version
        if version is None:
            return UNSET
        pinned = self._partition.queues[job.request.queue].template(job.request.type, version)
        if pinned is None or pinned.output_schema is None or not gives_the_result(job, step):
            return UNSET
        return pinned.template.output_schema

    def _assign(
        self,
        batches: Batches,
        queue: QueueName,
        credit: Credit,
        items: list[AssignedItem],
        at: Micros,
    ) -> None:
        """Encoded once; what is too large for one record again, in parts that should fit."""
        credit.sent_at = at
        if not items or queue not in self.inboxes:
            return
        content = Assigned(credit.session, queue, tuple(items))
        record = self._inbox_record(content, credit.runtime_id)
        size = len(record[1] or b"")
        if size <= ITEMS_BYTES_MAX or len(items) == 1:
            self._post(batches, queue, credit.runtime_id, record)
            return
        fit = max(1, len(items) * ITEMS_BYTES_MAX // size)
        for first in range(0, len(items), fit):
            self._assign(batches, queue, credit, items[first : first + fit], at)

    def _resend(self, batches: Batches, queue: QueueName, credit: Credit, at: Micros) -> None:
        """What is on record as given and not confirmed, in order; ended ones fill their number."""
        if at < credit.sent_at + RESEND_US:
            return
        outstanding = credit.outstanding
        if len(outstanding) < credit.given - credit.received:
            outstanding.update(self._given_to(queue, credit))
        items = [
            self._item(number, outstanding.get(number, JobId("")), credit, at)
            for number in range(credit.received + 1, credit.given + 1)
        ]
        self._assign(batches, queue, credit, items, at)

    def _given_to(self, queue: QueueName, credit: Credit) -> dict[int, JobId]:
        """By a scan: only where another owner gave them."""
        return {
            lease.number: job.id
            for job in self._partition.jobs.begun()
            if job.request.queue == queue
            for step in job.steps
            if (lease := held_lease(step))
            and lease.session == credit.session
            and lease.runtime_id == credit.runtime_id
        }

    def _answer(self, batches: Batches, heard: Heard, at: Micros) -> None:
        beat = heard.beat
        left, drop, asked = [], [], []
        for held in beat.leases:
            found = news(self._partition, held)
            if found.lease is None:
                if held.job_id not in heard.settled:
                    drop.append(LeaseDropped(held.job_id, held.fence))
                continue
            until = found.lease.until
            left.append(
                LeaseLeft(held.job_id, held.fence, max(0, until - at) / SECOND, rfc3339(until))
            )
            if found.cancel is not None:
                asked.append(_cancel_asked(held.job_id, held.fence, found.cancel, at))
        answer = BeatAnswered(
            session=beat.session,
            queue=beat.queue,
            beat=beat.beat,
            leases=tuple(left),
            drop=tuple(drop),
            cancel=tuple(asked),
            refused=tuple(
                ReportRefused(one.job_id, one.fence, one.code, one.detail)
                for one in heard.refused
                if one.job_id
            ),
        )
        self._put(batches, beat.queue, beat.runtime_id, answer)

    def _push_cancel(self, batches: Batches, job_id: JobId, at: Micros) -> None:
        job = self._partition.jobs.get(job_id)
        for step in job.steps if job else ():
            lease = held_lease(step)
            cancel = cancel_of(job, step) if job is not None else None
            if job is None or lease is None or not lease.session or cancel is None:
                continue
            queue = job.request.queue
            credit = self._offers.heard(queue, lease.runtime_id)
            if credit is None or credit.session != lease.session:
                continue
            asked = _cancel_asked(job_id, lease.fence, cancel, at)
            answer = BeatAnswered(lease.session, queue, credit.beat, cancel=(asked,))
            self._put(batches, queue, lease.runtime_id, answer)

    def _put(
        self, batches: Batches, queue: QueueName, runtime_id: RuntimeId, content: InboxRecord
    ) -> None:
        if queue in self.inboxes:
            self._post(batches, queue, runtime_id, self._inbox_record(content, runtime_id))

    def _post(
        self, batches: Batches, queue: QueueName, runtime_id: RuntimeId, record: Outgoing
    ) -> None:
        target = partition_of(runtime_id, INBOX_PARTITIONS)
        batches[self._seams.topics.assigned(queue), target].append(record)

    def _inbox_record(self, content: InboxRecord, runtime_id: RuntimeId | None) -> Outgoing:
        self._count += 1
        number = self._partition.number
        record_id = f"{number}-{self._partition.entry}-{self._count}"
        return inbox_record(
            content, record_id=record_id, source=self._seams.source, runtime_id=runtime_id
        )

    # --- Other partitions ------------------------------------------------------------------------
    def _tell_parts(self, batches: Batches, operation_id: str) -> None:
        operation = self._partition.bulks.get(operation_id)
        if operation is None or operation.ended or operation.event.kind != "cancel":
            return
        event = operation.event
        where = msgspec.json.decode(event.where, type=Where)
        for number in range(event.partitions):
            if number in operation.confirmed:
                continue
            part = CancelPart(operation_id, number, where, event.reason, event.by)
            record = command_record(
                part, CommandId(f"{operation_id}:{number}"), source=self._seams.source
            )
            batches[self._seams.topics.commands, number].append(record)

    def _confirm_part(self, batches: Batches, operation_id: str, matched: int) -> None:
        number = self._partition.number
        done = ConfirmPart(operation_id, number, matched)
        record = command_record(
            done, CommandId(f"{operation_id}:{number}:done"), source=self._seams.source
        )
        target = partition_of(LEDGER_QUEUE, self._seams.partitions)
        batches[self._seams.topics.commands, target].append(record)


def _cancel_asked(job_id: JobId, fence: Fence, cancel: Cancel, at: Micros) -> CancelAsked:
    seconds = max(0, (cancel.deadline or at) - at) / SECOND
    return CancelAsked(job_id, fence, seconds, cancel.reason)


def _void(number: int, job_id: JobId, credit: Credit) -> AssignedItem:
    return AssignedItem(
        number=number,
        job_id=job_id,
        step=MAIN,
        attempt=0,
        fence=Fence(0),
        lease_since="",
        lease_expires_at="",
        lease_seconds=0,
        beat=credit.beat,
        void=True,
    )
