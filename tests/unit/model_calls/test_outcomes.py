"""What a status or a broken connection means for the job."""

from __future__ import annotations

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.domain.ids import SECOND, Micros, parse_rfc3339
from processors.model_calls.outcomes import (
    RETRY_AFTER_SECONDS_MAX,
    RETRYABLE,
    CallFailed,
    failure_of_error,
    failure_of_status,
    retry_after_seconds,
)

NOW = parse_rfc3339("2026-11-03T10:00:00Z")


def failed(status: int, retry_after: str | None = None) -> CallFailed:
    found = failure_of_status(status, retry_after, NOW)
    assert found is not None
    return found


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_so_a_model_says_yes(status: int) -> None:
    assert failure_of_status(status, None, NOW) is None


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (101, "MODEL_REJECTED", False),
        (300, "MODEL_REJECTED", False),
        (301, "REDIRECT_REFUSED", False),
        (302, "REDIRECT_REFUSED", False),
        (303, "REDIRECT_REFUSED", False),
        (304, "MODEL_REJECTED", False),
        (307, "REDIRECT_REFUSED", False),
        (308, "REDIRECT_REFUSED", False),
        (400, "MODEL_REJECTED", False),
        (401, "INVALID_CREDENTIAL", False),
        (403, "INVALID_CREDENTIAL", False),
        (404, "MODEL_REJECTED", False),
        (408, "TEMPORARY_PROVIDER_ERROR", True),
        (409, "MODEL_REJECTED", False),
        (413, "MODEL_REJECTED", False),
        (422, "MODEL_REJECTED", False),
        (425, "TEMPORARY_PROVIDER_ERROR", True),
        (429, "MODEL_RATE_LIMIT", True),
        (500, "TEMPORARY_PROVIDER_ERROR", True),
        (501, "MODEL_REJECTED", False),
        (502, "TEMPORARY_PROVIDER_ERROR", True),
        (503, "TEMPORARY_PROVIDER_ERROR", True),
        (504, "TEMPORARY_PROVIDER_ERROR", True),
        (505, "MODEL_REJECTED", False),
        (529, "TEMPORARY_PROVIDER_ERROR", True),
        (599, "TEMPORARY_PROVIDER_ERROR", True),
    ],
)
def test_a_status_has_a_code(status: int, code: str, retryable: bool) -> None:
    found = failed(status)
    assert (found.code, found.retryable) == (code, retryable)
    assert found.details == {"status": status}
    assert str(status) in found.message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("0", 0),
        ("9" * 400, RETRY_AFTER_SECONDS_MAX),
        ("9" * 5000, RETRY_AFTER_SECONDS_MAX),
        ("Tue, 03 Nov 2026 10:02:00 GMT", 120),
        ("Tue, 03 Nov 2026 10:02:00 -0000", 120),
        ("Tue, 03 Nov 2026 11:02:00 +0100", 120),
        ("Tue, 03 Nov 2026 09:00:00 GMT", 0),
        ("Fri, 31 Dec 2999 00:00:00 GMT", RETRY_AFTER_SECONDS_MAX),
        (None, None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("\u0667", None),
        ("Tue, 99 Nov 2026 10:02:00 GMT", None),
        ("Tue, 03 Nov 99999999999999999999 10:02:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(text, NOW) == seconds


@given(text=st.text(max_size=60), now=st.integers(0, 4_000_000_000 * SECOND))
def test_retry_after_is_always_bounded(text: str, now: int) -> None:
    found = retry_after_seconds(text, Micros(now))
    assert found is None or 0 <= found <= RETRY_AFTER_SECONDS_MAX


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_a_model_may_say_when_to_come_again(status: int) -> None:
    assert failed(status, "30").retry_after_seconds == 30


@pytest.mark.parametrize("status", [400, 401, 302, 501])
def test_there_is_no_again_after_a_failure_for_good(status: int) -> None:
    assert failed(status, "30").retry_after_seconds is None


@pytest.mark.parametrize(
    "kind",
    [
        httpcore.ConnectError,
        httpcore.ConnectTimeout,
        httpcore.ReadError,
        httpcore.WriteError,
        httpcore.RemoteProtocolError,
        httpcore.LocalProtocolError,
    ],
)
def test_a_broken_connection_is_retried_and_its_text_is_not_told(kind: type[Exception]) -> None:
    found = failure_of_error(kind("Illegal header value b'canary'"))
    assert (found.code, found.retryable) == ("NETWORK_ERROR", True)
    assert "canary" not in found.message


def test_the_retryable_codes_are_those_of_the_requirements() -> None:
    again = {"MODEL_TIMEOUT", "MODEL_RATE_LIMIT", "NETWORK_ERROR", "TEMPORARY_PROVIDER_ERROR"}
    assert again == RETRYABLE
