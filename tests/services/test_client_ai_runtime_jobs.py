"""examples/ai_runtime_jobs as a user would run it, with a model that fails first."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from ledger.client import Auditor, Producer, Refused
from ledger.domain.events import AttemptFailed, JobSucceeded
from tests.support.ledger import PATIENCE_SECONDS, Ledger, ledger_on

pytestmark = pytest.mark.services

EXAMPLE = Path(__file__).parents[2] / "examples" / "ai_runtime_jobs"
ANSWER = {"questions": [{"question": "Why tides?", "choices": ["moon", "wind"], "answer": 0}]}


class Model(BaseHTTPRequestHandler):
    """Unavailable at first, then it answers."""

    asked: list[tuple[str, str, object]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, self.headers["Idempotency-Key"], body["params"]))
        answer = json.dumps(ANSWER).encode()
        self.send_response(200 if len(self.asked) > 1 else 503)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def model() -> Iterator[ThreadingHTTPServer]:
    Model.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
async def ledger(bootstrap: str, topic_prefix: str) -> AsyncIterator[Ledger]:
    async with ledger_on(bootstrap, topic_prefix) as ledger:
        yield ledger


async def started(ledger: Ledger, script: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE / script),
        ledger.connection.bootstrap,
        *arguments,
        env={**os.environ, "LEDGER_PREFIX": ledger.topics.prefix},
        stdout=asyncio.subprocess.PIPE,
    )


async def said(process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


async def test_a_quiz_is_asked_for_and_made(ledger: Ledger, model: ThreadingHTTPServer) -> None:
    async with ledger.owner():
        first = (await said(await started(ledger, "submit.py"))).split(maxsplit=2)
        again = (await said(await started(ledger, "submit.py"))).split(maxsplit=2)
        runtime = await started(ledger, "runtime.py", f"http://127.0.0.1:{model.server_port}")
        events = await ledger.until(lambda events: any(isinstance(e, JobSucceeded) for e in events))
        runtime.send_signal(signal.SIGTERM)
        await said(runtime)
    job_id = first[0]
    assert (first[2], again) == ("a new job", [job_id, "pending", "the same job"])
    assert [e.code for e in events if isinstance(e, AttemptFailed)] == ["TEMPORARY_PROVIDER_ERROR"]
    async with Auditor(ledger.connection, prefix=ledger.topics.prefix) as auditor:
        job = await auditor.job(job_id)
    assert job is not None
    assert (job["result"]["output"], job["attempt"], job["max_attempts"]) == (ANSWER, 2, 4)
    assert Model.asked == [
        ("/quiz_generation", f"{job_id}:{fence}", {"count": 3}) for fence in (1, 2)
    ]


async def test_a_key_belongs_to_user_type_and_target(ledger: Ledger) -> None:
    async with (
        ledger.owner(),
        Producer(ledger.connection, prefix=ledger.topics.prefix, wait_seconds=20) as producer,
    ):
        for file in (EXAMPLE / "templates").glob("*.json"):
            template = json.loads(file.read_text(encoding="utf-8"))
            await producer.put_template(template.pop("queue"), template.pop("type"), template)

        async def ask(type: str, user: str, target: str, snapshot: str = "same") -> str:
            payload = {"snapshot_id": snapshot, "snapshot": {}, "params": {"count": 1}}
            labels = {"user": user, "target_type": "material", "target_id": target}
            accepted = await producer.submit(
                type, payload, queue="ai", labels=labels, idempotency_key="k"
            )
            return accepted.job_id

        first = await ask("quiz_generation", "ada", "m-1")
        assert await ask("quiz_generation", "ada", "m-1") == first
        others = {
            await ask("quiz_generation", "bob", "m-1"),
            await ask("quiz_generation", "ada", "m-2"),
            await ask("flashcard_generation", "ada", "m-1"),
        }
        assert len(others | {first}) == 4
        with pytest.raises(Refused, match="IDEMPOTENCY_KEY_REUSED"):
            await ask("quiz_generation", "ada", "m-1", "other")
