"""Calls of models by real processes: a worker, the api, runtimes, and a model on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from psycopg import sql
from typer.testing import CliRunner

from cli.local import answers
from cli.main import app
from ledger.embedded.processes import Child, free_ports
from ledger.log.offsets import Offsets
from ledger.sealing.keyring import generate_key
from ledger.sealing.sealed import key_id_of
from tests.support import services as backends
from tests.support.processes import Cluster
from tests.support.scripted_model import (
    Received,
    Script,
    ScriptedModel,
    Write,
    always,
    answer,
    scripted_model,
)
from tests.support.services import Services

pytestmark = pytest.mark.services

PATIENCE_SECONDS = 40.0
PARTITIONS = 2
TERMINAL = ("succeeded", "failed", "cancelled", "expired")
Json = dict[str, Any]


class Calls:
    """A ledger whose runtimes call models, all of them processes; shared by the tests here."""

    def __init__(self, cluster: Cluster, objects: Path) -> None:
        self.cluster = cluster
        self.objects = objects
        self.api = ""
        self.started = 0

    def start(self) -> None:
        self.cluster.worker()
        api, self.api = self.cluster.api()
        _ready(api, "the api", f"{self.api}/readyz")
        self.runtime("calls")

    def runtime(self, name: str) -> Child:
        """Ready to take jobs, if there is a model."""
        [port] = free_ports(1)
        words = ("--only", "model-calls", "--health-port", str(port))
        child = self.cluster.worker(name, *words)
        _ready(child, name, f"http://127.0.0.1:{port}/readyz")
        return child


def _ready(child: Child, name: str, url: str) -> None:
    child.wait_until(lambda _: answers(url), name=name, seconds=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def calls(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("model-calls")
    name = f"t{secrets.token_hex(4)}"
    dsn = backends.create_database(services.postgres, name)
    settings = {
        "LEDGER_KAFKA": services.bootstrap,
        "LEDGER_POSTGRES": dsn,
        "LEDGER_PREFIX": f"{name}.",
        "LEDGER_PARTITIONS": str(PARTITIONS),
        "LEDGER_OBJECTS": str(directory / "objects"),
        "LEDGER_SEALING_KEYS": f"test:{generate_key()}",
        "LEDGER_MODEL_ALLOW": "loopback",
        "LEDGER_MODEL_SLOTS": "3",
    }
    cluster = Cluster(services.bootstrap, dsn, f"{name}.", PARTITIONS, directory)
    with pytest.MonkeyPatch.context() as environment:
        for variable, value in settings.items():
            environment.setenv(variable, value)
        asyncio.run(cluster.prepare())
        calls = Calls(cluster, directory / "objects")
        try:
            calls.start()
            yield calls
        finally:
            cluster.stop()
            backends.drop_database(services.postgres, name)
            backends.delete_topics(services.bootstrap, f"{name}.")


class User:
    """Puts models and asks for calls, as anybody does over HTTP."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.heard: list[str] = []
        """Every answer."""

    async def put(self, name: str, base_url: str, **fields: Any) -> Json:
        body = {"base_url": base_url, "retry": {"max_attempts": 1}, **fields}
        return await self.said("PUT", f"/v1/models/{name}", body)

    async def call(self, name: str, payload: object = None, **fields: Any) -> str:
        body = {"payload": {} if payload is None else payload, **fields}
        return str((await self.said("POST", f"/v1/models/{name}/calls", body))["id"])

    async def job(self, job_id: str) -> Json:
        return await self.said("GET", f"/v1/jobs/{job_id}")

    async def ended(self, job_id: str) -> Json:
        return await self.until(job_id, *TERMINAL)

    async def until(self, job_id: str, *statuses: str) -> Json:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                job = await self.job(job_id)
                if job["status"] in statuses:
                    return job
                await asyncio.sleep(0.05)  # Between two looks.

    async def history(self, job_id: str) -> list[Json]:
        items: list[Json] = (await self.said("GET", f"/v1/jobs/{job_id}/events"))["items"]
        return items

    async def said(self, method: str, path: str, body: object = None) -> Json:
        found = await self.http.request(method, path, json=body)
        self.heard.append(f"{found.headers!r} {found.text}")
        assert found.is_success, found.text
        return dict(found.json())


@pytest.fixture
async def user(calls: Calls) -> AsyncIterator[User]:
    async with httpx.AsyncClient(base_url=calls.api, timeout=PATIENCE_SECONDS) as http:
        yield User(http)


