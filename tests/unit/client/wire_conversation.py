"""The records in docs/kafka-guide.md, made by the code that writes them in earnest.

`python -m tests.unit.client.wire_conversation` writes them, and examples/plain_kafka_runtime.py,
into the guide; a test sees that it is up to date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Raw

from ledger.client.held import Begin
from ledger.client.runtime_session import QueueSession
from ledger.domain.brief import brief_of
from ledger.domain.commands import Command, ReportedResult, RequestJob, Template
from ledger.domain.events import JobRequested, LeaseGranted
from ledger.domain.evolve import begin, evolve
from ledger.domain.failures import Retry
from ledger.domain.ids import (
    MAIN,
    SECOND,
    CommandId,
    Fence,
    JobId,
    Micros,
    QueueName,
    RuntimeId,
    Session,
    parse_rfc3339,
    rfc3339,
)
from ledger.domain.job import Job
from ledger.domain.job_view import job_json
from ledger.log.command_codec import command_record, partition_for, topic_of
from ledger.log.inbox import (
    Assigned,
    AssignedItem,
    BeatAnswered,
    InboxRecord,
    LeaseLeft,
    OwnerChanged,
    inbox_record,
)
from ledger.log.partitions import INBOX_PARTITIONS, PARTITIONS_DEFAULT, partition_of
from ledger.log.records import Outgoing
from ledger.log.replies import Reply, reply_record
from ledger.log.topics import Topics

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "kafka-guide.md"
EXAMPLE = ROOT / "examples" / "plain_kafka_runtime.py"
BLOCK = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

QUEUE, RUNTIME = QueueName("ai"), RuntimeId("runtime-1")
SESSION = Session("019b7cfa-c000-7000-8000-000000000001")
COMMAND = CommandId("019b7cfa-c52e-7abc-9def-001122334455")
JOB_ID = JobId(f"{QUEUE}.019b7cfa-c52e-7def-8a12-0123456789ab")
NOW = parse_rfc3339("2026-01-02T03:04:05.678Z")
OWNER = "ledger/ledger"
REPLY_TO = "3/8f14e45f"
LONG = 100
SHOWN = ("id", "type", "status", "payload")


class Conversation:
    """One job's life on the wire, from the session that a real runtime would have."""

    def __init__(self) -> None:
        self._topics = Topics()
        self._clock = 0.0
        self._session = QueueSession(
            QUEUE,
            runtime_id=RUNTIME,
            session=SESSION,
            types=("quiz_generation",),
            period_seconds=5.0,
            now=self._clock,
        )
        job = requested()
        leased = evolve(job, granted(), NOW)
        assert isinstance(leased, Job)
        item = AssignedItem(
            number=1,
            job_id=JOB_ID,
            step=MAIN,
            attempt=1,
            fence=Fence(1),
            lease_since=rfc3339(NOW),
            lease_expires_at=rfc3339(granted().until),
            lease_seconds=60.0,
            beat=2,
            job=brief_of(leased, leased.steps[0]),
        )
        request = RequestJob(
            type="quiz_generation",
            queue=QUEUE,
            payload=Raw(b'{"topic":"tides"}'),
            idempotency_key="user-42-tides",
        )
        accepted = Reply(COMMAND, "accepted", "9:41", job=Raw(job_json(job)), job_id=JOB_ID)
        self.request = self._command(request, COMMAND, reply_to=REPLY_TO)
        self.reply = self._reply(accepted)
        self.first_beat = self._speak()
        self._session.open_inbox()
        self.beat = self._speak()
        self.beat_answered = self._hear(BeatAnswered(SESSION, QUEUE, 2))
        self.assigned = self._hear(Assigned(SESSION, QUEUE, (item,)))
        self.report = self._report()
        self.report_answered = self._hear(BeatAnswered(SESSION, QUEUE, 3))
        left = LeaseLeft(JOB_ID, Fence(1), 58.5, rfc3339(granted().until))
        self.lease_extended = self._hear(BeatAnswered(SESSION, QUEUE, 3, leases=(left,)))
        self.owner_changed = self._hear(OwnerChanged(QUEUE, partition_of(QUEUE, 16)), everyone=True)

    def _report(self) -> str:
        (held,) = self._session.holdings
        word = ReportedResult(held.job_id, held.fence, Raw(b'{"questions":[]}'), None, "5e" * 32)
        self._session.finish(held, word)
        return self._speak()

    def _speak(self) -> str:
        said = self._session.speak(self._clock, 4 - self._session.occupied)
        number = self._session.beat
        self._session.appended(number)
        return self._command(said, CommandId(f"019b7cfa-c530-7000-8000-{number:012x}"))

    def _hear(self, content: InboxRecord, *, everyone: bool = False) -> str:
        orders = self._session.take(content, self._clock)
        assert not orders or isinstance(orders[0], Begin)
        runtime_id = None if everyone else RUNTIME
        record = inbox_record(content, record_id="9-2-1", source=OWNER, runtime_id=runtime_id)
        target = partition_of(RUNTIME, INBOX_PARTITIONS)
        return rendered(self._topics.assigned(QUEUE), target, record)

    def _command(self, command: Command, command_id: CommandId, reply_to: str = "") -> str:
        source = "my-service" if reply_to else f"runtime/{RUNTIME}"
        record = command_record(command, command_id, source=source, reply_to=reply_to, sent_at=NOW)
        target = partition_for(command, PARTITIONS_DEFAULT)
        return rendered(topic_of(command, self._topics), target, record)

    def _reply(self, reply: Reply) -> str:
        partition, record = reply_record(reply, REPLY_TO, source=OWNER)
        return rendered(self._topics.replies, partition, record)


