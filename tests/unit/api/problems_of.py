"""Reads problems out of answers."""

from __future__ import annotations

import httpx


def code_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code; checks that the answer is a whole problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert {"type", "title", "status", "detail", "code"} <= problem.keys()
    assert problem["detail"]
    return answer.status_code, problem["code"]


def pointers(answer: httpx.Response) -> list[str]:
    return [one["pointer"] for one in answer.json()["errors"]]
