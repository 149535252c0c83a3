"""Archives give back what was written, and say where they do not."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from msgspec.structs import replace

from ledger.audit.log_check import LogCheck, Report
from ledger.audit.sources import ArchiveSource, archive_sources
from ledger.log.archive import Archive, ArchivedRecord, ArchiveWriter, NoArchive
from ledger.log.errors import LogBroken
from tests.support.written_log import TOPIC, a_few_jobs, archived, records_of

LOG = records_of(a_few_jobs())


def read(path: Path) -> list[ArchivedRecord]:
    return [record for block in Archive(path).blocks() for record in block]


def verified(*paths: Path) -> Report:
    (source,) = archive_sources(paths).values()
    return source.run(LogCheck(TOPIC, 0), None, lambda records, position, end: None)


def test_records_come_back_byte_for_byte(tmp_path: Path) -> None:
    odd = [
        ArchivedRecord(7, 1, None, None, [("a", None), ("b", b"\xff\x00")]),
        ArchivedRecord(9, 2, b"", b"", []),
    ]
    with ArchiveWriter(tmp_path / "odd", topic="t", partition=3, first=7) as writer:
        writer.write(odd)
        writer.finish(12)
    archive = Archive(tmp_path / "odd")
    assert (archive.topic, archive.partition, archive.first) == ("t", 3, 7)
    assert [record for block in archive.blocks() for record in block] == odd
    assert archive.end == 12


def test_many_blocks_are_one_log(tmp_path: Path) -> None:
    many = [replace(LOG[0], offset=offset) for offset in range(2_500)]
    path = archived(many, tmp_path)
    assert [len(block) for block in Archive(path).blocks()] == [1_000, 1_000, 500]
    assert read(path) == many


def test_an_empty_log_has_an_archive(tmp_path: Path) -> None:
    path = archived([], tmp_path)
    assert read(path) == []
    assert verified(path).is_sound


@pytest.mark.parametrize("missing", [1, 9, 60, 400])
def test_a_file_that_was_cut_off_is_seen_to_be(tmp_path: Path, missing: int) -> None:
    path = archived(LOG, tmp_path)
    path.write_bytes(path.read_bytes()[:-missing])
    with pytest.raises(LogBroken, match=r"archive is (cut off here|damaged from here on)"):
        read(path)
    assert not verified(path).is_sound


def test_a_writer_that_was_stopped_leaves_a_file_that_says_so(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "a", topic=TOPIC, partition=0, first=0) as writer:
        writer.write([replace(LOG[0], offset=offset) for offset in range(1_500)])
    with pytest.raises(LogBroken, match="at offset 1000: the archive is cut off here"):
        read(tmp_path / "a")


def test_a_byte_that_was_changed_is_noticed(tmp_path: Path) -> None:
    path = archived(LOG, tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = verified(path)
    assert found.broken_at is not None
    assert not found.is_sound


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"no line of JSON", mtime=0),
        gzip.compress(b'{"format":"other/1"}\n', mtime=0),
    ],
)
def test_another_file_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(NoArchive, match="is no archive"):
        Archive(path)


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    head = b'{"format":"ledger-archive/2","topic":"t","partition":0,"first":0}\n'
    (tmp_path / "later").write_bytes(gzip.compress(head))
    with pytest.raises(NoArchive, match="this version reads ledger-archive/1"):
        Archive(tmp_path / "later")


# --- Several of one partition --------------------------------------------------------------------
def test_files_of_one_partition_are_one_log(tmp_path: Path) -> None:
    """Cut anywhere, in the middle of an entry too, and named in any order."""
    whole = verified(archived(LOG, tmp_path))
    for cut in range(1, len(LOG)):
        first = archived(LOG[:cut], tmp_path)
        second = archived(LOG[cut:], tmp_path, first=cut)
        assert verified(second, first) == whole
        second.unlink()


def test_what_is_missing_between_or_before_is_named(tmp_path: Path) -> None:
    first = archived(LOG[:5], tmp_path)
    last = archived(LOG[8:], tmp_path, first=8)
    found = verified(first, last)
    assert found.broken_at == 5
    assert "an archive is missing before" in found.broken
    assert verified(last).broken_at == 0


def test_partitions_are_told_apart(tmp_path: Path) -> None:
    paths = [archived(LOG, tmp_path, partition=number) for number in (2, 0)]
    assert archive_sources(paths) == {
        0: ArchiveSource((paths[1],)),
        2: ArchiveSource((paths[0],)),
    }
