"""The hash chain over a partition's entries: any edit, removal or reorder breaks it.

hash_k = SHA-256(hash_{k-1} ‖ nonce in force ‖ records of entry k), each record as its key, ce_id,
ce_source, ce_type, ce_time, ce_ledger without its hash, and value, each field as u32 big-endian
length + bytes. hash_0 is empty. Over bytes as stored, never re-serialised.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from struct import Struct

_u32 = Struct(">I").pack
LENGTHS = [_u32(size) for size in range(4096)]
"""Of most fields: packing each length anew costs more than hashing it."""

Fields = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]
"""Key, ce_id, ce_source, ce_type, ce_time, ce_ledger without its hash, value."""


def length_of(size: int) -> bytes:
    """As it stands before a field."""
    return LENGTHS[size] if size < 4096 else _u32(size)


def chained(previous: bytes, nonce: bytes, records: Iterable[Fields]) -> bytes:
    """The hash of the entry that these records are; the plain reference for the hot paths."""
    parts = [previous, nonce]
    for record in records:
        for field in record:
            parts.append(length_of(len(field)))
            parts.append(field)
    return sha256(b"".join(parts)).digest()