class Held:
    """A script that answers when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.came = asyncio.Semaphore(0)

    async def __call__(self, received: Received, writer: Write) -> None:
        self.came.release()
        await self.go.wait()
        writer.write(answer())
        await writer.drain()

    async def arrived(self, many: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(many):
                await self.came.acquire()


def in_turn(*wires: bytes) -> Script:
    """Each request gets the next one; what comes after the last, the last."""
    left = list(wires)

    async def script(received: Received, writer: Write) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()

    return script


class Silent:
    """A script that never answers; the model waits until the caller hangs up."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    async def __call__(self, received: Received, writer: Write) -> None:
        self.came.set()


async def left(model: ScriptedModel) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await model.left()


# --- What a call comes to -------------------------------------------------------------------------
@pytest.mark.rule("S4.1", "S4.3")
async def test_the_answer_lies_in_the_object_store(calls: Calls, user: User) -> None:
    body = b'{"text": "tides",  "n": 1.0}'
    async with scripted_model(always(answer(200, body, content_type="application/json"))) as model:
        await user.put("writer", model.url, route="/v1/write", api_key="k-1")
        labels = {"user": "u1", "project": "p1"}
        headers = {"X-User-Info": "seven"}
        job_id = await user.call("writer", {"q": 1.5}, labels=labels, forward_headers=headers)
        job = await user.ended(job_id)
    assert (job["status"], job["result"]["output_ref"]["size"]) == ("succeeded", len(body))
    [lease] = [e for e in await user.history(job_id) if e["type"].endswith("lease_granted.v1")]
    [received] = model.received
    assert (received.target, received.body) == ("/v1/write", b'{"q":1.5}')
    assert received.headers["authorization"] == "Bearer k-1"
    assert received.headers["x-user-info"] == "seven"
    assert received.headers["idempotency-key"] == f"{job_id}:{lease['data']['fence']}"
    output = await user.http.get(f"/v1/jobs/{job_id}/output")
    assert (output.content, output.headers["content-type"]) == (body, "application/json")
    key = job["result"]["output_ref"]["key"]
    assert key.startswith("users/u1/projects/p1/tasks/")
    assert (calls.objects / key).read_bytes() == body


@pytest.mark.rule("S4.3")
async def test_large_payloads_and_answers_that_are_no_json_pass_through(user: User) -> None:
    body = secrets.token_bytes(200_000)
    text = "x" * 100_000
    async with scripted_model(always(answer(200, body, content_type="audio/wav"))) as model:
        await user.put("speaker", model.url)
        job_id = await user.call("speaker", {"text": text})
        job = await user.ended(job_id)
        assert job["status"] == "succeeded", job["error"]
    assert json.loads(model.received[0].body) == {"text": text}
    output = await user.http.get(f"/v1/jobs/{job_id}/output")
    assert output.content == body
    assert output.headers["content-type"] == "application/octet-stream"


@pytest.mark.rule("S4.3")
async def test_a_model_that_says_when_is_called_again_then(user: User) -> None:
    came: list[float] = []
    wires = in_turn(answer(429, retry_after="2"), answer())

    async def script(received: Received, writer: Write) -> None:
        came.append(time.monotonic())
        await wires(received, writer)

    async with scripted_model(script) as model:
        retry = {"max_attempts": 2, "backoff_seconds": [0]}
        await user.put("busy", model.url, retry=retry)
        job_id = await user.call("busy")
        job = await user.ended(job_id)
    assert (job["status"], job["attempt"]) == ("succeeded", 2)
    assert came[1] - came[0] >= 1.9
    [failed] = [e for e in await user.history(job_id) if e["type"].endswith("attempt_failed.v1")]
    assert failed["data"]["code"] == "MODEL_RATE_LIMIT"


@pytest.mark.rule("S4.6")
async def test_who_is_tried_again_stands_behind_those_that_wait(user: User) -> None:
    first = asyncio.Event()
    order: list[str] = []

    async def script(received: Received, writer: Write) -> None:
        name = json.loads(received.body)["name"]
        order.append(name)
        if order == ["a"]:
            await first.wait()
            writer.write(answer(500))
        else:
            writer.write(answer())
        await writer.drain()

    async with scripted_model(script) as model:
        retry = {"max_attempts": 2, "backoff_seconds": [0]}
        await user.put("shaky", model.url, retry=retry, max_concurrency=1)
        jobs = [await user.call("shaky", {"name": name}) for name in ("a", "b", "c")]
        first.set()
        ended = [await user.ended(job_id) for job_id in jobs]
    assert order == ["a", "b", "c", "a"]
    assert [job["attempt"] for job in ended] == [2, 1, 1]
    assert {job["status"] for job in ended} == {"succeeded"}


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "MODEL_REJECTED"), (401, "INVALID_CREDENTIAL"), (302, "REDIRECT_REFUSED")],
)
async def test_what_will_never_work_fails_at_once(user: User, status: int, code: str) -> None:
    async with scripted_model(always(answer(status, b"why", location="/x"))) as model:
        await user.put("strict", model.url, retry={"max_attempts": 3, "backoff_seconds": [0]})
        job = await user.ended(await user.call("strict"))
    assert (job["status"], job["attempt"], job["error"]["code"]) == ("failed", 1, code)
    assert len(model.received) == 1


