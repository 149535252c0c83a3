"""Text as Postgres can hold it. It refuses NUL and lone surrogates, and an index entry has a bound;
what is in the log already must be projected all the same, escaped and marked.

Columns hold storable text and serve to find rows; what a job says stays exact in its packed state.
"""

from __future__ import annotations

from hashlib import sha256

MARK = "\ufffd"
"""Begins a text that is not as it stands in the log."""
BYTES_MAX = 1024
"""Of one text in an indexed column; three of them must fit an index entry of 2,704 bytes."""
KEPT_MAX = 200


def storable(text: str) -> str:
    """The text itself in all but broken cases, else `MARK` and an escaped form. Different texts
    stay different; of a text that is too long the digest stands for the rest."""
    if text.isascii() and len(text) <= BYTES_MAX and "\x00" not in text:
        return text
    raw = text.encode("utf-8", "surrogatepass")
    fits = len(raw) <= BYTES_MAX
    if fits and "\x00" not in text and not text.startswith(MARK) and not _has_surrogate(text):
        return text
    escaped = "".join(map(_escaped, text if fits else text[:KEPT_MAX]))
    if fits and len(escaped) <= BYTES_MAX:
        return MARK + escaped
    return f"{MARK}{escaped[:KEPT_MAX]}…{sha256(raw).hexdigest()}"


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character == "\x00" or "\ud800" <= character <= "\udfff":
        return f"\\u{ord(character):04x}"
    return character
