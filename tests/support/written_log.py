"""A partition's records as owners write them, and what may be done to them behind their back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from ledger.domain.commands import (
    Beat,
    CancelJob,
    Report,
    ReportedResult,
    ReportedStart,
    RequestJob,
)
from ledger.domain.entries import Entry, TakeOver
from ledger.domain.ids import Micros, Session
from ledger.log.archive import ArchivedRecord, ArchiveWriter, archive_name
from ledger.log.entry_codec import EntryEncoder, take_over_record
from ledger.log.records import Outgoing
from tests.support.builders import ADA, OK, QUEUE
from tests.support.clock import NOON
from tests.support.given import Owner

TOPIC = "ledger.events.v1"
S1 = Session("s1")
BEGUN = TakeOver("first", NOON, "test", 1)
Records = list[ArchivedRecord]


def records_of(
    items: Iterable[Entry | TakeOver], *, partition: int = 0, hash_before: bytes = b""
) -> Records:
    """One behind the other, chained; the first is to be a take-over."""
    written: list[Outgoing] = []
    encoder: EntryEncoder | None = None
    for item in items:
        if isinstance(item, TakeOver):
            encoder = EntryEncoder(partition=partition, ledger_id="test", nonce=item.nonce)
            written.append(take_over_record(item, partition=partition))
            continue
        assert encoder is not None
        encoded = encoder.encode(item, hash_before)
        hash_before = encoded.hash
        written += encoded.records
    return [
        ArchivedRecord(offset, NOON // 1_000 + offset, key, value, list(headers))
        for offset, (key, value, headers) in enumerate(written)
    ]


def a_few_jobs(jobs: int = 6) -> list[Entry | TakeOver]:
    """By the rules: assigned, started and done in entries of several records, one cancelled; the
    partition is taken over in the middle."""
    owner = Owner()
    owner.hear(owner.asked(Beat(ADA, S1, QUEUE, 1, ("echo",), 10)))
    for number in range(jobs):
        owner.clock.pass_seconds(1)
        decided = owner.hear(owner.asked(RequestJob("echo", QUEUE, OK)))
        if number == jobs - 1:
            owner.hear(owner.asked(CancelJob(decided.job_id)))  # type: ignore[arg-type]
            break
        if number == jobs // 2:
            owner.take_over()
        for grant in owner.assign(ADA, S1, 1):
            words = (
                ReportedStart(grant.job_id, grant.fence),
                ReportedResult(grant.job_id, grant.fence, OK),
            )
            owner.hear(owner.asked(Report(ADA, S1, QUEUE, words)))
    return [BEGUN, *owner.entries]


def archived(records: Records, directory: Path, *, first: int = 0, partition: int = 0) -> Path:
    path = directory / archive_name(TOPIC, partition, first)
    with ArchiveWriter(path, topic=TOPIC, partition=partition, first=first) as writer:
        writer.write(records)
        writer.finish(records[-1].offset + 1 if records else first)
    return path


# --- Behind the owners' back ---------------------------------------------------------------------
def numbered(records: Iterable[ArchivedRecord]) -> Records:
    """Anew, so that nothing shows by the offsets."""
    return [replace(record, offset=offset) for offset, record in enumerate(records)]


def _entry(record: ArchivedRecord) -> int:
    """0: a take-over."""
    packed = dict(record.headers)["ce_ledger"]
    assert packed is not None
    return int(packed.partition(b";")[0])


def _first_of(records: Records, number: int) -> int:
    return next(r.offset for r in records if _entry(r) == number)


def _edited(records: Records) -> tuple[Records, int]:
    at = _first_of(records, 4)
    forged = replace(records[at], value=(records[at].value or b"").replace(b"a", b"b", 1))
    return [*records[:at], forged, *records[at + 1 :]], at


def _header_edited(records: Records) -> tuple[Records, int]:
    at = _first_of(records, 5)
    headers = [
        (n, b"1999-01-01T00:00:00Z" if n == "ce_time" else v) for n, v in records[at].headers
    ]
    return [*records[:at], replace(records[at], headers=headers), *records[at + 1 :]], at


def _entry_removed(records: Records) -> tuple[Records, int]:
    at = _first_of(records, 6)
    return numbered(r for r in records if _entry(r) != 6), at


def _of_several(records: Records) -> int:
    """Where the first entry of several records begins."""
    return next(
        before.offset for before, here in pairwise(records) if _entry(before) == _entry(here) > 0
    )


def _record_removed(records: Records) -> tuple[Records, int]:
    """The second of an entry of two."""
    at = _of_several(records) + 1
    return numbered([*records[:at], *records[at + 1 :]]), at


def _take_over_removed(records: Records) -> tuple[Records, int]:
    at = [r.offset for r in records if _entry(r) == 0][1]
    return numbered([*records[:at], *records[at + 1 :]]), at


def _first_take_over_removed(records: Records) -> tuple[Records, int]:
    return numbered(records[1:]), 0


def _entries_swapped(records: Records) -> tuple[Records, int]:
    at = _first_of(records, 2)
    one = [r for r in records if _entry(r) == 2]
    two = [r for r in records if _entry(r) == 3]
    rest = records[at + len(one) + len(two) :]
    return numbered([*records[:at], *two, *one, *rest]), at


def _records_swapped(records: Records) -> tuple[Records, int]:
    """Within one entry."""
    at = _of_several(records)
    return numbered([*records[:at], records[at + 1], records[at], *records[at + 2 :]]), at


def _cut_off_within(records: Records) -> tuple[Records, int]:
    """Behind the first record of an entry of two."""
    at = _of_several(records)
    return records[: at + 1], at


def _forged_at_the_end(records: Records) -> tuple[Records, int]:
    at = len(records)
    last = records[-1]
    ledger = dict(last.headers)["ce_ledger"] or b""
    number, rest = ledger.split(b";", 1)
    forged = b"%d;" % (int(number) + 1) + rest
    headers = [(n, forged if n == "ce_ledger" else v) for n, v in last.headers]
    return [*records, replace(last, offset=at, headers=headers)], at


DAMAGES: dict[str, Callable[[Records], tuple[Records, int]]] = {
    "an edited value": _edited,
    "an edited header": _header_edited,
    "an entry removed": _entry_removed,
    "a record removed": _record_removed,
    "a take-over removed": _take_over_removed,
    "the first take-over removed": _first_take_over_removed,
    "entries in another order": _entries_swapped,
    "records in another order": _records_swapped,
    "cut off within an entry": _cut_off_within,
    "an entry forged at the end": _forged_at_the_end,
}
"""What each leaves, and the offset that is to be named."""


def rewritten(records: Records) -> Records:
    """Another history in its place: valid by itself, as long, and not the one that was seen."""
    items = a_few_jobs()
    at = Micros(NOON + 1)
    forged = [
        replace(i, actor="mallory") if isinstance(i, Entry) and i.at > at else i for i in items
    ]
    again = records_of(forged)
    assert len(again) == len(records)
    return again
