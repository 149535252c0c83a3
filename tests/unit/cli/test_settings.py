"""Settings are read once, from variables and a file; what is not one is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.local import own_keys
from cli.settings import SettingsError, load_settings, source_of
from ledger.domain.partition import Bounds
from ledger.log.partitions import PARTITIONS_DEFAULT
from ledger.log.topics import Topics
from ledger.sealing.keyring import generate_key, read_keyring
from processors.model_calls.addresses import AllowList


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_variable_wins_over_the_file_and_the_file_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("ledger.toml").write_text('kafka = "file:1"\npartitions = 4\n')
    monkeypatch.setenv("LEDGER_KAFKA", "variable:1")

    settings = load_settings()

    assert (settings.kafka, settings.partitions, settings.prefix) == ("variable:1", 4, "")
    assert source_of("kafka") == "LEDGER_KAFKA"
    assert source_of("partitions") == "ledger.toml"
    assert source_of("prefix") == "default"


@pytest.mark.parametrize("kind", ["file", "lines"])
def test_sealing_keys_are_a_file_or_the_keys_themselves(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    text = f"new:{generate_key()}\nold:{generate_key()}\n"
    Path("keys").write_text(text)
    monkeypatch.setenv("LEDGER_SEALING_KEYS", "keys" if kind == "file" else text)

    keyring = load_settings().keyring

    assert keyring is not None
    assert keyring.key_ids == ("new", "old")


def test_where_models_may_be_called_is_a_list_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().allowed_addresses == AllowList()
    monkeypatch.setenv("LEDGER_MODEL_ALLOW", "model.internal, *.corp.example,10.1.0.0/16,loopback,")

    allowed = load_settings().allowed_addresses

    assert allowed == AllowList.of(["model.internal", "*.corp.example", "10.1.0.0/16", "loopback"])
    monkeypatch.setenv("LEDGER_MODEL_ALLOW", "loopback,a b")
    with pytest.raises(SettingsError, match=r"LEDGER_MODEL_ALLOW: 'a b'"):
        _ = load_settings().allowed_addresses


@pytest.mark.parametrize("said", ["nowhere", "new:hunter2", "[hunter2"])
def test_sealing_keys_that_are_none_are_an_error_that_quotes_nothing(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("LEDGER_SEALING_KEYS", said)

    with pytest.raises(SettingsError, match="LEDGER_SEALING_KEYS") as caught:
        _ = load_settings().keyring

    assert "hunter2" not in str(caught.value)


def test_a_local_ledger_keeps_its_own_key(tmp_path: Path) -> None:
    place = own_keys(tmp_path)
    first = place.read_text()

    assert own_keys(tmp_path).read_text() == first
    assert read_keyring(place).key_ids == ("dev",)
    assert place.stat().st_mode & 0o077 == 0


def test_the_command_line_wins_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_API_PORT", "1")

    assert load_settings(api_port=2, api_host=None).api_port == 2


def test_a_misspelt_variable_is_an_error_that_names_the_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEDGER_KAFAK", "127.0.0.1:9092")

    with pytest.raises(
        SettingsError, match=r"LEDGER_KAFAK is not a setting; did you mean LEDGER_K"
    ):
        load_settings()


def test_a_misspelt_name_in_the_file_is_an_error_that_names_the_right_one() -> None:
    Path("ledger.toml").write_text("partitons = 4\n")

    with pytest.raises(SettingsError, match=r"partitons is not a setting; did you mean partitions"):
        load_settings()


def test_every_mistake_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_PARTITIONS", "many")
    monkeypatch.setenv("LEDGER_MODE", "test")

    with pytest.raises(SettingsError) as caught:
        load_settings()

    assert "LEDGER_PARTITIONS" in str(caught.value)
    assert "LEDGER_MODE" in str(caught.value)


def test_a_wrong_secret_is_not_repeated_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_KAFKA_SASL_MECHANISM", "hunter2")

    with pytest.raises(SettingsError) as caught:
        load_settings()

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["LEDGER_CACHE", "LEDGER_CRASH_AT", "LEDGER_TEST_KAFKA"])
def test_variables_of_the_tools_around_are_no_mistake(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "x")

    load_settings()


def test_exactly_once_is_refused_and_the_reason_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_PROCESSING_GUARANTEE", "exactly_once")

    with pytest.raises(SettingsError, match="lost and doubled data"):
        load_settings()


def test_sasl_without_a_password_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_KAFKA_SECURITY", "SASL_SSL")
    monkeypatch.setenv("LEDGER_KAFKA_USERNAME", "ledger")

    with pytest.raises(SettingsError, match="set LEDGER_KAFKA_PASSWORD"):
        load_settings()


def test_a_missing_certificate_is_told_when_the_connection_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEDGER_KAFKA_SECURITY", "SSL")
    monkeypatch.setenv("LEDGER_KAFKA_CA", "/nowhere/ca.pem")

    with pytest.raises(SettingsError, match="certificates for Kafka cannot be read"):
        load_settings().connection("127.0.0.1:9092")


def test_a_file_that_a_variable_names_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_CONFIG", "elsewhere.toml")

    with pytest.raises(SettingsError, match="does not exist"):
        load_settings()


def test_the_defaults_are_those_of_the_layers_below() -> None:
    settings = load_settings()

    assert settings.partitions == PARTITIONS_DEFAULT
    assert settings.bounds == Bounds()
    assert settings.topics == Topics()


def test_settings_cannot_be_changed() -> None:
    settings = load_settings()

    with pytest.raises(ValueError, match="frozen"):
        settings.partitions = 3
