"""Removal of all objects of an owner: a fact in `_ledger`, done by the cleaner, ended by a fact."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import Raw

from ledger.domain.commands import Asked, ConfirmRemoved, RemoveObjects
from ledger.domain.decisions import Decided, Decision
from ledger.domain.events import BulkEnded, BulkStarted
from ledger.domain.ids import LEDGER_QUEUE
from ledger.domain.partition import Partition
from ledger.domain.rejections import Rejected, Rejection


def start(partition: Partition, command: RemoveObjects, asked: Asked) -> Decision:
    if not command.user:
        return Rejected(Rejection.VALIDATION_FAILED, "say whose objects", pointer="/user")
    if command.project == "":
        return Rejected(Rejection.VALIDATION_FAILED, "an empty name", pointer="/project")
    operation_id = f"op_{sha256(asked.command_id.encode()).hexdigest()[:32]}"
    if operation_id in partition.bulks:
        return Decided(operation_id=operation_id, replayed=True)
    started = BulkStarted(
        queue=LEDGER_QUEUE,
        operation_id=operation_id,
        kind="remove_objects",
        where=Raw(msgspec.json.encode(command)),
        partitions=0,
        by=asked.actor,
    )
    return Decided((started,), operation_id=operation_id)


def end(partition: Partition, command: ConfirmRemoved) -> Decision:
    operation = partition.bulks.get(command.operation_id)
    if operation is None:
        detail = f"there is no operation {command.operation_id}"
        return Rejected(Rejection.OPERATION_NOT_FOUND, detail)
    if operation.ended:
        return Decided(operation_id=command.operation_id)
    ended = BulkEnded(LEDGER_QUEUE, command.operation_id, command.removed)
    return Decided((ended,), operation_id=command.operation_id)
