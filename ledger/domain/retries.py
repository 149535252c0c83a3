"""What templates, steps and requests say of retries, as one policy."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from ledger.domain.commands import RetryAsk
from ledger.domain.failures import Retry
from ledger.domain.ids import micros


def merged_retry(template: RetryAsk, request: RetryAsk | UnsetType) -> Retry:
    """The request's words over the template's over the defaults."""
    merged: dict[str, Any] = {}
    for ask in (template, request):
        if ask is UNSET:
            continue
        for name in RetryAsk.__struct_fields__:
            value = getattr(ask, name)
            if value is UNSET:
                continue
            if name == "backoff_seconds":
                merged["backoff_us"] = tuple(micros(b) for b in value)
            else:
                merged[name] = value
    return Retry(**merged) if merged else DEFAULT_RETRY


DEFAULT_RETRY = Retry()
