"""`ledger doctor`: what is missing or wrong, each with what to do about it."""

from __future__ import annotations

import asyncio
import importlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import typer

from cli.failures import explained
from cli.outcome import EXIT_CODES, CommandError, Exit
from cli.output import AsJson, line, print_json
from cli.servers import kafka_of, objects_of, postgres_of
from cli.settings import Settings, load_settings

BROKER_SECONDS = 15.0

State = Literal["ok", "warning", "wrong", "not asked"]
MARKS = {"ok": "ok       ", "warning": "warning  ", "wrong": "WRONG    ", "not asked": "-        "}


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: State
    said: str
    fix: str = ""


def register(app: typer.Typer) -> None:
    @app.command(
        "doctor",
        help=(
            "Check what the ledger needs: programs for `ledger dev`, settings, Kafka, its topics,"
            " Postgres, and how far the read models are. Each finding says what to do.\n\n"
            "Example: ledger doctor --json"
        ),
        epilog=EXIT_CODES,
    )
    def doctor(as_json: AsJson = False) -> None:
        findings = []
        for finding in examined():
            findings.append(finding)
            if not as_json:
                line(f"{MARKS[finding.state]}{finding.check}: {finding.said}")
                if finding.fix:
                    line(f"         fix: {finding.fix}")
        is_well = all(finding.state != "wrong" for finding in findings)
        if as_json:
            print_json({"ok": is_well, "findings": [asdict(finding) for finding in findings]})
        raise typer.Exit(Exit.OK if is_well else Exit.BAD)


def examined() -> Iterator[Finding]:
    """One by one, as they are found; what hangs on something that is wrong is not asked."""
    yield from _programs()
    try:
        settings = load_settings()
    except Exception as error:
        yield _wrong("settings", error)
        return
    yield Finding("settings", "ok", f"mode {settings.mode}, {settings.partitions} partitions")
    kafka = _found("kafka", lambda: _kafka(settings))
    yield kafka
    yield _found("topics", lambda: _topics(settings)) if kafka.state == "ok" else _not("topics")
    postgres = _found("postgres", lambda: _postgres(settings))
    yield postgres
    yield _found("objects", lambda: _objects(settings))
    if kafka.state == "ok" and postgres.state != "wrong":
        yield _found("read models", lambda: _lag(settings))
    else:
        yield _not("read models")


def _programs() -> Iterator[Finding]:
    """What `ledger dev` and `ledger demo` need; elsewhere the servers are somebody else's."""
    downloads = importlib.import_module("ledger.embedded.downloads")
    java = importlib.import_module("ledger.embedded.java")
    yield _for_dev("java", lambda: str(java.java()))
    maven = shutil.which("mvn")
    if maven is None:
        fix = "only needed once, to fetch Kafka's jars; Debian: apt-get install maven"
        yield Finding("maven", "warning", "not found", fix)
    else:
        yield Finding("maven", "ok", maven)
    yield _for_dev("kafka's jars", lambda: f"{len(downloads.kafka_jars())} jars, as pinned")
    yield _for_dev("postgres's programs", lambda: str(downloads.postgres_programs()))


def _for_dev(check: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(check, "ok", look())
    except Exception as error:
        return Finding(
            check, "warning", str(error), "needed by `ledger dev` and `ledger demo` only"
        )


def _found(check: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except Exception as error:
        return _wrong(check, error)


def _wrong(check: str, error: Exception) -> Finding:
    known = error if isinstance(error, CommandError) else explained(error)
    if known is None:
        return Finding(check, "wrong", repr(error))
    return Finding(check, "wrong", str(known), known.fix)


def _not(check: str) -> Finding:
    return Finding(check, "not asked", "needs what is wrong above")


def _objects(settings: Settings) -> Finding:
    from ledger.objects import open_store

    address = objects_of(settings)
    if not address:
        fix = "set LEDGER_OBJECTS, see docs/objects.md"
        detail = "none: payloads and outputs above 64 KiB are refused"
        return Finding("objects", "ok", detail, fix)

    async def ask() -> None:
        store = open_store(address)
        try:
            await store.check()
        finally:
            await store.close()

    asyncio.run(ask())
    return Finding("objects", "ok", address.partition("?")[0])


def _kafka(settings: Settings) -> Finding:
    from ledger.log.admin import Admin

    connection = kafka_of(settings)

    async def ask() -> None:
        async with asyncio.timeout(BROKER_SECONDS), Admin(connection) as admin:
            await admin.find([settings.topics.events])

    try:
        asyncio.run(ask())
    except TimeoutError:
        return Finding(
            "kafka",
            "wrong",
            f"no answer from {connection.bootstrap} within {BROKER_SECONDS:g} s",
            "is it running, and does it advertise an address that is reached from here?",
        )
    return Finding("kafka", "ok", f"{connection.bootstrap} answers")


def _topics(settings: Settings) -> Finding:
    problems = asyncio.run(
        settings.topics.check(
            kafka_of(settings), partitions=settings.partitions, mode=settings.mode
        )
    )
    if not problems:
        return Finding("topics", "ok", f"{settings.partitions} partitions, settings safe")
    said = "; ".join(map(str, problems))
    if any(problem.setting == "partitions" for problem in problems):
        fix = "the partition count is fixed for a ledger's life: set LEDGER_PARTITIONS to it"
    else:
        fix = "`ledger topics apply`"
    return Finding("topics", "wrong", said, fix)


def _postgres(settings: Settings) -> Finding:
    import psycopg

    from projections.schema import connect, migrations

    with connect(postgres_of(settings), schema=settings.postgres_schema) as connection:
        version = connection.info.server_version // 10_000
        try:
            rows = connection.execute("SELECT number FROM schema_migrations").fetchall()
        except psycopg.errors.UndefinedTable:
            rows = []
    missing = [m.name for m in migrations() if m.number not in {row[0] for row in rows}]
    if version < 15:
        return Finding("postgres", "wrong", f"version {version}", "15 or newer is needed")
    if missing:
        fix = "a worker makes them when it starts: `ledger worker`"
        return Finding("postgres", "warning", f"without {', '.join(missing)}", fix)
    return Finding("postgres", "ok", f"version {version}, tables of this version")


def _lag(settings: Settings) -> Finding:
    from cli.projection import statuses

    found = asyncio.run(statuses(settings))
    behind = sum(one.behind for one in found)
    if behind:
        fix = "is a worker running? `ledger worker`; again in a moment: it should get less"
        return Finding("read models", "warning", f"{behind} records behind the log", fix)
    misfits = sum(one.misfits + one.unknown for one in found)
    if misfits:
        fix = "`ledger verify` names them; a newer version may have written them"
        return Finding("read models", "warning", f"{misfits} events were not understood", fix)
    return Finding("read models", "ok", "up to date")
