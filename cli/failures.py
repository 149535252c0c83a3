"""What the layers below raise, as a sentence with a way out."""

from __future__ import annotations

import sys
from typing import Any

from cli.outcome import CommandError, Exit
from cli.settings import SettingsError


def explained(error: Exception) -> CommandError | None:
    """None: a surprise, to be shown as it is."""
    if isinstance(error, SettingsError):
        fix = "`ledger config` lists every setting and where it comes from"
        return CommandError(str(error), fix=fix, exit_code=Exit.USAGE)
    for module, explain in _EXPLAIN.items():
        # Not imported: not raised either.
        if module in sys.modules and (found := explain(sys.modules[module], error)):
            return found
    if isinstance(error, OSError) and error.filename:
        return CommandError(f"{error.filename}: {error.strerror}", exit_code=Exit.USAGE)
    return None


def _embedded(module: Any, error: Exception) -> CommandError | None:
    return CommandError(str(error)) if isinstance(error, module.EmbeddedError) else None


def _log(module: Any, error: Exception) -> CommandError | None:
    match error:
        case module.UnsafeTopics():
            fix = "`ledger topics apply` sets what can be set; `ledger topics check` lists the rest"
            return CommandError(str(error), fix=fix, exit_code=Exit.BAD)
        case module.LogBroken():
            fix = "stop the workers, keep the log as it is, and see docs/operations.md, Log broken"
            return CommandError(str(error), fix=fix, exit_code=Exit.BAD)
        case module.LedgerMismatch():
            fix = "check LEDGER_KAFKA, LEDGER_PREFIX, LEDGER_LEDGER_ID and LEDGER_PARTITIONS"
            return CommandError(str(error), fix=fix, exit_code=Exit.USAGE)
        case module.LogUnavailable():
            fix = "`ledger doctor` says what is wrong; LEDGER_KAFKA is where Kafka is looked for"
            return CommandError(f"Kafka does not answer: {error}", fix=fix)
        case _:
            return None


def _client(module: Any, error: Exception) -> CommandError | None:
    match error:
        case module.Refused():
            missing = error.code.endswith("_NOT_FOUND")
            return CommandError(str(error), exit_code=Exit.NOT_FOUND if missing else Exit.REFUSED)
        case module.Undecided():
            fix = "a worker decides it: is one running? repeating is safe"
            return CommandError(str(error), fix=fix, exit_code=Exit.UNDECIDED)
        case module.ClientError():
            return CommandError(str(error), fix="`ledger doctor` says what is wrong")
        case _:
            return None


def _objects(module: Any, error: Exception) -> CommandError | None:
    if not isinstance(error, module.ObjectError):
        return None
    return CommandError(str(error), fix="see docs/objects.md")


def _kafka(module: Any, error: Exception) -> CommandError | None:
    if not isinstance(error, module.KafkaError):
        return None
    fix = "`ledger doctor` says what is wrong; LEDGER_KAFKA is where Kafka is looked for"
    return CommandError(f"Kafka does not answer: {error!r}", fix=fix)


def _postgres(module: Any, error: Exception) -> CommandError | None:
    if isinstance(error, module.errors.UndefinedTable | module.errors.InvalidSchemaName):
        fix = "`ledger projection rebuild` makes the read models from the log"
        return CommandError(f"the read models are not there: {error}", fix=fix)
    if isinstance(error, module.OperationalError):
        fix = "`ledger doctor` says what is wrong; LEDGER_POSTGRES is where Postgres is looked for"
        return CommandError(f"Postgres does not answer: {str(error).strip()}", fix=fix)
    return None


def _http(module: Any, error: Exception) -> CommandError | None:
    if not isinstance(error, module.TransportError):
        return None
    fix = "start it with `ledger dev` or `ledger api`, or say where it is with --api-url"
    where = ""
    if getattr(error, "_request", None) is not None:
        where = f" at {error.request.url.copy_with(raw_path=b'/')}"
    return CommandError(f"the api{where} does not answer: {error!r}", fix=fix)


def _worker(module: Any, error: Exception) -> CommandError | None:
    if not isinstance(error, module.ExactlyOnceRefused):
        return None
    fix = "unset PROCESSING_GUARANTEE and LEDGER_PROCESSING_GUARANTEE"
    return CommandError(str(error), fix=fix, exit_code=Exit.USAGE)


def _model_calls(module: Any, error: Exception) -> CommandError | None:
    if not isinstance(error, module.KeysMissing):
        return None
    return CommandError(str(error), fix="see docs/model-calls.md, Secrets", exit_code=Exit.USAGE)


_EXPLAIN = {
    "processors.app": _worker,
    "processors.model_calls.service": _model_calls,
    "ledger.embedded.processes": _embedded,
    "ledger.client.errors": _client,
    "ledger.log.errors": _log,
    "ledger.objects.errors": _objects,
    "aiokafka.errors": _kafka,
    "psycopg": _postgres,
    "httpx": _http,
}
