"""Where a partition's records are read from: a broker, or archives. Each runs a `LogCheck`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from ledger.audit.log_check import LogCheck, Report
from ledger.log.archive import Archive, ArchivedRecord, ArchiveWriter, NoArchive, archive_name
from ledger.log.connection import Connection
from ledger.log.effective import Cursor
from ledger.log.entries_reader import EntriesReader
from ledger.log.errors import LogBroken
from ledger.log.topics import Topics

Progress = Callable[[int, int, int | None], None]
"""Told how many records were read since the last time, the offset reached, and the end if known."""


class ArchiveSource(Struct, frozen=True):
    """Files of one partition, one behind the other."""

    paths: tuple[Path, ...]

    def run(self, check: LogCheck, until: int | None, progress: Progress) -> Report:
        position = 0
        is_cut = False
        try:
            for block in self._blocks():
                records = [r for r in block if until is None or r.offset < until]
                check.read(records)
                position = block[-1].offset + 1
                progress(len(records), position, until)
                if until is not None and position >= until:
                    position, is_cut = until, True
                    break
        except LogBroken as error:
            check.broke(error)
        return check.report(position, is_end=not is_cut)

    def _blocks(self) -> Iterator[list[ArchivedRecord]]:
        expected = 0
        for path in self.paths:
            archive = Archive(path)
            if archive.first != expected:
                what = f"nothing before {archive.first}: an archive is missing before {path.name}"
                raise LogBroken(archive.topic, archive.partition, expected, what)
            yield from filter(None, archive.blocks())
            expected = archive.end or 0


class BrokerSource(Struct, frozen=True):
    """`connect` may be called in another process."""

    connect: Callable[[], Connection]
    topics: Topics
    partition: int

    def run(self, check: LogCheck, until: int | None, progress: Progress) -> Report:
        return asyncio.run(self.read(check, until, progress))

    async def read(
        self,
        check: LogCheck,
        until: int | None = None,
        progress: Progress = lambda records, position, end: None,
    ) -> Report:
        position = 0
        is_cut = False
        try:
            async with EntriesReader(self.connect(), self.topics, self.partition) as reader:
                log_end = await reader.end()
                end = log_end if until is None else min(until, log_end)
                is_cut = end < log_end
                async for records in reader.records(end):
                    check.read(records)
                    progress(len(records), reader.position, end)
                    position = reader.position
                position = reader.position
        except LogBroken as error:
            check.broke(error)
        return check.report(position, is_end=not is_cut)


Source = ArchiveSource | BrokerSource


def archive_sources(paths: Iterable[Path]) -> dict[int, ArchiveSource]:
    """By partition. Raises `NoArchive`."""
    found: dict[int, list[Archive]] = {}
    for path in paths:
        archive = Archive(path)
        found.setdefault(archive.partition, []).append(archive)
    for partition, archives in found.items():
        if len({archive.topic for archive in archives}) > 1:
            raise NoArchive(f"the archives of partition {partition} are of several topics")
    return {
        partition: ArchiveSource(tuple(a.path for a in sorted(archives, key=lambda a: a.first)))
        for partition, archives in sorted(found.items())
    }


async def archive_log(
    connection: Connection,
    topics: Topics,
    partition: int,
    directory: Path,
    *,
    first: int = 0,
    until: int | None = None,
    progress: Progress = lambda records, position, end: None,
) -> tuple[Path, int, int]:
    """The file, how many records it holds, and the offset behind the last."""
    path = directory / archive_name(topics.events, partition, first)
    many, position = 0, first
    cursor = Cursor(offset=first)
    async with EntriesReader(connection, topics, partition, cursor) as reader:
        log_end = await reader.end()
        end = log_end if until is None else min(until, log_end)
        with ArchiveWriter(path, topic=topics.events, partition=partition, first=first) as writer:
            async for records in reader.records(end):
                writer.write(records)
                many, position = many + len(records), reader.position
                progress(len(records), position, end)
            writer.finish(max(end, first))
    return path, many, max(end, first)
