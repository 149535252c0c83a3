"""The HTTP api as the commands use it; refusals become errors with an exit code."""

from __future__ import annotations

import json
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
EVENT_SECONDS = 60.0
"""A stream says something, if only that it lives, more often than this."""
RECONNECTS_MAX = 5

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

    def post(self, path: str, body: Json, *, headers: dict[str, str] | None = None) -> Json:
        """Raises CommandError with UNDECIDED for a 202 that has no decision yet."""
        response = self._http.post(path, json=body, headers=headers or {})
        answer = _answer(response)
        if response.status_code == 202 and "command_id" in answer:
            raise CommandError(
                f"the command {answer['command_id']} is in the log, and no decision came in time",
                fix="a worker decides it: is one running? repeating with the same --key is safe",
                exit_code=Exit.UNDECIDED,
            )
        return answer

    def events(self, job_id: str) -> Iterator[Json]:
        """A job's events from its beginning, as they happen; reconnects where the stream breaks."""
        last_id = ""
        failures = 0
        while True:
            headers = {"accept": "text/event-stream"}
            if last_id:
                headers["last-event-id"] = last_id
            try:
                with self._http.stream(
                    "GET", f"/v1/jobs/{job_id}/events", headers=headers, timeout=EVENT_SECONDS
                ) as response:
                    if response.status_code != 200:
                        response.read()
                        _answer(response)
                    for event_id, data in _server_sent(response.iter_lines()):
                        last_id = event_id or last_id
                        failures = 0
                        yield json.loads(data)
            except httpx.TransportError:
                failures += 1
                if failures > RECONNECTS_MAX:
                    raise


def _server_sent(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """(id, data) of each event."""
    event_id = ""
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield event_id, "\n".join(data)
            event_id, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            event_id = value
        elif name == "data":
            data.append(value)


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
