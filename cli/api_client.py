"""The HTTP api as the commands use it; refusals become errors with an exit code."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import httpx
import typer

from cli.outcome import CommandError, Exit
from cli.servers import api_of
from cli.settings import load_settings

ApiUrl = Annotated[
    str | None,
    typer.Option("--api-url", help="Where the api is; else LEDGER_API_URL, else `ledger dev`'s."),
]

ANSWER_SECONDS = 40.0
"""Above the longest that the api itself waits."""
LOOK_SECONDS = 0.3
"""Between two looks at a job that is watched."""
RECONNECTS_MAX = 10
RECONNECT_SECONDS = 1.0
PAGE = 200

Json = dict[str, Any]
Params = Sequence[tuple[str, str]]


@contextmanager
def api_client(api_url: str | None) -> Iterator[ApiClient]:
    base = api_of(load_settings(api_url=api_url))
    with httpx.Client(base_url=base, timeout=ANSWER_SECONDS) as http:
        yield ApiClient(http)


class ApiClient:
    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def get(self, path: str, params: Params = ()) -> Json:
        return _answer(self._http.get(path, params=tuple(params)))

    def all_of(self, path: str, params: Params = ()) -> list[Json]:
        """A whole list: of what is never many."""
        items: list[Json] = []
        cursor: str | None = None
        while True:
            page = [("limit", str(PAGE)), *([("cursor", cursor)] if cursor else [])]
            found = self.get(path, [*params, *page])
            items += found["items"]
            cursor = found["next_cursor"]
            if cursor is None:
                return items

    def post(
        self, path: str, body: Json | None = None, *, headers: dict[str, str] | None = None
    ) -> Json:
        return self._write("POST", path, body, headers)

    def put(self, path: str, body: Json) -> Json:
        return self._write("PUT", path, body)

    def delete(self, path: str) -> Json:
        return self._write("DELETE", path)

    def _write(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
    ) -> Json:
        """Raises CommandError with UNDECIDED for a 202 that has no decision yet."""
        response = self._http.request(method, path, json=body, headers=headers or {})
        answer = _answer(response)
        if response.status_code == 202 and "command_id" in answer:
            raise CommandError(
                f"the command {answer['command_id']} is in the log, and no decision came in time",
                fix="a worker decides it: is one running? repeating with the same --key is safe",
                exit_code=Exit.UNDECIDED,
            )
        return answer

    def history(self, job_id: str) -> list[Json]:
        """All that has happened to a job so far, oldest first."""
        events: list[Json] = []
        cursor: str | None = None
        while True:
            page = self._history_page(job_id, cursor)
            events += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return events

    def events(self, job_id: str) -> Iterator[Json]:
        """A job's events from its beginning, as they happen, without end. Looks again and again:
        what it shows is what the pages show, whatever lies between here and the api."""
        cursor: str | None = None
        seen = 0
        failures = 0
        while True:
            try:
                page = self._history_page(job_id, cursor)
            except httpx.TransportError:
                failures += 1
                if failures > RECONNECTS_MAX:
                    raise
                time.sleep(RECONNECT_SECONDS)
                continue
            failures = 0
            for event in page["items"]:
                if event["seq"] > seen:
                    seen = event["seq"]
                    yield event
            if page["next_cursor"] is None:
                time.sleep(LOOK_SECONDS)
            else:
                cursor = page["next_cursor"]

    def _history_page(self, job_id: str, cursor: str | None) -> Json:
        params = [("limit", str(PAGE)), *([("cursor", cursor)] if cursor else [])]
        return self.get(f"/v1/jobs/{job_id}/events", params)


def _answer(response: httpx.Response) -> Json:
    """Raises CommandError for what is no success."""
    try:
        content = response.json()
    except ValueError:
        content = {"detail": response.text[:500]}
    if response.is_success:
        return content if isinstance(content, dict) else {"value": content}
    raise CommandError(_problem_text(response, content), exit_code=_exit_code(response.status_code))


def _exit_code(status: int) -> Exit:
    if status == 404:
        return Exit.NOT_FOUND
    return Exit.REFUSED if 400 <= status < 500 else Exit.UNAVAILABLE


def _problem_text(response: httpx.Response, problem: Any) -> str:
    if not isinstance(problem, dict):
        problem = {}
    code = problem.get("code") or f"HTTP {response.status_code}"
    lines = [f"{code}: {problem.get('detail') or problem.get('title') or response.reason_phrase}"]
    lines += [f"  {e.get('pointer') or '/'}: {e.get('message')}" for e in problem.get("errors", [])]
    lines += [f"  {name}: {problem[name]}" for name in ("job_id", "job_status") if name in problem]
    return "\n".join(lines)