async def test_a_model_that_hangs_is_left_in_its_time(user: User) -> None:
    async with scripted_model(Silent()) as model:
        await user.put("sleepy", model.url, timeout_seconds=0.5)
        job = await user.ended(await user.call("sleepy"))
        await left(model)
    assert (job["status"], job["error"]["code"]) == ("failed", "MODEL_TIMEOUT")
    assert job["error"]["message"] == "no whole answer within 0.5 s"


# --- Models come, change and go -------------------------------------------------------------------
@pytest.mark.rule("S4.1")
async def test_the_next_call_uses_what_was_put_before_it(user: User) -> None:
    held = Held()
    async with scripted_model(held) as old, scripted_model(always(answer())) as new:
        await user.put("moving", old.url)
        before = await user.call("moving")
        await held.arrived()
        for round_ in range(5):
            await user.put("moving", new.url, route=f"/{round_}", api_key=f"key-{round_}")
            after = await user.ended(await user.call("moving"))
            assert after["status"] == "succeeded"
        held.go.set()
        assert (await user.ended(before))["status"] == "succeeded"
    assert [received.target for received in new.received] == [f"/{n}" for n in range(5)]
    assert [received.headers["authorization"] for received in new.received] == [
        f"Bearer key-{n}" for n in range(5)
    ]
    assert len(old.received) == 1


@pytest.mark.rule("S4.1")
async def test_calls_of_a_deleted_model_fail_and_new_ones_are_refused(user: User) -> None:
    held = Held()
    async with scripted_model(held) as model:
        await user.put("gone", model.url, max_concurrency=1)
        runs, waits = [await user.call("gone") for _ in range(2)]
        await held.arrived()
        await user.said("DELETE", "/v1/models/gone")
        refused = await user.http.post("/v1/models/gone/calls", json={})
        assert (refused.status_code, refused.json()["code"]) == (404, "MODEL_NOT_FOUND")
        held.go.set()
        assert (await user.ended(runs))["status"] == "succeeded"
        job = await user.ended(waits)
    assert (job["status"], job["attempt"]) == ("failed", 1)
    assert job["error"]["code"] == "MODEL_NOT_FOUND"
    assert len(model.received) == 1


# --- Who may call, and how many at once -----------------------------------------------------------
async def test_a_cancelled_call_is_broken_off(user: User) -> None:
    silent = Silent()
    async with scripted_model(silent) as model:
        await user.put("long", model.url)
        job_id = await user.call("long")
        await asyncio.wait_for(silent.came.wait(), PATIENCE_SECONDS)
        await user.said("POST", f"/v1/jobs/{job_id}/cancel", {"reason": "no more"})
        await left(model)
        job = await user.ended(job_id)
    assert job["status"] == "cancelled"
    kinds = [event["type"] for event in await user.history(job_id)]
    assert sum("lease_granted" in kind for kind in kinds) == 1


@pytest.mark.rule("S4.2")
async def test_a_tenants_calls_at_once_are_bounded_over_all_processes(
    calls: Calls, user: User
) -> None:
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    full = asyncio.Event()

    async def script(received: Received, writer: Write) -> None:
        tenant = json.loads(received.body)["tenant"]
        now[tenant] += 1
        most[tenant] = max(most[tenant], now[tenant])
        most["all"] = max(most["all"], now.total())
        if now.total() >= 4:
            full.set()
        await full.wait()
        await asyncio.sleep(0.05)  # The model's work: long enough for a fifth to come by mistake.
        now[tenant] -= 1
        writer.write(answer())
        await writer.drain()

    async with scripted_model(script) as model:
        await user.put("shared", model.url, max_concurrency=2)
        calls.runtime("calls-2")
        jobs = [
            await user.call("shared", {"tenant": tenant}, labels={"tenant": tenant})
            for _ in range(10)
            for tenant in ("red", "blue")
        ]
        ended = [await user.ended(job_id) for job_id in jobs]
    assert {job["status"] for job in ended} == {"succeeded"}
    assert most == {"red": 2, "blue": 2, "all": 4}
    by = {
        attempt["runtime_id"]
        for job_id in jobs
        for attempt in (await user.said("GET", f"/v1/jobs/{job_id}/attempts"))["items"]
    }
    assert len(by) == 2  # Four at once are more than one has slots.
    calls.cluster.children["calls-2"].stop(signal.SIGTERM, seconds=PATIENCE_SECONDS)


