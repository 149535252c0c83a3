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


class Lengths(dict[int, bytes]):
    """As each stands before its field. Those of most fields are kept: packing one anew costs more
    than hashing it."""

    def __missing__(self, size: int) -> bytes:
        return _u32(size)


LENGTHS = Lengths((size, _u32(size)) for size in range(4096))

Fields = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]
"""Key, ce_id, ce_source, ce_type, ce_time, ce_ledger without its hash, value."""


def chained(previous: bytes, nonce: bytes, records: Iterable[Fields]) -> bytes:
    """The hash of the entry that these records are; the plain reference for the hot paths."""
    parts = [previous, nonce]
    for record in records:
        for field in record:
            parts.append(LENGTHS[len(field)])
            parts.append(field)
    return sha256(b"".join(parts)).digest()
