"""From the filters of a query to those of the read side."""

from __future__ import annotations

from api.bodies import JobFilters
from api.problems import invalid
from ledger.domain.ids import Micros, parse_rfc3339
from projections.answers import JobFilter


def filter_of(query: JobFilters) -> JobFilter:
    """Raises `Refused`."""
    since, until = query.created_from, query.created_to
    return JobFilter(
        queues=query.queue,
        types=query.type,
        statuses=query.status,
        labels=query.label,
        scope=query.scope,
        error_code=query.error_code,
        retried_from=query.retried_from,
        schedule=query.schedule,
        created_from=None if since is None else instant("created_from", since),
        created_to=None if until is None else instant("created_to", until),
    )


def instant(name: str, text: str) -> Micros:
    """Of the parameter of that name. Raises `Refused`."""
    try:
        return parse_rfc3339(text)
    except (ValueError, OverflowError):
        raise invalid(f"/{name}", "no instant as RFC 3339 writes it, with its zone") from None
