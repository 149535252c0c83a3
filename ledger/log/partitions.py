"""Where a queue lies: one rule for every writer, always passed explicitly."""

from __future__ import annotations

from functools import lru_cache

from aiokafka.partitioner import murmur2

PARTITIONS_DEFAULT = 16
REPLIES_PARTITIONS = 16
INBOX_PARTITIONS = 8


@lru_cache(maxsize=65_536)
def partition_of(key: str, count: int) -> int:
    """The partition of `count` that `key` hashes to, as Java's and aiokafka's default says."""
    return int(murmur2(key.encode()) & 0x7FFF_FFFF) % count
