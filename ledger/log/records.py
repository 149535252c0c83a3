"""A record as the log hands it out, and as it is handed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Header = tuple[str, bytes]
ReadHeader = tuple[str, bytes | None]
"""Kafka has headers without a value."""
Outgoing = tuple[bytes | None, bytes | None, Sequence[Header]]
"""Key, value, headers."""


class LogRecord(Protocol):
    """What readers of the events log use of a record, wherever it lies."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Milliseconds; the broker's clock on topics with LogAppendTime."""
        ...

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[ReadHeader]: ...


class Record(LogRecord, Protocol):
    """What a consumer hands out; aiokafka's `ConsumerRecord` is one."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
