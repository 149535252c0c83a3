"""ETags: a job's is its version. `If-None-Match` spares an answer, `If-Match` guards a write."""

from __future__ import annotations

import re

from msgspec import Struct

_VERSION = re.compile(r"[1-9][0-9]{0,14}")
_TAG = re.compile(r'\s*(W/)?"([^"]*)"\s*')


class Tags(Struct, frozen=True, gc=False):
    """What a condition names."""

    any: bool
    """`*`"""
    strong: frozenset[str]
    weak: frozenset[str]

    @property
    def versions(self) -> frozenset[int]:
        """Of the strong tags, those that a job can have."""
        return frozenset(int(tag) for tag in self.strong if _VERSION.fullmatch(tag))


def etag(version: int) -> str:
    return f'"{version}"'


def tags_from(text: str) -> Tags:
    """What is no tag matches nothing."""
    if text.strip() == "*":
        return Tags(True, frozenset(), frozenset())
    found = [match for part in text.split(",") if (match := _TAG.fullmatch(part))]
    strong = frozenset(match.group(2) for match in found if not match.group(1))
    weak = frozenset(match.group(2) for match in found if match.group(1))
    return Tags(False, strong, weak)


def spares(if_none_match: str | None, version: int) -> bool:
    """Whether the caller has this version already (weak comparison, as RFC 9110 says)."""
    if if_none_match is None:
        return False
    tags = tags_from(if_none_match)
    return tags.any or str(version) in tags.strong | tags.weak