@pytest.mark.rule("S4.4")
async def test_another_runtime_calls_again_when_one_is_killed(calls: Calls, user: User) -> None:
    held = Held()
    async with scripted_model(held) as model:
        await user.put("twice", model.url)
        # Until it counts as silent, the dead one may be given the job again.
        template = {"lease_seconds": 2, "retry": {"max_attempts": 20, "backoff_seconds": [0]}}
        await user.said("PUT", "/v1/queues/models/templates/twice", template)
        job_id = await user.call("twice")
        await held.arrived()
        calls.cluster.kill("calls")
        calls.runtime("calls")
        held.go.set()
        job = await user.ended(job_id)
    assert job["status"] == "succeeded"
    first, second = (received.headers["idempotency-key"] for received in model.received)
    assert first.rpartition(":")[0] == second.rpartition(":")[0] == job_id
    assert int(first.rpartition(":")[2]) < int(second.rpartition(":")[2])


# --- Secrets --------------------------------------------------------------------------------------
@pytest.mark.rule("S4.3")
async def test_no_secret_is_found_in_any_byte_that_is_kept_or_answered(
    calls: Calls, user: User
) -> None:
    """I27. The model hears the secrets, so they were there to be leaked."""
    told = [f"canary-{secrets.token_hex(24)}" for _ in range(6)]
    keys, tokens, infos = told[:2], told[2:4], told[4:]
    wires = in_turn(answer(500), answer(401, keys[0].encode()), answer())
    ends: list[str] = []
    async with scripted_model(wires) as model:
        for n, fields in enumerate(({}, {"api_key_header": "X-Api-Key"})):
            retry = {"max_attempts": 2, "backoff_seconds": [0]}
            await user.put(f"safe-{n}", model.url, api_key=keys[n], retry=retry, **fields)
            headers = {"Authorization": f"Bearer {tokens[n]}", "X-User-Info": infos[n]}
            job_id = await user.call(f"safe-{n}", forward_headers=headers)
            ends.append((await user.ended(job_id))["status"])
            await user.said("POST", f"/v1/jobs/{job_id}/rerun", {"labels": {"again": "1"}})
            for path in (f"/v1/models/safe-{n}", f"/v1/jobs/{job_id}/attempts", "/v1/models"):
                await user.said("GET", path)
            await user.history(job_id)
        refused = await user.http.put("/v1/models/safe-0", json={"api_key": keys[0], "x": 1})
        bad = {"forward_headers": {"Host": tokens[0]}}
        refused_too = await user.http.post("/v1/models/safe-0/calls", json=bad)
        assert (refused.status_code, refused_too.status_code) == (422, 422)
        user.heard += [refused.text, refused_too.text]
        await user.said("GET", "/openapi.json")
    assert ends == ["failed", "succeeded"]
    heard = "".join(str(received.headers) for received in model.received)
    assert [secret for secret in told if secret not in heard] == [tokens[0]]  # The key goes there.

    cluster = calls.cluster
    found = {
        "records": await _records(cluster),
        "rows": await asyncio.to_thread(_rows, cluster.dsn),
        "objects": _files(calls.objects),
        "logs": b"".join(log.read_bytes() for log in cluster.directory.glob("*.log")),
        "answers": "".join(user.heard).encode(),
    }
    for place, content in found.items():
        assert content, place
        assert [secret for secret in told if _is_in(content, secret)] == [], place
    assert b"v1.test." in found["records"]
    assert b"v1.test." in found["rows"]


def _is_in(content: bytes, secret: str) -> bool:
    """In clear, or as the middle of something in base64, at any of its three offsets."""
    forms = [secret.encode(), secret.encode().hex().encode()]
    for before in range(3):
        encoded = base64.b64encode(b"x" * before + secret.encode())
        forms.append(encoded[4:-4])
    return any(form in content for form in forms)


