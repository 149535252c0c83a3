"""A job and its history survive being packed."""

from __future__ import annotations

from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from ledger.domain.commands import StartAttempt
from ledger.domain.entries import Proven
from ledger.domain.events import JOB_EVENTS, JobSucceeded, LeasesExtended
from ledger.domain.ids import MAIN, JobId
from ledger.domain.job import Job
from ledger.log.effective import START, EffectiveEntries
from ledger.log.entry_codec import EntryEncoder, take_over_record
from projections.batches import advanced
from projections.gathering import gather
from projections.packing import (
    ABSENT,
    CODES,
    json_of,
    pack_groups,
    pack_request,
    pack_state,
    raw_events,
    unpack_groups,
    unpack_job,
    unpack_request,
)
from projections.unpacking import FOLDED_MAX, is_told_by_history, stored_job
from tests.unit.projections.histories import NOON, Script, plain_job, random_history

SEEDS = range(15)


def packed_and_back(job: Job) -> Job:
    asked = job.request
    request = unpack_request(job.id, pack_request(asked), bytes(asked.payload))
    output = job.result.output if job.result else UNSET
    return unpack_job(request, pack_state(job), None if output is UNSET else bytes(output))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_job_of_a_history_comes_back_as_it_was(seed: int) -> None:
    script = random_history(Random(seed), 150)
    jobs = [job for touched in script.touched for job in touched.values()]
    assert jobs
    for job in jobs:
        assert packed_and_back(job) == job


@pytest.mark.parametrize("seed", SEEDS)
def test_history_comes_back_event_by_event(seed: int) -> None:
    script = random_history(Random(seed), 150)
    rows = gather(script.items, script.at, {})
    assert rows.misfits == script.partition.misfits
    for job_id, part in rows.parts.items():
        job = rows.folded[job_id]
        unpacked = list(unpack_groups(job, job.version, pack_groups(part.groups)))
        assert [logical.seq for logical in unpacked] == list(range(1, job.version + 1))
        at_offset = {
            item.first_offset + place: (event, item)
            for item in script.items
            if isinstance(item, Proven)
            for place, event in enumerate(item.entry.events)
        }
        for logical in unpacked:
            event, item = at_offset[logical.offset]
            if isinstance(event, LeasesExtended):
                mine = tuple(one for one in event.leases if one.job_id == job_id)
                event = replace(event, leases=mine[:1])
            assert logical.event == event
            assert json_of(logical.event) == json_of(event)
            assert logical.cause == item.entry.cause
            assert logical.correlation == item.entry.correlation
            is_last = logical.offset == item.last_offset
            assert logical.hash == (item.hash if is_last else b"")


@pytest.mark.parametrize("seed", SEEDS)
def test_folding_here_is_folding_as_the_owner_does(seed: int) -> None:
    script = random_history(Random(seed), 150)
    rows = gather(script.items, script.items[0].take_over.at, {})  # type: ignore[union-attr]
    last: dict[JobId, Job] = {}
    for touched in script.touched:
        last |= touched
    assert rows.folded == last


def test_payload_and_output_are_not_in_the_packed_bytes() -> None:
    script = Script()
    job = script.partition.job(plain_job(script))
    assert job is not None
    assert job.result is not None
    for packed in (pack_request(job.request), pack_state(job)):
        assert b"sent" not in packed
        assert b'"to"' not in packed
    unread = unpack_job(
        unpack_request(job.id, pack_request(job.request), None), pack_state(job), None
    )
    assert unread.request.payload is ABSENT
    assert unread.result is not None
    assert unread.result.output is ABSENT


def test_a_result_without_output_comes_back_without() -> None:
    script = Script()
    job_id = script.submit()
    [granted] = script.grant()
    script.do(StartAttempt(job_id, granted.fence))
    event = JobSucceeded(job_id, MAIN, granted.fence, 1, "x", UNSET)
    script.append((event,))
    job = script.touched[-1][job_id]
    assert packed_and_back(job) == job
    rows = gather(script.items, script.at, {})
    *_, last = unpack_groups(job, job.version, pack_groups(rows.parts[job_id].groups))
    assert last.event == event


def test_histories_are_equal_however_they_were_cut() -> None:
    script = random_history(Random(3), 120)
    whole = gather(script.items, script.at, {})
    half = len(script.items) // 2
    first = gather(script.items[:half], script.at, {})
    second = gather(script.items[half:], first.at, first.folded)
    for job_id, part in whole.parts.items():
        version = whole.folded[job_id].version
        expected = list(raw_events(version, pack_groups(part.groups)))
        stretches = [
            pack_groups(r.parts[job_id].groups) for r in (second, first) if job_id in r.parts
        ]
        assert list(raw_events(version, b"".join(stretches))) == expected
        events: list[object] = []
        for stretch in reversed(stretches):
            many = len(list(raw_events(0, stretch)))
            events += raw_events(len(events) + many, stretch)
        assert events == expected


def test_every_event_of_a_job_has_a_code_of_its_own() -> None:
    assert len(set(CODES.values())) == len(JOB_EVENTS) + 1


def test_a_cursor_moves_as_a_reader_of_the_log_does() -> None:
    class At:
        topic, partition, timestamp = "t", 0, 0

        def __init__(self, offset: int, outgoing: tuple[object, ...]) -> None:
            self.offset = offset
            self.key, self.value, self.headers = outgoing

    script = random_history(Random(5), 60)
    reader = EffectiveEntries("t", 0)
    cursor, offset, previous, nonce = START, 0, b"", ""
    for item in script.items:
        if isinstance(item, Proven):
            encoder = EntryEncoder(partition=0, ledger_id="ledger-1", nonce=nonce)
            encoded = encoder.encode(item.entry, previous)
            previous, records = encoded.hash, encoded.records
        else:
            nonce = item.take_over.nonce
            records = [take_over_record(item.take_over, partition=0)]
        found = []
        for record in records:
            found += reader.feed_all([At(offset, record)])  # type: ignore[list-item]
            offset += 1
        cursor = advanced(cursor, found)
        assert cursor == reader.cursor


@pytest.mark.parametrize("size", [0, 100, 254, 255, 256, 70_000])
def test_a_stretch_is_put_together_however_long_its_parts_are(size: int) -> None:
    parts = [[[NOON, "a", "c", None, b"", [place, "odd", b"x" * size]]] for place in range(3)]
    whole = b"".join(map(pack_groups, reversed(parts)))
    events = [(seq, *event) for seq, *event in raw_events(9, whole)]
    assert [seq for seq, *_ in events] == [7, 8, 9]
    assert [event[-1] for event in events] == [[place, "odd", b"x" * size] for place in range(3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plain_job_of_few_events_is_told_by_its_history(seed: int) -> None:
    script = random_history(Random(seed), 150)
    rows = gather(script.items, script.items[0].take_over.at, {})  # type: ignore[union-attr]
    told = {key: job for key, job in rows.folded.items() if is_told_by_history(job)}
    assert told
    for job_id, job in told.items():
        asked, result = job.request, job.result
        output = None if result is None or result.output is UNSET else bytes(result.output)
        history = pack_groups(rows.parts[job_id].groups)
        row = (None, output, pack_request(asked), bytes(asked.payload), history)
        assert stored_job(job_id, *row) == job
    assert all(job.version > FOLDED_MAX for key, job in rows.folded.items() if key not in told)
