"""`python -m tests.support.lone_worker GROUP [PART]`: `ledger worker` in a group of its own, which
waits for less long. Nobody should ever run this but a test."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from cli import logs
from cli.settings import load_settings
from cli.worker import worker_settings
from ledger.log.connection import Bounds
from processors.app import run_worker
from tests.support.rival_owner import LoneTopics

BOUNDS = Bounds(request_seconds=3.0, append_seconds=3.0, offsets_seconds=3.0, stuck_seconds=3.0)


def main(group: str, only: Any = None) -> int:
    settings = load_settings()
    logs.configure("INFO")
    worker = worker_settings(settings, only)
    connection = replace(worker.owner.connection, bounds=BOUNDS)
    topics = LoneTopics(settings.prefix, group)
    owner = replace(worker.owner, connection=connection, topics=topics)
    return run_worker(replace(worker, owner=owner), only)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
