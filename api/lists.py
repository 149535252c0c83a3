"""Answers of lists that are read whole, and given out by cursor or by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from starlette.responses import Response

from api.answers import json_response
from api.bodies import Paging
from api.paging import Numbered, after_cursor, page_of, total_pages
from api.positions import Positions, position_text

T = TypeVar("T")


def list_response(
    query: Paging,
    items: Iterable[T],
    key: Callable[[T], str],
    positions: Positions,
    *,
    listed: Callable[[tuple[T, ...], str | None], Any],
    paged: Callable[..., Any],
) -> Response:
    """By `key`, which no two have in common and which is the cursor."""
    wanted = page_of(query)
    ordered = sorted(items, key=key)
    position = position_text(positions)
    if isinstance(wanted, Numbered):
        page = paged(
            items=tuple(ordered[wanted.before : wanted.before + wanted.page_size]),
            page=wanted.page,
            page_size=wanted.page_size,
            total=len(ordered),
            total_pages=total_pages(len(ordered), wanted.page_size),
            total_exact=True,
        )
        return json_response(page, position=position)
    return json_response(listed(*after_cursor(ordered, key, wanted)), position=position)
