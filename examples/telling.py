"""What the stories are told with: plain lines, claims that are checked, and an HTTP client."""

import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import httpx

Json = dict[str, Any]
PATIENCE_SECONDS = 20.0


def tell(text: str) -> None:
    print(text, flush=True)


def expect(claim: str, is_so: object) -> None:
    """Ends the story if it is not so."""
    if not is_so:
        fail(f"not so: {claim}")
    tell(f"  = {claim}")


def show_history(job_id: str) -> None:
    """`make example` shows what the command says."""
    tell(f"$ ledger job history {job_id}")


def fail(text: str) -> NoReturn:
    sys.exit(f"story: {text}")


class Api:
    """The ledger over HTTP. Reads, poll among them, are at least as new as the last answer."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=40)
        self._position = ""

    def get(self, path: str, **params: Any) -> Json:
        return self._call("GET", path, params=params)

    def post(self, path: str, body: Json | None = None) -> Json:
        return self._call("POST", path, json=body or {})

    def attempt(self, path: str, body: Json) -> Json:
        """The answer of a POST, whatever it is, with its HTTP status as `http`."""
        answer = self._http.post(path, json=body)
        return {**answer.json(), "http": answer.status_code}

    def put(self, path: str, body: Json) -> Json:
        return self._call("PUT", path, json=body)

    def delete(self, path: str) -> Json:
        return self._call("DELETE", path)

    def refused(self, code: str, path: str, body: Json | None = None) -> Json:
        """The problem that a POST is answered with, of this code and no other."""
        answer = self._http.post(path, json=body or {})
        problem: Json = answer.json()
        if problem.get("code") != code:
            fail(f"POST {path} was to be refused with {code}: {answer.status_code} {answer.text}")
        tell(f"  = refused: {answer.status_code} {code}, {problem.get('detail')}")
        return problem | {"headers": dict(answer.headers)}

    def job(self, job_id: str) -> Json:
        return self.get(f"/v1/jobs/{job_id}")

    def until(self, job_id: str, is_so: Callable[[Json], object]) -> Json:
        """The job, once it is so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so(job := self.job(job_id)):
            if time.monotonic() > deadline:
                fail(f"waited {PATIENCE_SECONDS:g} s in vain: {job}")
            time.sleep(0.05)
        return job

    def ended(self, job_id: str) -> Json:
        return self.until(job_id, lambda job: job["finished_at"])

    def events(self, job_id: str) -> list[Json]:
        """Its history; a hundred events at most. Types less `ledger.job.` and `.v1`."""
        items = self.get(f"/v1/jobs/{job_id}/events", limit=100)["items"]
        short = [item["type"].removeprefix("ledger.job.").removesuffix(".v1") for item in items]
        return [item | {"type": type_} for item, type_ in zip(items, short, strict=True)]

    def _call(self, method: str, path: str, **options: Any) -> Json:
        headers = {"Ledger-Min-Position": self._position} if self._position else {}
        answer = self._http.request(method, path, headers=headers, **options)
        if answer.is_error:
            fail(f"{method} {path}: {answer.status_code} {answer.text}")
        self._position = answer.headers.get("Ledger-Position", self._position)
        found: Json = answer.json()
        return found
