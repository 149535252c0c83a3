"""Puts the templates and asks for a quiz, the same one each time: `submit.py BOOTSTRAP`."""

import json
import os
import sys
from pathlib import Path

from ledger.client import sync

with sync.Producer(sys.argv[1], prefix=os.environ.get("LEDGER_PREFIX", "")) as producer:
    for file in (Path(__file__).parent / "templates").glob("*.json"):
        template = json.loads(file.read_text(encoding="utf-8"))
        producer.put_template(template.pop("queue"), template.pop("type"), template)
    snapshot = {"snapshot_id": "s-7", "snapshot": {"read": ["tides"]}, "params": {"count": 3}}
    labels = {"user": "ada", "target_type": "material", "target_id": "m-1"}
    job = producer.submit(
        "quiz_generation", snapshot, queue="ai", labels=labels, idempotency_key="first"
    )
    print(job.job_id, job.job["status"], "the same job" if job.deduplicated else "a new job")
