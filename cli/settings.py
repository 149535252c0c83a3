"""What the processes need to know: read once, at the root, from LEDGER_… and `ledger.toml`.

A variable wins over the file, the file over the default. A name that is not a setting is an error:
a typo must not become a default.
"""

from __future__ import annotations

import os
import ssl
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

if TYPE_CHECKING:
    # Half a second of imports that most commands can do without.
    from ledger.domain.partition import Bounds
    from ledger.log.connection import Connection
    from ledger.log.topics import Topics
    from ledger.sealing.keyring import Keyring
    from processors.model_calls.addresses import AllowList

PREFIX = "LEDGER_"
FILE = "ledger.toml"
FILE_VARIABLE = "LEDGER_CONFIG"
OTHER_VARIABLES = frozenset(
    {
        FILE_VARIABLE,
        # Of `ledger.embedded`, the tests and docker-compose.yml.
        "LEDGER_CACHE",
        "LEDGER_KAFKA_LIBS",
        "LEDGER_POSTGRES_BIN",
        "LEDGER_CRASH_AT",
        "LEDGER_POSTGRES_PASSWORD",
        "LEDGER_OBJECTS_SECRET",
    }
)
"""Variables that begin like a setting's and are none."""
OTHER_PREFIXES = ("LEDGER_TEST_", "LEDGER_BENCH_")

Port = Annotated[int, Field(ge=0, le=65_535)]
Count = Annotated[int, Field(ge=1)]


class SettingsError(Exception):
    """The settings are wrong. The text has a line for each mistake and says what to write."""


class Settings(BaseSettings):
    """Every setting of every command."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    # --- Where the servers are -------------------------------------------------------------------
    kafka: str | None = None
    """host:port[,host:port…]. Unset: the broker of a `ledger dev` that runs here."""
    postgres: SecretStr | None = None
    """postgresql://… of the read models. Unset: that of a `ledger dev` that runs here."""
    objects: str = ""
    """A folder or s3://bucket for payloads and outputs above 64 KiB, see docs/objects.md; empty:
    such are refused. `ledger dev` has a folder of its own in LEDGER_DATA."""
    snapshot_events: Count = 100_000
    """So many events of a partition, and half as many as it has jobs and command ids in memory, are
    followed by a snapshot in the object store: take-overs are short. While it idles, a tenth."""
    sealing_keys: SecretStr | None = None
    """Keys that secrets of requests and models are sealed under, the newest first: a file with
    lines `id:base64` of 32 bytes each, or such lines. Unset: requests with secrets are refused."""
    data: Path = Path(".ledger")
    """Where `ledger dev` keeps its servers' data."""

    # --- Which ledger ----------------------------------------------------------------------------
    ledger_id: Annotated[str, Field(min_length=1, max_length=100)] = "ledger"
    """Recorded with every take-over; a log of another id is refused."""
    prefix: str = ""
    """In front of every topic's name; sets several ledgers on one cluster apart."""
    partitions: Annotated[int, Field(ge=1, le=1024)] = 16
    """Fixed for the life of the ledger."""
    postgres_schema: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,48}$")] = "ledger"
    """Of the read models' tables."""
    mode: Literal["development", "production"] = "development"
    """production: topics have three replicas, two of them in sync; nothing less is accepted."""
    processing_guarantee: Literal["at_least_once"] = "at_least_once"
    """Of the Faust app. exactly_once is refused: see docs/decisions/0002-faust-supervises.md."""

    # --- Calls of models: `ledger worker --only model-calls` --------------------------------------
    model_allow: str = ""
    """Where models may be called beside public addresses: hosts, `*.` and a name, networks,
    `loopback`, with commas between them. See docs/model-calls.md."""
    model_slots: Annotated[int, Field(ge=1, le=400)] = 16
    """Calls at once, of one process."""
    model_answer_bytes_max: Count = 32 * 1024 * 1024
    """Of one answer, decompressed; a call holds twice that at its end."""
    model_redirects_max: Annotated[int, Field(ge=0, le=10)] = 0

    # --- Kafka's security ------------------------------------------------------------------------
    kafka_security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    kafka_ca: Path | None = None
    """PEM file of who signs the brokers' certificates. Unset: the machine's own."""
    kafka_certificate: Path | None = None
    """PEM file of this client's certificate, where the brokers ask for one."""
    kafka_key: Path | None = None
    """PEM file of the certificate's key."""
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"] = "PLAIN"
    kafka_username: str | None = None
    kafka_password: SecretStr | None = None

    # --- What listens ----------------------------------------------------------------------------
    api_host: str = "127.0.0.1"
    api_port: Port = 8080
    api_url: str | None = None
    """Where `ledger job` finds the api. Unset: that of a `ledger dev`, else host and port above."""
    health_port: Port | None = None
    """A worker's health endpoint, on loopback. Unset: none; 0: any free port."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    # --- Bounds ----------------------------------------------------------------------------------
    open_bytes_max: Count = 1 << 30
    """Of the open jobs that the owner of a partition holds; then QUEUE_FULL."""
    closed_max: Count = 200_000
    """Ended jobs that the owner of a partition remembers, each for at most an hour."""
    keys_max: Count = 5_000_000
    """Idempotency keys that the owner of a partition remembers; then QUEUE_FULL."""
    postgres_connections_max: Annotated[int, Field(ge=1, le=200)] = 8
    """Of the api."""
    object_bytes_max: Count = 33_554_432
    """Of one payload or output that goes to the object store; then PAYLOAD_TOO_LARGE."""
    clean_seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Between a worker's looks at what has outlived its time."""
    orphan_hours: Annotated[float, Field(gt=0)] = 192.0
    """How old an object is that no job refers to before a worker deletes it. Longer than
    idempotency keys are remembered, whose owners may ask again."""
    in_flight_max: Count = 10_000
    """Requests to one api process that wait for a decision at the same time."""

    @field_validator("processing_guarantee", mode="before")
    @classmethod
    def _not_exactly_once(cls, value: object) -> object:
        if value != "at_least_once":
            raise ValueError(
                "only at_least_once: Faust's exactly_once lost and doubled data in trials; the"
                " owner's protocol makes each outcome single without it"
            )
        return value

    @model_validator(mode="after")
    def _security_is_whole(self) -> Self:
        if self.kafka_security.startswith("SASL") and self.kafka_sasl_mechanism != "GSSAPI":
            for name in ("kafka_username", "kafka_password"):
                if getattr(self, name) is None:
                    raise ValueError(
                        f"kafka_security is {self.kafka_security}, so set {PREFIX}{name.upper()}"
                    )
        if (self.kafka_certificate is None) != (self.kafka_key is None):
            raise ValueError("kafka_certificate and kafka_key come together: set both or neither")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _FileSource(settings_cls)

    # --- What the layers below take --------------------------------------------------------------
    @property
    def topics(self) -> Topics:
        from ledger.log.topics import Topics

        return Topics(self.prefix)

    @property
    def bounds(self) -> Bounds:
        from ledger.domain.partition import Bounds

        return Bounds(
            open_bytes_max=self.open_bytes_max, closed_max=self.closed_max, keys_max=self.keys_max
        )

    @property
    def keyring(self) -> Keyring | None:
        """Raises `SettingsError` for what is no key ring; the message quotes none of it."""
        if self.sealing_keys is None:
            return None
        from ledger.sealing.keyring import KeyringInvalid, keyring_from, read_keyring

        said = self.sealing_keys.get_secret_value()
        is_text = ":" in said or said.lstrip().startswith("[")
        try:
            return keyring_from(said) if is_text else read_keyring(Path(said))
        except KeyringInvalid as error:
            raise SettingsError(f"{PREFIX}SEALING_KEYS: {error}") from None

    @property
    def allowed_addresses(self) -> AllowList:
        """Raises `SettingsError`."""
        from processors.model_calls.addresses import AllowList

        try:
            return AllowList.of(entry for entry in self.model_allow.split(",") if entry.strip())
        except ValueError as error:
            raise SettingsError(f"{PREFIX}MODEL_ALLOW: {error}") from None

    def connection(self, bootstrap: str) -> Connection:
        """Raises `SettingsError` for certificates that cannot be read."""
        from ledger.log.connection import Connection

        password = self.kafka_password
        return Connection(
            bootstrap=bootstrap,
            security_protocol=self.kafka_security,
            ssl_context=self._ssl_context(),
            sasl_mechanism=self.kafka_sasl_mechanism,
            sasl_username=self.kafka_username,
            sasl_password=password.get_secret_value() if password is not None else None,
        )

    def _ssl_context(self) -> ssl.SSLContext | None:
        if "SSL" not in self.kafka_security:
            return None
        try:
            context = ssl.create_default_context(cafile=self.kafka_ca)
            if self.kafka_certificate is not None:
                context.load_cert_chain(self.kafka_certificate, self.kafka_key)
        except OSError as error:
            raise SettingsError(f"the certificates for Kafka cannot be read: {error}") from error
        return context


