"""Templates: how jobs of one type behave, by version."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from ledger.domain import schemas
from ledger.domain.canonical import canonical
from ledger.domain.commands import PutTemplate, RequestJob, Template
from ledger.domain.decisions import Decided, Decision
from ledger.domain.events import TemplatePut
from ledger.domain.flow_design import wrong_steps
from ledger.domain.ids import QueueName
from ledger.domain.operator_views import template_view
from ledger.domain.partition import Partition
from ledger.domain.pointers import is_pointer
from ledger.domain.queue_control import wrong_limits
from ledger.domain.rejections import Rejected, Rejection
from ledger.domain.wrong import Wrong

POINTERS_MAX = 20
_FIELDS = frozenset(RequestJob.__struct_fields__)


def put(partition: Partition, command: PutTemplate) -> Decision:
    """The next version; equal content makes none."""
    if wrong := _wrong(command.template):
        return wrong
    queue = partition.queues.get(command.queue)
    newest = queue.template(command.type) if queue else None
    if newest is not None and _content(newest.template) == _content(command.template):
        return Decided(template_version=newest.version)
    version = newest.version + 1 if newest else 1
    content = msgspec.Raw(msgspec.json.encode(command.template))
    put = TemplatePut(command.queue, command.type, version, content)
    return Decided((put,), template_version=version, created=newest is None)


def _content(template: Template) -> bytes:
    """The JSON value that a reader sees: neither how a schema was written (spaces, order of keys)
    nor what is said as the default makes another template."""
    shown = template_view(QueueName(""), "", 0, template)
    value = msgspec.json.decode(msgspec.json.encode(shown))
    try:
        return canonical(value)
    except ValueError:  # A schema may hold a number beyond what RFC 8785 can say.
        return msgspec.json.encode(value, order="deterministic")


def _wrong(template: Template) -> Rejected | None:
    """Pointers are those of the template's own body."""
    if len(template.idempotency_scope) > POINTERS_MAX:
        return _invalid("/idempotency_scope", f"more than {POINTERS_MAX} pointers")
    for name in ("idempotency_scope", "dedupe_keys"):
        for index, pointer in enumerate(getattr(template, name)):
            if not is_pointer(pointer):
                return _invalid(f"/{name}/{index}", "no JSON pointer into a request")
    for name in ("payload_schema", "output_schema"):
        content = getattr(template, name)
        schema = None if content is UNSET else schemas.compiled(content)
        if isinstance(schema, Wrong):
            return _invalid(f"/{name}{schema.pointer}", schema.message)
    if template.concurrency_policy == "replace_existing" and not template.cancel.supported:
        return _invalid("/concurrency_policy", "what cannot be cancelled cannot be replaced")
    if wrong := wrong_limits(template.limits) or wrong_steps(template):
        return wrong
    for index, name in enumerate(template.overridable):
        if name not in _FIELDS:
            return _invalid(f"/overridable/{index}", "a request has no such field")
    return None


def _invalid(pointer: str, detail: str) -> Rejected:
    return Rejected(Rejection.VALIDATION_FAILED, detail, pointer=pointer)
