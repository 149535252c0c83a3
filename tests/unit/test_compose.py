"""docker-compose.yml and the Dockerfile, as far as they can be checked where no engine runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledger.embedded import downloads
from tests.support import services as backends

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = {"kafka", "object-store", "postgres"}
ONE_SHOT = {"topics"}
LASTING = SERVICES.keys() - ONE_SHOT

each_service = pytest.mark.parametrize("name", sorted(SERVICES))
each_lasting_service = pytest.mark.parametrize("name", sorted(LASTING))


def in_profile(profile: str) -> set[str]:
    return {name for name, service in SERVICES.items() if service["profiles"] == [profile]}


def test_the_profiles_are_the_servers_and_the_app() -> None:
    assert in_profile("core") == SERVERS
    assert in_profile("app") == {"api", "model-calls", "topics", "worker"}
    assert in_profile("core") | in_profile("app") == SERVICES.keys()


@each_service
def test_every_image_is_pinned(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].rpartition(":")
    assert image
    assert re.search(r"\d", tag)


@each_service
def test_ports_are_published_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


@each_lasting_service
def test_what_lasts_says_whether_it_is_healthy(name: str) -> None:
    health = SERVICES[name]["healthcheck"]
    assert health["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries"} <= health.keys()


@each_service
def test_a_dependency_is_waited_for_until_it_is_usable(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        usable = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
        assert how == {"condition": usable}


@pytest.mark.parametrize("name", ["api", "worker"])
def test_the_app_needs_every_server_and_the_topics(name: str) -> None:
    assert SERVICES[name]["depends_on"].keys() == SERVERS | ONE_SHOT


@pytest.mark.parametrize("name", ["api", "topics", "worker"])
def test_the_app_has_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_the_data_of_a_server_is_in_a_named_volume(name: str) -> None:
    [volume] = SERVICES[name]["volumes"]
    assert volume.partition(":")[0] in COMPOSE["volumes"]


@each_service
def test_a_password_can_be_set_from_outside(name: str) -> None:
    for variable, value in SERVICES[name].get("environment", {}).items():
        if re.search("PASSWORD|SECRET", variable):
            assert re.fullmatch(r"\$\{LEDGER_\w+:-development\}", value)


def test_the_broker_is_told_to_clients_by_both_of_its_names() -> None:
    told = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert told == "INSIDE://kafka:19092,OUTSIDE://127.0.0.1:9092"
    assert SERVICES["worker"]["environment"]["LEDGER_KAFKA"] == "kafka:19092"


def test_kafka_and_postgres_are_the_same_everywhere() -> None:
    assert SERVICES["kafka"]["image"] == backends.KAFKA_IMAGE
    assert backends.KAFKA_IMAGE.endswith(f":{downloads.KAFKA_VERSION}")
    pom = Path(downloads.__file__).with_name("kafka-pom.xml").read_text()
    assert f"<version>{downloads.KAFKA_VERSION}</version>" in pom
    assert SERVICES["postgres"]["image"] == backends.POSTGRES_IMAGE


def test_the_image_ends_as_a_user_without_rights() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    assert len(stages) == 2
    assert all(re.match(r"python:\d+\.\d+-slim-\w+\b", stage) for stage in stages)
    assert re.search(r"^USER 10001:10001$", stages[-1], flags=re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["ledger"\]$', stages[-1], flags=re.MULTILINE)