def requested() -> Job:
    return begin(
        JobRequested(
            job_id=JOB_ID,
            queue=QUEUE,
            type="quiz_generation",
            payload=Raw(b'{"topic":"tides"}'),
            ready_at=NOW,
            order=int(NOW),
            idempotency_key="user-42-tides",
        ),
        NOW,
    )


def granted() -> LeaseGranted:
    until = Micros(NOW + 60_000_000)
    return LeaseGranted(JOB_ID, MAIN, RUNTIME, Fence(1), 1, until, session=SESSION, number=1)


def defaults() -> str:
    """Of a request whose type nobody declared; the last two only a template can set."""
    template, retry = Template(), Retry()
    rows = {
        "queue": RequestJob(type="x").queue,
        "payload": {},
        "priority": template.priority,
        "timeout_seconds": template.timeout_seconds,
        "lease_seconds": template.lease_seconds,
        "start_timeout_seconds": template.start_timeout_seconds,
        "retry.max_attempts": retry.max_attempts,
        "retry.backoff_seconds": [us / SECOND for us in retry.backoff_us],
        "retry.jitter": retry.jitter,
        "retry.position": retry.position,
        "result_ttl_seconds": template.result_ttl_seconds,
        "idempotency_seconds": template.idempotency_seconds,
        "cancel.grace_seconds": template.cancel.grace_seconds,
    }
    lines = [f"| `{name}` | `{json.dumps(value)}` |" for name, value in rows.items()]
    return "\n".join(["| field | default |", "| --- | --- |", *lines]) + "\n"


def rendered(topic: str, partition: int, record: Outgoing) -> str:
    key, value, headers = record
    assert value is not None
    content = _without_views(json.loads(value))
    text = json.dumps(content, ensure_ascii=False)
    if len(text) > LONG:
        text = json.dumps(content, ensure_ascii=False, indent=2)
    lines = [
        f"{topic}[{partition}]",
        f"key: {'none' if key is None else key.decode()}",
        *(f"{name}: {attribute.decode()}" for name, attribute in headers),
        "",
        text,
    ]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _without_views(value: Any) -> Any:
    """A job's view, which a reply carries, is long, and is shown elsewhere."""
    if isinstance(value, list):
        return [_without_views(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {name: item[name] for name in SHOWN} | {"…": "as GET /v1/jobs/{id} gives it"}
        if key == "job" and "status" in item
        else _without_views(item)
        for key, item in value.items()
    }


def brought_up_to_date(guide: str) -> str:
    """Every block between `<!-- made: name -->` and `<!-- end -->` made anew."""
    conversation = Conversation()
    made: dict[str, Callable[[], str]] = {
        "defaults": defaults,
        "program": lambda: f"```python\n{EXAMPLE.read_text(encoding='utf-8')}```\n",
    }

    def block(match: re.Match[str]) -> str:
        name = match.group(2)
        text = made[name]() if name in made else getattr(conversation, name)
        return f"{match.group(1)}{text}{match.group(3)}"

    return BLOCK.sub(block, guide)


if __name__ == "__main__":
    GUIDE.write_text(brought_up_to_date(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