async def _records(cluster: Cluster) -> bytes:
    """Keys, values and headers of all that lies in the ledger's topics."""
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    try:
        names = [name for name in await admin.list_topics() if name.startswith(cluster.prefix)]
        for kind in ("requests", "commands", "events", "replies", "assigned", "dlq"):
            assert any(kind in name for name in names), kind
        numbers = {
            topic["topic"]: [partition["partition"] for partition in topic["partitions"]]
            for topic in await admin.describe_topics(names)
        }
    finally:
        await admin.close()
    ends: dict[TopicPartition, int] = {}
    async with Offsets(cluster.connection) as offsets:
        for topic, partitions in numbers.items():
            for number, end in (await offsets.ends(topic, partitions)).items():
                ends[TopicPartition(topic, number)] = end
    found = []
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap, isolation_level="read_uncommitted"
    )
    await consumer.start()
    try:
        consumer.assign(list(ends))
        await consumer.seek_to_beginning(*ends)
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=1000)).values():
                for record in batch:
                    headers = b"".join(name.encode() + value for name, value in record.headers)
                    found.append((record.key or b"") + (record.value or b"") + headers)
    finally:
        await consumer.stop()
    assert (
        len(found) > sum(ends.values()) / 2
    )  # Owners' transactions leave offsets without records.
    return b"\n".join(found)


def _rows(dsn: str) -> bytes:
    """All of all tables; binary columns are there as they are, not as hexadecimal digits."""
    found = []
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
            " AND schemaname NOT LIKE 'pg_temp%'"
        ).fetchall()
        assert len(tables) > 5
        for schema, table in tables:
            query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table))
            for row in connection.execute(query):
                found += [
                    bytes(value) if isinstance(value, bytes) else str(value).encode()
                    for value in row
                ]
    return b"\n".join(found)


def _files(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.rule("S4.1")
async def test_keys_are_rotated_and_a_process_without_the_new_one_says_so(
    calls: Calls, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = f"canary-{secrets.token_hex(24)}"
    async with scripted_model(always(answer())) as model:
        fields = {"retry": {"max_attempts": 5, "backoff_seconds": [0]}, "timeout_seconds": 7.5}
        put = await user.put("rotated", model.url, api_key=secret, **fields)
        assert (await user.ended(await user.call("rotated")))["status"] == "succeeded"
        before = os.environ["LEDGER_SEALING_KEYS"]
        monkeypatch.setenv("LEDGER_SEALING_KEYS", f"new:{generate_key()}\n{before}")
        first = await asyncio.to_thread(_resealed)
        assert "rotated" in first["resealed"]
        for name in first["resealed"]:
            await _sealed_under(calls, name, "new")
        assert await asyncio.to_thread(_resealed) == {"resealed": [], "closed": {}}
        assert await user.said("GET", "/v1/models/rotated") == put
        job = await user.ended(await user.call("rotated"))
        calls.runtime("with-the-new-key")
        calls.cluster.children["calls"].stop(signal.SIGTERM, seconds=PATIENCE_SECONDS)
        assert (await user.ended(await user.call("rotated")))["status"] == "succeeded"
    assert (job["status"], job["attempt"]) == ("failed", 1)
    assert job["error"]["code"] == "INVALID_CREDENTIAL"
    assert "sealed under the key new" in job["error"]["message"]
    assert [received.headers["authorization"] for received in model.received] == [
        f"Bearer {secret}"
    ] * 2
    assert any(
        '"model":"rotated"' in line.replace(" ", "")
        for line in calls.cluster.logged("model_calls.api_key_closed")
    )


def _resealed() -> Json:
    result = CliRunner().invoke(app, ["model", "reseal", "--json"])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


async def _sealed_under(calls: Calls, name: str, key_id: str) -> None:
    """Once the read model shows so."""

    def shown() -> bool:
        with psycopg.connect(calls.cluster.dsn) as connection:
            query = "SELECT model FROM ledger.models WHERE name = %s"
            [(model,)] = connection.execute(query, (name,)).fetchall()
        return key_id_of(json.loads(model)["api_key"]) == key_id

    await calls.cluster.until(shown, seconds=PATIENCE_SECONDS, what=f"{name} under {key_id}")


@pytest.mark.parametrize("missing", ["LEDGER_OBJECTS", "LEDGER_SEALING_KEYS"])
def test_what_nothing_could_be_called_without_is_asked_for_at_the_start(
    calls: Calls, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with httpx.Client(base_url=calls.api) as http:
        body = {"base_url": "http://model.example", "api_key": "k"}
        assert http.put("/v1/models/sealed", json=body).is_success
        http.get("/v1/models/sealed").raise_for_status()  # The read model has it.
    monkeypatch.delenv(missing)
    ended = subprocess.run(
        [sys.executable, "-m", "cli.main", "worker", "--only", "model-calls"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ended.returncode == 2
    assert missing in ended.stderr
