"""The log of a process: one JSON object a line, on standard error.

Every value is JSON text, so no job's payload or error can forge a line of its own.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

QUIET = ("faust", "mode", "aiokafka", "httpx", "httpcore", "uvicorn.access")
"""Loggers of libraries that tell every step; from them only what went wrong."""


def configure(level: str = "INFO") -> None:
    """Of this process: our lines and those of the libraries alike. Once, before anything logs."""
    import structlog

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _in_reading_order,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Warnings of Python itself, as lines like all others.
    logging.captureWarnings(True)


def _in_reading_order(logger: object, name: str, line: EventDict) -> EventDict:
    first = {key: line.pop(key) for key in ("timestamp", "level", "event") if key in line}
    return {**first, **line}
