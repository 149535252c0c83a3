"""What needs no server: help, usage, hidden secrets, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.output import printable

COMMANDS = [
    "dev",
    "demo",
    "worker",
    "api",
    "config",
    "doctor",
    "verify",
    "archive",
    "replay",
    "version",
    "topics apply",
    "topics check",
    "topics lost",
    "projection status",
    "projection rebuild",
    "template put",
    "template get",
    "template list",
    "schedule put",
    "schedule list",
    "schedule run",
    "schedule enable",
    "schedule disable",
    "schedule delete",
    "queue get",
    "queue put",
    "queue pause",
    "queue resume",
    "model put",
    "model list",
    "model delete",
    "model reseal",
    "keys generate",
    "job submit",
    "job get",
    "job list",
    "job watch",
    "job cancel",
    "job rerun",
    "job history",
]


def ledger(*words: str) -> Result:
    return CliRunner().invoke(app, words)


@pytest.fixture(autouse=True)
def nothing_runs_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_the_exit_codes(command: str) -> None:
    result = ledger(*command.split(), "--help")

    assert result.exit_code == 0
    assert "Example:" in result.output
    assert "Exit codes: 0 done;" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_json(command: str) -> None:
    assert "--json" in ledger(*command.split(), "--help").output


def test_config_hides_every_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_POSTGRES", "postgresql://ledger:hunter2@db/ledger?password=hunter3")
    monkeypatch.setenv("LEDGER_KAFKA_PASSWORD", "hunter4")

    text = ledger("config").output + ledger("config", "--json").output

    assert "hunter" not in text
    assert "postgresql://ledger:***@db/ledger" in text


def test_config_says_where_each_value_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_MODE", "production")

    shown = json.loads(ledger("config", "--json").stdout)

    assert shown["mode"] == {"value": "production", "from": "LEDGER_MODE"}
    assert shown["partitions"] == {"value": 16, "from": "default"}


def test_a_wrong_setting_ends_with_2_and_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_PARTITONS", "3")

    result = ledger("config")

    assert result.exit_code == 2
    assert "did you mean LEDGER_PARTITIONS?" in result.stderr
    assert result.stdout == ""


def test_without_an_address_of_kafka_the_error_says_what_to_do() -> None:
    result = ledger("topics", "check")

    assert result.exit_code == 2
    assert "start one with `ledger dev`, or set LEDGER_KAFKA=host:port" in result.stderr


def test_an_api_that_does_not_answer_ends_with_5() -> None:
    result = ledger("job", "list", "--api-url", "http://127.0.0.1:1")

    assert result.exit_code == 5
    assert "does not answer" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--payload", "{a: 1}"), "--payload is not JSON"),
        (("--payload", "@nowhere.json"), "nowhere.json"),
        (("--label", "user"), "is not KEY=VALUE"),
        (("--priority", "12"), "'--priority'"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is_sent(
    words: tuple[str, ...], said: str
) -> None:
    result = ledger("job", "submit", "quiz", *words)

    assert result.exit_code == 2
    assert said in result.stderr


def test_text_of_a_job_cannot_move_the_terminal() -> None:
    assert printable("a\x1b[2Jb\rc\td\u202e") == "a\ufffd[2Jb\ufffdc\td\ufffd"
