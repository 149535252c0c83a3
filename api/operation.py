"""One route: what it takes, what it answers. The router and the OpenAPI document are both made from
these, so that they cannot drift apart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from api.catalogue import Catalogue
from api.claims import Claims
from api.gateway import Gateway
from api.input import Preference, traceparent_from
from api.large_bodies import LargeBodies
from api.live import Live
from api.metrics import Metrics
from api.positions import Seen
from api.settings import Settings
from api.wire import Wire
from ledger.domain.ids import LEDGER_QUEUE, JobId, Micros, QueueName, RuntimeId, queue_of
from ledger.log.partitions import partition_of
from ledger.objects import ObjectStore
from projections.reads import Reads

Principal = Callable[[Request], str]
"""Who asks. The seam for authentication: it may raise `Refused`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What handling a request may use."""

    settings: Settings
    wire: Wire
    gateway: Gateway
    claims: Claims
    reads: Reads
    catalogue: Catalogue
    seen: Seen
    objects: ObjectStore | None
    """None: what is too large for the log is refused."""
    large_bodies: LargeBodies
    live: Live
    metrics: Metrics
    principal: Principal
    now: Callable[[], Micros]

    def partition_of(self, queue: QueueName) -> int:
        return partition_of(queue, self.settings.partitions)


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The route takes no parameters."""


@dataclass(slots=True, kw_only=True)
class Ask:
    """A request whose every part is decoded and within its bounds."""

    request: Request
    services: Services
    operation: Operation
    path: Mapping[str, str]
    query: Any
    """Of the type that the operation names."""
    body: Any
    """Likewise; None without one."""
    value: object
    """The same body as strict JSON values."""
    preference: Preference
    key: str | None
    """Of the header Idempotency-Key."""

    @property
    def job_id(self) -> JobId:
        return JobId(self.path["id"])

    @property
    def runtime_id(self) -> RuntimeId:
        return RuntimeId(self.path["rid"])

    @property
    def decision_seconds(self) -> float:
        wanted = self.preference.wait_seconds
        return self.services.settings.decision_seconds if wanted is None else wanted

    @property
    def view_seconds(self) -> float:
        wanted = self.preference.wait_seconds
        return self.services.settings.view_seconds if wanted is None else wanted

    @property
    def traceparent(self) -> str:
        return traceparent_from(self.request.headers.get("traceparent", ""))

    @property
    def partition(self) -> int | None:
        """The one that the path's job or queue lies in."""
        queue = queue_of(self.path["id"]) if "id" in self.path else self.path.get("queue")
        return None if queue is None else self.services.partition_of(QueueName(queue))

    @property
    def ledger_partition(self) -> int:
        """Where what spans queues lies."""
        return self.services.partition_of(LEDGER_QUEUE)


Endpoint = Callable[[Ask], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A success. `content` None: no body, or bytes of no fixed form."""

    content: Any
    """A struct's type, or a union of some."""
    description: str
    media_type: str = "application/json"
    also: tuple[str, ...] = ()
    """Further media types, of texts."""
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    """As OpenAPI writes it; `{id}` is a job's id, `{rid}` a runtime's."""
    name: str
    """`operationId`."""
    tag: str
    summary: str
    endpoint: Endpoint
    answers: Mapping[int, Answer]
    codes: tuple[str, ...] = ()
    """Of problems, beyond those that any route can answer."""
    query: type[Struct] = NoQuery
    prefixed: str | None = None
    """The field of `query` that takes all parameters `<field>.<key>`."""
    body: type[Struct] | None = None
    is_command: bool = False
    """Sends one, and so takes Idempotency-Key, If-Match and Prefer."""
    is_read: bool = False
    """Answers from the views, and so takes Ledger-Min-Position and Prefer."""
    moves: bool = False
    """Takes what is too large for the log, where there is an object store."""
    unknown: str = ""
    """The code for a name in the path that nothing of its kind can have."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further request headers, with what each does."""
