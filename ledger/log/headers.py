"""CloudEvents 1.0 in Kafka binary mode: the attributes are record headers."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.ids import Micros, rfc3339_micros
from ledger.log.records import Header, ReadHeader

SPECVERSION: Header = ("ce_specversion", b"1.0")
JSON: Header = ("content-type", b"application/json")


def cloud_event(
    *,
    record_id: str,
    source: str,
    record_type: str,
    at: Micros | None = None,
    reply_to: str = "",
    actor: str = "",
    traceparent: str = "",
) -> list[Header]:
    """Of a record that is no entry; what is empty or None is left out."""
    headers = [
        SPECVERSION,
        ("ce_id", record_id.encode()),
        ("ce_source", source.encode()),
        ("ce_type", record_type.encode()),
        JSON,
    ]
    if at is not None:
        headers.append(("ce_time", rfc3339_micros(at).encode()))
    if reply_to:
        headers.append(("ce_replyto", reply_to.encode()))
    if actor:
        headers.append(("ce_actor", actor.encode()))
    if traceparent:
        headers.append(("traceparent", traceparent.encode()))
    return headers


def text_header(headers: Sequence[ReadHeader], name: str) -> str:
    """Empty if absent or not UTF-8."""
    for key, value in headers:
        if key == name and value is not None:
            try:
                return value.decode()
            except UnicodeDecodeError:
                return ""
    return ""
