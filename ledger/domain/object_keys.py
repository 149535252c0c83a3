"""Where an object lies, and whose it is. Keys are made from what is known before the object is
written, so that whoever repeats a command puts its object in the same place.

    users/{user}/projects/{project}/tasks/{task}/input/{command id}-{name}
    users/{user}/projects/{project}/tasks/{task}/input/{command id}-steps.{step}.json
    users/{user}/projects/{project}/tasks/{task}/output/{command id}-{name}
    users/{user}/projects/{project}/tasks/{task}/output/{job id}~{fence}-{name}

User, project and task are the job's labels of these names; an empty one counts as none. Without a
project that part is left out, without a task it is the job id (of a payload, whose job has no id
yet, the command id). Without a user a key begins `queues/{queue}/jobs/{job id}/`, that of a
payload `queues/{queue}/commands/{command id}/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from string import ascii_letters, digits

from ledger.domain.ids import CommandId, Fence, JobId, QueueName, StepName, queue_of

SEGMENT_CHARS_MAX = 80
"""Of one segment made here; a longer one keeps its beginning and gets a digest of the whole."""
DIGEST_CHARS = 64


def payload_key(
    queue: QueueName,
    labels: Mapping[str, str],
    command_id: CommandId,
    name: str = "payload.json",
) -> str:
    """Of a payload that goes to the store before its job is asked for by `command_id`."""
    if user := labels.get("user"):
        task = labels.get("task") or command_id
        folder = f"{_within(user, labels.get('project'))}tasks/{_segment(task)}"
    else:
        folder = f"queues/{_segment(queue)}/commands/{_segment(command_id)}"
    return f"{folder}/input/{_file(_escape(command_id), name)}"


def carried_key(
    queue: QueueName, labels: Mapping[str, str], command_id: CommandId, step: StepName
) -> str:
    """Of the copy of a step's output that the rerun `command_id` brings along: as its job has no id
    yet, it lies beside the payload."""
    return payload_key(queue, labels, command_id, f"steps.{step}.json")


def output_key(
    job_id: JobId,
    labels: Mapping[str, str],
    by: CommandId | Fence,
    name: str = "output.json",
) -> str:
    """Of an output that goes to the store before it is reported by the command `by`, or under the
    fence `by`. Fences of two jobs are the same numbers, so the job's id goes with them."""
    return f"{job_prefix(job_id, labels)}output/{_file(_owner(job_id, by), name)}"


def job_prefix(job_id: JobId, labels: Mapping[str, str]) -> str:
    """In front of every output of the job (and of its task, where jobs share that label)."""
    if user := labels.get("user"):
        task = labels.get("task") or job_id
        return f"{_within(user, labels.get('project'))}tasks/{_segment(task)}/"
    queue = queue_of(job_id)
    if queue is None:
        raise ValueError(f"{job_id!r} is not a job's id")
    return f"queues/{_segment(queue)}/jobs/{_segment(job_id)}/"


def owner_prefix(user: str, project: str | None = None) -> str:
    """In front of every object of the user, or of one project of theirs, and of no other's.

    Raises ValueError for an empty user or project: nobody's objects would be everybody's.
    """
    if not user or project == "":
        raise ValueError("an owner has a name: an empty user or project owns nothing")
    return _within(user, project)


def is_payload_of(
    key: str, queue: QueueName, labels: Mapping[str, str], command_id: CommandId
) -> bool:
    """Whether an object is the payload that belongs to this command, whatever its name."""
    return _belongs(key, payload_key(queue, labels, command_id), _escape(command_id))


def is_output_of(
    key: str, job_id: JobId, labels: Mapping[str, str], *makers: CommandId | Fence
) -> bool:
    """Whether an object is an output of the job that belongs to one of these, whatever its name."""
    return any(_belongs(key, output_key(job_id, labels, by), _owner(job_id, by)) for by in makers)


def _belongs(key: str, usual: str, owner: str) -> bool:
    """A segment that is cut does not tell its owner: then only the usual name will do."""
    folder = usual[: usual.rindex("/") + 1]
    segment = key.removeprefix(folder)
    name = segment.removeprefix(f"{owner}-")
    is_its = segment != key and name != segment and len(segment) <= SEGMENT_CHARS_MAX
    return key == usual or (is_its and _NAME.fullmatch(name) is not None)


def escaping(safe: str) -> Callable[[str], str]:
    """Percent-encodes all bytes of UTF-8 but those of `safe`, and a dot in front, so that what
    comes out is one segment of a path, neither `.` nor `..` nor hidden. Injective."""
    kept = frozenset(safe.encode()) - {ord("%")}
    table = [chr(byte) if byte in kept else f"%{byte:02x}" for byte in range(256)]

    def escape(text: str) -> str:
        escaped = "".join(table[byte] for byte in text.encode())
        return f"%2e{escaped[1:]}" if escaped.startswith(".") else escaped

    return escape


_escape = escaping(ascii_letters + digits + "-_.@")
# The last hyphen of an object's own segment ends its owner.
_escape_name = escaping(ascii_letters + digits + "_.@")
_NAME = re.compile(r"[A-Za-z0-9_.@%]+")


def _owner(job_id: JobId, by: CommandId | Fence) -> str:
    return f"{_escape(job_id)}~{by}" if isinstance(by, int) else _escape(by)


def _within(user: str, project: str | None) -> str:
    folder = f"users/{_segment(user)}/"
    return f"{folder}projects/{_segment(project)}/" if project else folder


def _segment(text: str) -> str:
    if not text:
        raise ValueError("a segment of a key cannot be empty")
    return _bounded(_escape(text))


def _file(owner: str, name: str) -> str:
    if not owner or not name:
        raise ValueError("an object has an owner and a name")
    return _bounded(f"{owner}-{_escape_name(name)}")


def _bounded(segment: str) -> str:
    """No other segment ends in `~` and a digest: `~` stands nowhere else but before a fence, and
    a hyphen follows that."""
    if len(segment) <= SEGMENT_CHARS_MAX:
        return segment
    kept = SEGMENT_CHARS_MAX - DIGEST_CHARS - 1
    return f"{segment[:kept]}~{sha256(segment.encode()).hexdigest()}"
