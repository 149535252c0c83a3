"""`ledger dev` as a newcomer uses it, and every command against what it runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from tests.support.scripted_model import always, answer, scripted_model
from tests.support.services import server_directory

pytestmark = pytest.mark.services

START_SECONDS = 60
STOP_SECONDS = 60
LEDGER = (sys.executable, "-m", "cli.main")


class Dev:
    """A `ledger dev` in a process of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [*LEDGER, "dev", "--port", "0", "--json"],
            # Its broker serves for a minute: no time for a compiler that optimises.
            env={
                **os.environ,
                "LEDGER_DATA": str(data),
                "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addresses: dict[str, str] = {}
        self.kept_job = ""
        self.first_ended_with = -1
        self.left_running: list[int] = []
        assert self.process.stdout is not None
        while "api" not in self.addresses:
            line = self.process.stdout.readline()
            assert line, f"it ended with {self.process.wait(STOP_SECONDS)}"
            said = json.loads(line)
            self.addresses[said["ready"]] = said["at"]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        with self.process:
            return self.process.wait(STOP_SECONDS)


@pytest.fixture(scope="module")
def dev() -> Iterator[Dev]:
    """Started, used, stopped and started again: every test here runs on kept data."""
    with server_directory() as directory:
        first = Dev(directory)
        kept = subprocess.run(
            [*LEDGER, "job", "submit", "kept-over-a-restart"],
            env={**os.environ, "LEDGER_DATA": str(directory)},
            check=True,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        pids = pids_below(first.process.pid)
        ended_with = first.stop()
        second = Dev(directory)
        second.kept_job = kept.stdout.strip()
        second.first_ended_with = ended_with
        second.left_running = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        try:
            yield second
        finally:
            second.stop()


@pytest.fixture(scope="module")
def runtime(dev: Dev) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.demo_runtime", "runtime-1"],
        env={**os.environ, "LEDGER_DATA": str(dev.data)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with process:
        yield
        process.terminate()
        process.wait(STOP_SECONDS)


@pytest.fixture
def ledger(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("LEDGER_DATA", str(dev.data))
    return Ledger()


class Ledger:
    """The command line, in this process."""

    def __call__(self, *words: str, ends_with: int = 0) -> Result:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == ends_with, (words, result.output, result.exception)
        return result

    def json(self, *words: str, ends_with: int = 0) -> Any:
        return json.loads(self(*words, "--json", ends_with=ends_with).stdout)

    def submit(self, *words: str) -> str:
        return self("job", "submit", *words).stdout.strip()


def test_it_prints_every_address_when_it_is_ready(dev: Dev) -> None:
    assert list(dev.addresses) == ["kafka", "postgres", "worker", "model-calls", "api"]
    assert dev.addresses["kafka"].startswith("127.0.0.1:")
    assert dev.addresses["postgres"].startswith("postgresql://")
    assert dev.addresses["api"].startswith("http://127.0.0.1:")


def test_a_second_one_says_that_one_is_running(ledger: Ledger, dev: Dev) -> None:
    result = ledger("dev", ends_with=5)

    assert f"process {dev.process.pid} already runs the servers of {dev.data}" in result.stderr
    assert dev.addresses["kafka"] in result.stderr


@pytest.mark.usefixtures("runtime")
def test_a_job_is_submitted_watched_and_its_history_shown(ledger: Ledger) -> None:
    watched = ledger("job", "submit", "flaky", "--queue", "demo", "--watch")

    assert "attempt_failed" in watched.stdout
    assert "retry_scheduled" in watched.stdout
    assert "succeeded" in watched.stdout
    [job] = ledger.json("job", "list", "--type", "flaky")["items"]
    history = ledger.json("job", "history", job["id"])["items"]
    assert [event["seq"] for event in history] == list(range(1, len(history) + 1))
    assert history[0]["type"] == "ledger.job.requested.v1"
    assert history[-1]["type"] == "ledger.job.succeeded.v1"


@pytest.mark.usefixtures("runtime")
def test_watching_a_job_that_fails_ends_with_1(ledger: Ledger) -> None:
    job_id = ledger.submit("doomed", "--queue", "demo", "--max-attempts", "1")

    result = ledger("job", "watch", job_id, ends_with=1)

    assert "TEMPORARY_PROVIDER_ERROR" in result.stdout


def test_what_was_asked_for_is_what_is_kept(ledger: Ledger) -> None:
    job_id = ledger.submit(
        *("kept", "--payload", '{"a": [1, "é"]}', "--label", "user=42", "--scope", "project:7"),
        *("--priority", "2", "--lease", "5", "--timeout", "9", "--delay", "3600"),
    )

    job = ledger.json("job", "get", job_id)

    assert job["payload"] == {"a": [1, "é"]}
    assert (job["labels"], job["scope"], job["priority"]) == ({"user": "42"}, "project:7", 2)
    assert (job["lease_seconds"], job["timeout_seconds"]) == (5, 9)
    assert job["status"] == "pending"
    assert "project:7" not in ledger("job", "get", job_id).stderr


def test_the_same_key_is_the_same_job(ledger: Ledger) -> None:
    first = ledger.submit("keyed", "--key", "k1")
    again = ledger("job", "submit", "keyed", "--key", "k1")

    assert again.stdout.strip() == first
    assert "this key was used before" in again.stderr
    other = ledger("job", "submit", "keyed", "--key", "k1", "--payload", '{"b": 1}', ends_with=4)
    assert "IDEMPOTENCY_KEY_REUSED" in other.stderr


def test_a_waiting_job_is_cancelled_at_once_and_can_be_run_again(ledger: Ledger) -> None:
    job_id = ledger.submit("nobody-runs-this")

    assert ledger.json("job", "cancel", job_id, "--reason", "mistake")["status"] == "cancelled"
    again = ledger("job", "rerun", job_id).stdout.strip()

    assert ledger.json("job", "get", again)["retried_from"] == job_id
    assert "JOB_CLOSED" in ledger("job", "cancel", job_id, ends_with=4).stderr


def test_a_job_that_nobody_knows_is_not_found(ledger: Ledger) -> None:
    unknown = "default.019b7cfa-c52e-7def-8a12-0123456789ab"

    assert "JOB_NOT_FOUND" in ledger("job", "get", unknown, ends_with=3).stderr
    ledger("replay", unknown, ends_with=3)


def test_lists_are_filtered_and_paged(ledger: Ledger) -> None:
    ids = [ledger.submit("listed", "--label", f"n={n}") for n in range(3)]

    found = ledger.json("job", "list", "--type", "listed", "--limit", "2")
    rest = ledger.json("job", "list", "--type", "listed", "--cursor", found["next_cursor"])
    one = ledger.json("job", "list", "--label", "n=1", "--status", "pending")

    assert [job["id"] for job in found["items"] + rest["items"]] == ids[::-1]
    assert [job["id"] for job in one["items"]] == [ids[1]]


def test_the_log_itself_tells_the_same_story(ledger: Ledger) -> None:
    job_id = ledger.submit("told-twice")
    ledger("job", "cancel", job_id)

    replayed = ledger.json("replay", job_id)
    before = ledger.json("replay", job_id, "--as-of", "1")

    assert replayed["job"] == ledger.json("job", "get", job_id)
    assert [e["position"] for e in replayed["events"]] == [
        e["position"] for e in ledger.json("job", "history", job_id)["items"]
    ]
    assert before["job"]["status"] == "pending"
    assert ledger.json("replay")["events"] > 0


def test_a_template_is_stored_once(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "quiz.toml"
    file.write_text('type = "quiz"\nqueue = "templated"\nlease_seconds = 7.0\n')

    assert ledger.json("template", "put", str(file))["version"] == 1
    assert ledger.json("template", "put", str(file)) == {
        "queue": "templated",
        "type": "quiz",
        "version": 1,
        "created": False,
    }
    job_id = ledger.submit("quiz", "--queue", "templated")
    assert ledger.json("job", "get", job_id)["lease_seconds"] == 7


def test_a_template_that_cannot_be_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "quiz.json"
    file.write_text('{"type": "quiz", "lease_secs": 7}')

    assert "lease_secs" in ledger("template", "put", str(file), ends_with=4).stderr


def test_what_was_put_is_read_and_listed(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "quiz.json"
    file.write_text(json.dumps({"queue": "read", "type": "quiz", "title": "A quiz"}))
    ledger("template", "put", str(file))

    assert ledger.json("template", "get", "quiz", "--queue", "read")["title"] == "A quiz"
    [listed] = ledger.json("template", "list", "--queue", "read")["items"]
    assert (listed["type"], listed["version"]) == ("quiz", 1)
    assert "A quiz" in ledger("template", "list").stdout


def test_a_schedule_is_put_run_rested_and_deleted(ledger: Ledger) -> None:
    words = ("schedule", "put", "nightly", "--type", "report", "--cron", "0 3 * * *")
    schedule = ledger.json(*words, "--payload", '{"n": 1}', "--label", "a=b")
    assert (len(schedule["next_runs"]), schedule["labels"]) == (5, {"a": "b"})

    job = ledger("schedule", "run", "nightly").stdout.strip()
    assert ledger.json("job", "get", job)["schedule"] == "nightly"
    assert not ledger.json("schedule", "disable", "nightly")["enabled"]
    assert [s["name"] for s in ledger.json("schedule", "list", "--disabled")["items"]] == [
        "nightly"
    ]
    assert "nightly" in ledger("schedule", "enable", "nightly").stdout
    ledger("schedule", "delete", "nightly")
    assert "SCHEDULE_NOT_FOUND" in ledger("schedule", "run", "nightly", ends_with=3).stderr


def test_a_queue_is_bounded_paused_and_resumed(ledger: Ledger) -> None:
    limits = '[{"key": ["/labels/user"], "max": 2}]'
    ledger("queue", "put", "narrow", "--depth-max", "1", "--limits", limits)
    ledger.submit("t", "--queue", "narrow")
    full = ledger("job", "submit", "t", "--queue", "narrow", ends_with=4)
    assert "QUEUE_FULL" in full.stderr

    assert ledger.json("queue", "pause", "narrow", "--reason", "deploy")["paused"]
    assert "deploy" in ledger("queue", "get", "narrow").stdout
    assert ledger.json("queue", "resume", "narrow")["paused"] is None


async def test_a_model_on_this_machine_is_called(
    ledger: Ledger, dev: Dev, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, key = tmp_path / "echo.toml", tmp_path / "key"
    key.write_text("sk-hunter3")
    async with scripted_model(always(answer(200, b'"hello"'))) as model:
        file.write_text(f'name = "echo"\nbase_url = "{model.url}"\n')
        await asyncio.to_thread(ledger, "model", "put", str(file), "--api-key", f"@{key}")
        watched = await asyncio.to_thread(
            ledger, "job", "submit", "echo", "--queue", "models", "--watch"
        )
    assert "succeeded" in watched.stdout
    assert [received.headers["authorization"] for received in model.received] == [
        "Bearer sk-hunter3"
    ]
    monkeypatch.setenv("LEDGER_SEALING_KEYS", str(dev.data / "sealing.keys"))
    assert await asyncio.to_thread(ledger.json, "model", "reseal") == {
        "resealed": [],
        "closed": {},
    }
    await asyncio.to_thread(ledger, "model", "delete", "echo")


def test_a_model_keeps_its_key_to_itself(ledger: Ledger, tmp_path: Path) -> None:
    file, key = tmp_path / "gpt.toml", tmp_path / "key.txt"
    file.write_text('name = "gpt"\nbase_url = "http://model.example"\nmax_concurrency = 2\n')
    key.write_text("sk-hunter2\n")

    assert "with a key" in ledger("model", "put", str(file), "--api-key", f"@{key}").stdout
    assert ledger.json("model", "put", str(file))["has_api_key"]
    assert "hunter2" not in ledger("model", "list", "--json").stdout
    refused = ledger("model", "put", str(file), "--api-key", "sk-hunter2", ends_with=2)
    assert "not the key" in refused.stderr
    ledger("model", "delete", "gpt")
    assert ledger.json("model", "list")["items"] == []


def test_the_topics_are_safe_and_the_doctor_finds_nothing(ledger: Ledger) -> None:
    assert ledger.json("topics", "check") == {"safe": True, "problems": []}
    assert ledger.json("topics", "apply")["safe"]
    report = ledger.json("doctor")
    assert report["ok"], report
    assert {f["check"]: f["state"] for f in report["findings"]}["topics"] == "ok"


def test_the_doctor_names_another_partition_count(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_PARTITIONS", "5")

    found = {f["check"]: f for f in ledger.json("doctor", ends_with=1)["findings"]}

    assert found["topics"]["state"] == "wrong"
    assert "partitions is 16, wanted 5" in found["topics"]["said"]
    assert "set LEDGER_PARTITIONS" in found["topics"]["fix"]


def test_the_log_is_whole_and_the_read_models_are_its_fold(ledger: Ledger) -> None:
    ledger("job", "cancel", ledger.submit("verified"))

    report = ledger.json("verify")

    assert report["ok"], report
    assert report["rows_compared"]
    assert sum(verdict["events"] for verdict in report["partitions"]) > 0
    assert "verify: ok" in ledger("verify", "--partition", "0").stdout


def test_the_read_models_are_made_anew_while_everything_runs(ledger: Ledger, dev: Dev) -> None:
    job_id = ledger.submit("before-the-rebuild")

    assert ledger.json("projection", "rebuild")["rebuilt"]

    assert ledger.json("job", "get", job_id)["status"] == "pending"
    after = ledger.submit("after-the-rebuild")
    assert ledger.json("job", "get", after)["status"] == "pending"
    assert ledger.json("verify")["ok"]
    status = CliRunner().invoke(app, ["projection", "status", "--json"])
    assert json.loads(status.stdout)["behind"] == 0


def test_the_examples_of_the_readme_run(ledger: Ledger, dev: Dev, tmp_path: Path) -> None:
    runtime, producer = examples_of(Path("README.md"))
    assert "127.0.0.1:9092" in runtime
    assert "127.0.0.1:9092" in producer
    for name, text in (("runtime.py", runtime), ("producer.py", producer)):
        (tmp_path / name).write_text(text.replace("127.0.0.1:9092", dev.addresses["kafka"]))
    serving = subprocess.Popen([sys.executable, tmp_path / "runtime.py"], stdout=subprocess.DEVNULL)
    with serving:
        submitted = subprocess.run(
            [sys.executable, tmp_path / "producer.py"],
            check=True,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        job_id, status = submitted.stdout.split()
        watched = ledger("job", "watch", job_id)
        serving.terminate()
        assert serving.wait(STOP_SECONDS) == 0

    assert status == "pending"
    assert "What about tides?" in watched.stdout


def test_data_outlives_a_stop_that_leaves_nothing_running(ledger: Ledger, dev: Dev) -> None:
    assert dev.first_ended_with == 0
    assert dev.left_running == []
    assert ledger.json("job", "get", dev.kept_job)["type"] == "kept-over-a-restart"


def examples_of(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


def pids_below(pid: int) -> list[int]:
    """Children and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *pids_below(int(child))]
    return found
