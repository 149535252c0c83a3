"""One take-over of a partition and the appends that it entitles to: the heart of the protocol."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from ledger.domain.entries import Entry, Proven, TakeOver
from ledger.domain.ids import Micros
from ledger.log.connection import BATCH_BYTES_MAX, ENTRY_BYTES_MAX, Connection
from ledger.log.crash_points import reach
from ledger.log.effective import START, Cursor, Effective, EffectiveEntries, TakenOver
from ledger.log.entries_reader import EntriesReader
from ledger.log.entry_codec import EncodedEntry, EntryEncoder, take_over_record
from ledger.log.errors import (
    EntryTooLarge,
    Fenced,
    LedgerMismatch,
    LogTruncated,
    LogUnavailable,
    OutcomeUnknown,
    TakeOverAgain,
    TermEnded,
)
from ledger.log.producer import Appended, Batch, Producer
from ledger.log.topics import Topics

Apply = Callable[[Sequence[Effective]], None]

THIS_PROCESS = secrets.token_hex(4)
"""Begins the nonces of this process, by which it knows a late take-over of its own."""


class Term:
    """Everything since one take-over. Made by `take_over`; ended by its first failure or `close`.

    `append` may be called again while an earlier call is in flight: entries stay in order. After
    any error but `EntryTooLarge` and `ValueError` the term has ended: further appends raise
    `TermEnded`, and only a new take-over, with what was folded dropped, may go on.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        partition: int,
        *,
        producer: Producer,
        effective: EffectiveEntries,
        owner: str,
        taken_over: Appended,
    ) -> None:
        if taken_over.offset is None:
            raise ValueError("a take-over without an offset proves nothing")
        self._connection = connection
        self._topics = topics
        self._producer = producer
        self._owner = owner
        self._cursor = cursor = effective.cursor
        self._encoder = EntryEncoder(
            partition=partition, ledger_id=cursor.ledger_id, nonce=cursor.nonce
        )
        self.partition = partition
        self.nonce = cursor.nonce
        self.end = taken_over.offset + 1
        """The offset at which this term's next record is expected."""
        self.appended_at = taken_over.at or Micros(0)
        """The broker's clock at the newest acknowledged append."""
        # Of the newest entry handed over, proven or not.
        self._tip_entry = cursor.entry
        self._tip_hash = cursor.hash
        self._sending = asyncio.Lock()
        self._proving = asyncio.Lock()
        self._ended_by: BaseException | None = None

    @classmethod
    async def take_over(
        cls,
        connection: Connection,
        topics: Topics,
        partition: int,
        *,
        ledger_id: str,
        partitions: int,
        at: Callable[[], Micros],
        apply: Apply,
        cursor: Cursor = START,
        owner: str = THIS_PROCESS,
    ) -> Term:
        """Read the log to its end, append the take-over, read up to it: `apply` has had every
        effective item from `cursor` up to and including the own take-over, in order.

        `at` is asked right before the append, when all that was there by then has been applied.
        `owner` names the process (letters, digits, `_`, `-`). Raises `LedgerMismatch`, before
        anything is written if the log says so already; `OutcomeUnknown` and `AppendRefused` of the
        append; `TakeOverAgain` if the record does not count; `LogUnavailable` if no broker answers;
        and what `EntriesReader` raises. After any error what was applied must be dropped.
        """
        producer = Producer(connection, f"owner-{partition}")
        await producer.start()
        nonce = f"{owner}-{secrets.token_hex(6)}"
        try:
            async with EntriesReader(connection, topics, partition, cursor) as reader:
                async for items in reader.batches(await reader.end()):
                    apply(items)
                _check_ledger(reader.effective, topics.events, ledger_id, partitions)
                take_over = TakeOver(nonce, at(), ledger_id, partitions)
                appended = await _append_take_over(producer, topics, partition, take_over)
                offset = appended.offset
                if offset is None:
                    raise OutcomeUnknown("the take-over was acknowledged without an offset")
                if offset < reader.position:
                    raise LogTruncated(_place(topics, partition, offset, reader.position))
                async for items in reader.batches(offset + 1):
                    apply(items)
                _check_ledger(reader.effective, topics.events, ledger_id, partitions)
                if reader.effective.nonce != nonce:
                    raise TakeOverAgain(f"the take-over at offset {offset} does not count")
                return cls(
                    connection,
                    topics,
                    partition,
                    producer=producer,
                    effective=reader.effective,
                    owner=owner,
                    taken_over=appended,
                )
        except BaseException:
            await producer.close()
            raise

    @property
    def entry(self) -> int:
        """Number of the last proven entry; 0: none yet."""
        return self._cursor.entry

    @property
    def hash(self) -> bytes:
        """Of the chain up to `entry`."""
        return self._cursor.hash

    @property
    def cursor(self) -> Cursor:
        """To resume reading after `entry`: for a snapshot of proven state."""
        return self._cursor

    @property
    def next_entry(self) -> int:
        """The number that the next entry handed to `append` must carry."""
        return self._tip_entry + 1

    @property
    def ended(self) -> bool:
        return self._ended_by is not None

    def fits(self, entry: Entry) -> bool:
        """Whether it is small enough. Encodes it: ask only of entries that may be large."""
        return self._encoder.encode(entry, b"").size <= ENTRY_BYTES_MAX

    async def append(self, entries: Sequence[Entry]) -> list[Proven]:
        """Append whole entries and prove that they stand; their effects may then be released.

        Raises `EntryTooLarge` and ValueError (numbers that do not continue) before anything is
        sent; `Fenced`, `TakeOverAgain`, `LogTruncated`, `OutcomeUnknown`, `AppendRefused` end the
        term, as does a cancellation.
        """
        self._require_alive()
        if not entries:
            return []
        encoded = self._encoded(entries)
        batches = [self._batch(group) for group in _grouped(encoded)]
        self._tip_entry, self._tip_hash = entries[-1].number, encoded[-1].hash
        try:
            async with self._sending:
                self._require_alive()
                sent = [
                    await self._producer.send(self._topics.events, self.partition, batch)
                    for batch in batches
                ]
            reach("append.before_acknowledgement")
            async with self._proving:
                self._require_alive()
                proven: list[Proven] = []
                for batch, under_way in zip(batches, sent, strict=True):
                    appended = await self._producer.acknowledged(under_way)
                    reach("append.before_proof")
                    count = len(proven)
                    of_batch = _of_batch(entries[count:], encoded[count:], batch.count)
                    proven += await self._proven(of_batch, batch.count, appended)
                return proven
        except LogUnavailable as error:
            self._ended_by = error
            raise OutcomeUnknown(str(error)) from error
        except BaseException as error:
            self._ended_by = self._ended_by or error
            raise

    async def close(self) -> None:
        """Bounded; what is in flight counts as unknown."""
        self._ended_by = self._ended_by or TermEnded("closed")
        await self._producer.close()

    def _require_alive(self) -> None:
        if self._ended_by is not None:
            raise TermEnded(f"this term has ended: {self._ended_by!r}") from self._ended_by

    def _encoded(self, entries: Sequence[Entry]) -> list[EncodedEntry]:
        number, previous = self._tip_entry, self._tip_hash
        encoded = []
        for entry in entries:
            number += 1
            if entry.number != number:
                raise ValueError(f"entry {entry.number} does not continue {number - 1}")
            found = self._encoder.encode(entry, previous)
            if found.size > ENTRY_BYTES_MAX:
                raise EntryTooLarge(number, found.size, ENTRY_BYTES_MAX)
            encoded.append(found)
            previous = found.hash
        return encoded

    def _batch(self, group: Sequence[EncodedEntry]) -> Batch:
        records = [record for encoded in group for record in encoded.records]
        return self._producer.batch(records, timestamp=self.appended_at // 1000)

    async def _proven(
        self, entries: Sequence[tuple[Entry, EncodedEntry]], count: int, appended: Appended
    ) -> list[Proven]:
        """By the offset that the broker acknowledged for a batch of `count` records."""
        base = appended.offset
        if base is None:
            raise OutcomeUnknown("the append was acknowledged without an offset")
        if base < self.end:
            raise LogTruncated(_place(self._topics, self.partition, base, self.end))
        if base == self.end:
            proven = _placed(entries, base)
        else:
            proven = await self._proven_by_reading(entries, base + count)
        last = proven[-1]
        self._cursor = replace(
            self._cursor,
            offset=last.last_offset + 1,
            entry=last.entry.number,
            hash=last.hash,
            hash_offset=last.last_offset,
        )
        self.end = base + count
        self.appended_at = max(self.appended_at, appended.at or Micros(0))
        return proven

    async def _proven_by_reading(
        self, entries: Sequence[tuple[Entry, EncodedEntry]], until: int
    ) -> list[Proven]:
        """Somebody wrote in between: what stands is what every reader will find."""
        found: list[Proven] = []
        reader = EntriesReader(self._connection, self._topics, self.partition, self._cursor)
        async with reader:
            async for items in reader.batches(until):
                for item in items:
                    if isinstance(item, TakenOver):
                        raise self._overtaken(item)
                    found.append(item)
        if reader.effective.ignored.doubled:
            # It counts for nothing, yet whoever sent it late may have sent more.
            raise TakeOverAgain("a take-over landed once more")
        if [each.hash for each in found] != [encoded.hash for _, encoded in entries]:
            raise OutcomeUnknown("the entries do not stand where they were acknowledged")
        return found

    def _overtaken(self, by: TakenOver) -> TermEnded:
        nonce = by.take_over.nonce
        if nonce.startswith(f"{self._owner}-"):
            return TakeOverAgain(f"an earlier take-over of one's own landed at {by.offset}")
        return Fenced(f"{nonce} took over at offset {by.offset}")


async def _append_take_over(
    producer: Producer, topics: Topics, partition: int, take_over: TakeOver
) -> Appended:
    batch = producer.batch(
        [take_over_record(take_over, partition=partition)], timestamp=take_over.at // 1000
    )
    reach("take_over.before_record")
    try:
        sent = await producer.send(topics.events, partition, batch)
        appended = await producer.acknowledged(sent)
    except LogUnavailable as error:
        raise OutcomeUnknown(f"the take-over: {error}") from error
    reach("take_over.after_record")
    return appended


def _check_ledger(effective: EffectiveEntries, topic: str, ledger_id: str, partitions: int) -> None:
    first = effective.cursor
    if not first.ledger_id or (first.ledger_id, first.partitions) == (ledger_id, partitions):
        return
    raise LedgerMismatch(
        f"{topic} is the log of ledger {first.ledger_id} with {first.partitions} partitions, "
        f"not of {ledger_id} with {partitions}"
    )


def _grouped(encoded: Iterable[EncodedEntry]) -> Iterable[list[EncodedEntry]]:
    """Cut into what one batch holds; an entry never spans two."""
    group: list[EncodedEntry] = []
    size = 0
    for entry in encoded:
        if size + entry.size > BATCH_BYTES_MAX and group:
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def _of_batch(
    entries: Sequence[Entry], encoded: Sequence[EncodedEntry], count: int
) -> list[tuple[Entry, EncodedEntry]]:
    """The first entries, as many as make `count` records."""
    found = []
    for entry, code in zip(entries, encoded, strict=True):
        if not count:
            break
        count -= len(code.records)
        found.append((entry, code))
    return found


def _placed(entries: Sequence[tuple[Entry, EncodedEntry]], base: int) -> list[Proven]:
    proven = []
    for entry, encoded in entries:
        last = base + len(encoded.records) - 1
        proven.append(Proven(entry, base, last, encoded.hash))
        base = last + 1
    return proven


def _place(topics: Topics, partition: int, offset: int, expected: int) -> str:
    return (
        f"{topics.events}[{partition}]: appended at offset {offset}, expected {expected} or later: "
        "acknowledged records are gone"
    )
