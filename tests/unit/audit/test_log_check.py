"""A log that is not what it was says so, and where; one that its owners left so is right."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ledger.audit.log_check import LogCheck, Noted, Report
from ledger.domain.entries import Entry, TakeOver
from ledger.domain.ids import Micros
from ledger.log.chain import chained
from ledger.log.errors import LogBroken
from tests.support.written_log import (
    BEGUN,
    DAMAGES,
    TOPIC,
    Records,
    a_few_jobs,
    numbered,
    records_of,
    rewritten,
)

LOG = records_of(a_few_jobs())


def report(records: Records, *noted: Noted, told_from: int = 0, is_end: bool = True) -> Report:
    check = LogCheck(TOPIC, 0, told_from=told_from, noted=noted)
    try:
        check.read(records)
    except LogBroken as error:
        check.broke(error)
    return check.report(records[-1].offset + 1, is_end=is_end)


def test_a_log_of_its_owners_is_sound() -> None:
    found = report(LOG)
    assert found.is_sound, found
    assert found.end == len(LOG)
    assert found.ignored == {}
    assert found.verdict.events == len(LOG) - found.verdict.take_overs
    assert found.verdict.take_overs == 2
    assert found.entry == found.verdict.entries
    assert len(found.hash) == 64


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_located(name: str) -> None:
    damaged, at = DAMAGES[name](LOG)
    found = report(damaged)
    assert not found.is_sound
    assert found.broken_at == at, found.broken
    assert f"[0] at offset {at}:" in found.broken


def test_records_that_were_moved_with_their_offsets_are_found() -> None:
    assert report([*LOG[:5], LOG[6], LOG[5], *LOG[7:]]).broken_at in (5, 6)


# --- What somebody saw before --------------------------------------------------------------------
def seen(records: Records) -> Noted:
    found = report(records)
    return Noted(0, found.entry, found.hash, "an auditor")


def test_a_log_that_grew_still_holds_what_was_seen() -> None:
    early = [record for record in LOG if record.offset < 12]
    assert report(LOG, seen(early)).is_sound
    assert report(LOG, seen(LOG), seen(early)).is_sound


def test_a_log_that_was_cut_off_between_entries_is_found_by_what_was_seen() -> None:
    end = next(r.offset for r in LOG if dict(r.headers)["ce_ledger"].startswith(b"9;"))  # type: ignore[union-attr]
    assert report(LOG[:end]).is_sound  # By itself it is whole.
    found = report(LOG[:end], seen(LOG))
    assert found.broken_at == end
    assert "the log ends with entry 8, and an auditor saw" in found.broken


def test_a_log_that_was_rolled_back_and_went_on_is_found_by_what_was_seen() -> None:
    other = rewritten(LOG)
    assert report(other).is_sound
    found = report(other, seen(LOG))
    assert found.broken_at is not None
    assert "is not the one that an auditor saw: another history" in found.broken
    assert other[found.broken_at].headers != LOG[found.broken_at].headers


# --- What owners may leave -----------------------------------------------------------------------
def test_a_hole_that_its_owner_took_over_is_none() -> None:
    """Its second append was acknowledged late and lost, the third had landed: it took over, and
    went on behind the last that counted."""
    items = a_few_jobs()
    entries = [item for item in items if isinstance(item, Entry)]
    before = records_of([BEGUN, *entries[:3]])
    lost = records_of([BEGUN, *entries[:5]])[-1]
    again = TakeOver("again", Micros(entries[3].at), "test", 1)
    hash_before = report(before).hash
    after = records_of([again, *entries[3:]], hash_before=bytes.fromhex(hash_before))
    found = report(numbered([*before, lost, *after]))
    assert found.is_sound, found
    assert found.ignored == {"out_of_sequence": 1}
    # While nobody has taken it over, it may as well be damage.
    assert report(numbered([*before, lost])).broken_at == len(before)
    # Nor did an owner take over with it who goes on as if it were not there.
    beyond = records_of([again, *entries[4:]], hash_before=bytes.fromhex(hash_before))
    assert report(numbered([*before, lost, *beyond])).broken_at == len(before)


def test_a_zombies_entries_are_no_damage() -> None:
    items = a_few_jobs()
    take_overs = [place for place, item in enumerate(items) if isinstance(item, TakeOver)]
    entry = items[take_overs[1] + 1]
    assert isinstance(entry, Entry)
    zombie = records_of([BEGUN, replace(entry, actor="zombie")])[1:]
    place = next(r.offset for r in LOG[1:] if dict(r.headers)["ce_ledger"].startswith(b"0;"))  # type: ignore[union-attr]
    place += 1
    found = report(numbered([*LOG[:place], *zombie, *LOG[place:]]))
    assert found.is_sound, found
    assert found.ignored == {"foreign": len(zombie)}


def test_a_range_that_ends_within_an_entry_is_not_cut_off() -> None:
    damaged, at = DAMAGES["cut off within an entry"](LOG)
    assert report(damaged).broken_at == at
    assert report(damaged, is_end=False).is_sound


# --- What the rules say --------------------------------------------------------------------------
def broken_rule() -> Records:
    """The last entry comes twice, under the next number: its job ends a second time."""
    items = a_few_jobs()
    last = items[-1]
    assert isinstance(last, Entry)
    return records_of([*items, replace(last, number=last.number + 1)])


def test_a_violation_names_its_entries_by_their_places() -> None:
    records = broken_rule()
    (violation, *_) = report(records).verdict.violations
    assert violation.rule == "I10"
    assert violation.offset == len(LOG)
    assert violation.position == int(report(records).entry)


def test_of_a_range_only_what_lies_in_it_is_told() -> None:
    records = broken_rule()
    inside = report(records, told_from=len(LOG))
    assert inside.verdict.violation_count == report(records).verdict.violation_count > 0
    assert inside.verdict.entries == 1
    beyond = report(records, told_from=len(records))
    assert (beyond.verdict.entries, beyond.verdict.violation_count) == (0, 0)


def test_a_record_under_another_key_is_named() -> None:
    """The chain holds: its owner wrote it so."""
    last = LOG[-1]
    bare, _, _ = (dict(last.headers)["ce_ledger"] or b"").rpartition(b";")
    headers = {**dict(last.headers), "ce_ledger": bare}
    fields = [b"elsewhere"]
    fields += [headers[name] or b"" for name in ("ce_id", "ce_source", "ce_type", "ce_time")]
    fields += [bare, last.value or b""]
    nonce = bare.split(b";")[2]
    digest = chained(bytes.fromhex(report(LOG[:-1]).hash), nonce, [tuple(fields)])  # type: ignore[list-item]
    headers["ce_ledger"] = bare + b";" + digest.hex().encode()
    moved = replace(last, key=b"elsewhere", headers=list(headers.items()))
    found = report([*LOG[:-1], moved])
    assert not found.broken
    (violation,) = found.verdict.violations
    assert (violation.rule, violation.offset) == ("I3", last.offset)
    assert violation.detail == "ledger.job.cancelled.v1 under the key 'elsewhere'"