class _FileSource(InitSettingsSource):
    """`ledger.toml` of the working directory, or the file that LEDGER_CONFIG names."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls, init_kwargs=_file_content())


def load_settings(**overrides: Any) -> Settings:
    """`overrides` are what the command line says. Raises `SettingsError`."""
    mistakes = [
        f"{PREFIX}{name.upper()} is not a setting{_meant(name, upper=True)}"
        for name in _unknown(_variables(os.environ))
    ]
    mistakes += [
        f"{config_file()}: {name} is not a setting{_meant(name)}"
        for name in _unknown(_file_content())
    ]
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise SettingsError("\n".join(map(_sentence, error.errors()))) from None


def config_file() -> Path:
    return Path(os.environ.get(FILE_VARIABLE, FILE))


def source_of(name: str) -> str:
    """Where a setting's value comes from: a variable, the file, or its default."""
    if f"{PREFIX}{name.upper()}" in os.environ:
        return f"{PREFIX}{name.upper()}"
    return str(config_file()) if name in _file_content() else "default"


def _variables(environment: Mapping[str, str]) -> list[str]:
    return [
        name.removeprefix(PREFIX).lower()
        for name in environment
        if name.startswith(PREFIX)
        and name not in OTHER_VARIABLES
        and not name.startswith(OTHER_PREFIXES)
    ]


def _file_content() -> dict[str, Any]:
    file = config_file()
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if FILE_VARIABLE in os.environ:
            raise SettingsError(f"{FILE_VARIABLE} names {file}, which does not exist") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from None


def _unknown(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name not in Settings.model_fields)


def _meant(name: str, *, upper: bool = False) -> str:
    close = get_close_matches(name.lower(), Settings.model_fields, n=1)
    if not close:
        return "; `ledger config` lists them all"
    found = f"{PREFIX}{close[0].upper()}" if upper else close[0]
    return f"; did you mean {found}?"


def _sentence(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    # Never the value: it may be a password.
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{PREFIX}{place.upper()}: {text}" if place else text
