"""Lists come by `limit` and `cursor`, or by `page` and `page_size`; never by both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from api.bodies import JobsQuery, Paging
from api.problems import invalid

LIMIT_DEFAULT = 50
T = TypeVar("T")


class Numbered(Struct, frozen=True, gc=False):
    """A page by its number."""

    page: int
    page_size: int

    @property
    def before(self) -> int:
        """How many stand on the pages before it."""
        return (self.page - 1) * self.page_size


class Keyed(Struct, frozen=True, gc=False):
    """What comes after a cursor."""

    limit: int
    cursor: str | None


def page_of(query: Paging | JobsQuery) -> Numbered | Keyed:
    if query.page is None and query.page_size is None:
        return Keyed(query.limit or LIMIT_DEFAULT, query.cursor)
    for name in ("limit", "cursor"):
        if getattr(query, name) is not None:
            raise invalid(f"/{name}", "excludes page and page_size")
    return Numbered(query.page or 1, query.page_size or LIMIT_DEFAULT)


def total_pages(total: int, page_size: int) -> int:
    return -(-total // page_size)


def after_cursor(
    items: Sequence[T], key: Callable[[T], str], page: Keyed
) -> tuple[tuple[T, ...], str | None]:
    """Of a short list that is sorted by `key`: the part, and the cursor of the next."""
    after = page.cursor
    left = [item for item in items if after is None or key(item) > after]
    part = tuple(left[: page.limit])
    return part, key(part[-1]) if len(left) > page.limit else None
