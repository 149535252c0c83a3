"""Models: HTTP targets that jobs call. A model is also the template of the jobs that call it."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from ledger.domain.commands import (
    SECONDS_MAX,
    DeleteModel,
    Limit,
    Model,
    PutModel,
    RequestJob,
    RetryAsk,
    Template,
)
from ledger.domain.decisions import Decided, Decision
from ledger.domain.events import ModelDeleted, ModelPut, TemplatePut
from ledger.domain.ids import MODELS_QUEUE, QueueName
from ledger.domain.partition import Partition
from ledger.domain.rejections import Rejected, Rejection

TENANT = "tenant"
"""The label by which a model's limit counts."""
TENANT_DEFAULT = "default"
MODELS_MAX = 190
"""A runtime offers the names of all with each beat, and has room for a few that were deleted."""
AROUND_CALL_SECONDS = 30.0
"""What an attempt has beyond the model's own time: to fetch the payload and to store the answer. So
it is the call that ends when a model hangs, with its own code, and not the attempt."""


def put(partition: Partition, command: PutModel) -> Decision:
    """Without a key the one before it is kept. Equal content makes no news."""
    if wrong := _wrong_address(command.model.base_url):
        return Rejected(Rejection.VALIDATION_FAILED, wrong, pointer="/base_url")
    queue = partition.queues.get(MODELS_QUEUE)
    before = None if queue is None else queue.models.get(command.name)
    model = command.model
    if before is None and queue is not None and len(queue.models) >= MODELS_MAX:
        detail = f"there are {MODELS_MAX} models; delete one first"
        return Rejected(Rejection.VALIDATION_FAILED, detail, pointer="/name")
    if model.api_key is UNSET:
        model = replace(model, api_key=None if before is None else before.api_key)
    if before == model:
        return Decided()
    newest = None if queue is None else queue.template(command.name)
    template = template_of(model)
    events: tuple[ModelPut | TemplatePut, ...] = (
        ModelPut(MODELS_QUEUE, command.name, Raw(msgspec.json.encode(model))),
    )
    if newest is None or newest.template != template:
        version = newest.version + 1 if newest else 1
        content = Raw(msgspec.json.encode(template))
        events += (TemplatePut(MODELS_QUEUE, command.name, version, content),)
    return Decided(events, created=before is None)


def delete(partition: Partition, command: DeleteModel) -> Decision:
    """New calls are refused from here on; those that wait fail when they are tried."""
    queue = partition.queues.get(MODELS_QUEUE)
    if queue is None or command.name not in queue.models:
        return not_found(command.name)
    newest = queue.template(command.name)
    events: tuple[ModelDeleted | TemplatePut, ...] = (ModelDeleted(MODELS_QUEUE, command.name),)
    if newest is not None and newest.template.enabled:
        closed = Raw(msgspec.json.encode(replace(newest.template, enabled=False)))
        events += (TemplatePut(MODELS_QUEUE, command.name, newest.version + 1, closed),)
    return Decided(events)


def template_of(model: Model) -> Template:
    """The tenant is a label: a limit counts per tenant and model."""
    limits: tuple[Limit, ...] = ()
    if model.max_concurrency is not None:
        limits = (Limit((f"/labels/{TENANT}",), model.max_concurrency),)
    return Template(
        timeout_seconds=min(model.timeout_seconds + AROUND_CALL_SECONDS, SECONDS_MAX),
        start_timeout_seconds=model.start_timeout_seconds,
        retry=retry_of(model),
        result_ttl_seconds=model.result_ttl_seconds,
        failed_ttl_seconds=model.failed_ttl_seconds,
        limits=limits,
    )


def _wrong_address(base_url: str) -> str:
    """Empty: nothing is. Whether it may be called is the guard's to say, when it is."""
    try:
        url = urlsplit(base_url)
        has_host = bool(url.hostname) and url.port != 0
    except ValueError:
        return "no address"
    if url.scheme not in ("http", "https") or not has_host:
        return "no address: http://host/… or https://host/…"
    if "@" in url.netloc:
        return "a password does not belong into an address; give it as api_key"
    return "a base ends before ? and #" if url.query or url.fragment else ""


def retry_of(model: Model) -> RetryAsk:
    """Who is tried again stands behind those that wait, unless the model says otherwise."""
    said = model.retry
    return replace(said, position="tail") if said.position is UNSET else said


def with_tenant(request: RequestJob) -> RequestJob:
    """A call of nobody in particular is the default tenant's, or it would be under no limit."""
    if request.queue != MODELS_QUEUE:
        return request
    labels = {} if request.labels is UNSET else request.labels
    return replace(request, labels={TENANT: TENANT_DEFAULT, **labels})


def refuse_unknown(partition: Partition, queue: QueueName, job_type: str) -> Rejected | None:
    """A job in the queue of models is a call of the one that its type names."""
    if queue != MODELS_QUEUE:
        return None
    its = partition.queues.get(queue)
    return None if its is not None and job_type in its.models else not_found(job_type)


def not_found(name: str) -> Rejected:
    return Rejected(Rejection.MODEL_NOT_FOUND, f"there is no model {name}", pointer="/name")
