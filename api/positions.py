"""How far an answer is true: `partition:offset[,…]`, asked for and told in headers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from api.problems import refused

Positions = Mapping[int, int]
"""Offset of the last record included, by partition; -1: none yet."""

_ONE = re.compile(r"\s*(\d{1,6}):(-1|\d{1,19})\s*")


def position_text(positions: Positions) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def parse_positions(text: str, partitions: int) -> dict[int, int]:
    """Raises `Refused` for what is no position of a ledger with so many partitions.

    Of a partition that stands twice the later offset counts: lists may be joined by a comma.
    """
    positions: dict[int, int] = {}
    for one in text.split(","):
        match = _ONE.fullmatch(one)
        if match is None or int(match.group(1)) >= partitions:
            raise refused(
                "VALIDATION_FAILED",
                "Ledger-Min-Position is not partition:offset[,…] of this ledger",
            )
        partition, offset = int(match.group(1)), int(match.group(2))
        positions[partition] = max(offset, positions.get(partition, -1))
    return positions


class Seen:
    """The last proven positions that this process heard of. They never go back."""

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}

    def note(self, text: str) -> None:
        """`text` as the log's own parts write it; what is not a position is passed over."""
        for one in text.split(","):
            if match := _ONE.fullmatch(one):
                self.note_one(int(match.group(1)), int(match.group(2)))

    def note_one(self, partition: int, offset: int) -> None:
        if offset > self._offsets.get(partition, -1):
            self._offsets[partition] = offset

    def offsets(self, partition: int | None = None) -> dict[int, int]:
        """Of one partition, else of all that it heard of."""
        if partition is None:
            return dict(self._offsets)
        offset = self._offsets.get(partition)
        return {} if offset is None else {partition: offset}

    def text(self, partition: int | None = None) -> str:
        """Of one partition, else of all; empty if nothing was heard yet."""
        if partition is None:
            return position_text(self._offsets)
        offset = self._offsets.get(partition)
        return "" if offset is None else f"{partition}:{offset}"
