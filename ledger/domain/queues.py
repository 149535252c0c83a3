"""What one queue holds beside its jobs: who is next, templates, sessions of runtimes."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from ledger.domain.commands import Model, QueueSettings, Template
from ledger.domain.creation import Pinned, pinned
from ledger.domain.events import (
    LeaseGranted,
    ModelDeleted,
    ModelPut,
    QueuePaused,
    QueuePut,
    QueueResumed,
    RuntimeEnded,
    RuntimeStarted,
    TemplatePut,
    decoded,
)
from ledger.domain.ids import Micros, QueueName, RuntimeId, Session
from ledger.domain.limits import Limits
from ledger.domain.ready import Ready
from ledger.domain.schedule_table import Schedules


class RuntimeSession(Struct, frozen=True, gc=False):
    session: Session
    types: tuple[str, ...]
    period_us: int
    started_at: Micros
    number: int = 0
    """Of the last assignment given to it."""


class Paused(Struct, frozen=True, gc=False):
    at: Micros
    reason: str
    by: str


class Queue:
    __slots__ = (
        "is_put",
        "limits",
        "models",
        "name",
        "paused",
        "pending",
        "pinned",
        "ready",
        "schedules",
        "sessions",
        "settings",
        "templates",
    )

    def __init__(self, name: QueueName, ready: Ready, limits: Limits) -> None:
        self.name = name
        self.ready = ready
        self.templates: dict[str, dict[int, Pinned]] = {}
        """Versions by type: the newest, and those that open jobs hold."""
        self.pinned: Counter[tuple[str, int]] = Counter()
        self.sessions: dict[RuntimeId, RuntimeSession] = {}
        self.settings = QueueSettings()
        self.is_put = False
        """Whether an operator ever said anything of it."""
        self.paused: Paused | None = None
        self.pending = 0
        """Jobs that wait to be leased, due or not."""
        self.limits = limits
        self.schedules = Schedules()
        self.models: dict[str, Model] = {}

    def is_used(self) -> bool:
        """Whether it holds anything that was ever told of it, beside its jobs."""
        told = (self.templates, self.pinned, self.sessions, self.is_put, self.paused, self.pending)
        return any(told) or any((len(self.schedules), self.schedules.deleted, self.models))

    # --- Templates -------------------------------------------------------------------------------
    def template(self, job_type: str, version: int | None = None) -> Pinned | None:
        versions = self.templates.get(job_type)
        if not versions:
            return None
        return versions.get(max(versions) if version is None else version)

    def put_template(self, event: TemplatePut, at: Micros) -> bool:
        """False: it does not have the form that this version knows."""
        template = decoded(event.template, Template)
        if template is None:
            return False
        versions = self.templates.setdefault(event.type, {})
        for version in [v for v in versions if not self.pinned[event.type, v]]:
            del versions[version]
        versions[event.version] = pinned(event.type, event.version, template, at)
        return True

    def pin(self, job_type: str, version: int, jobs: int = 1) -> None:
        """So many open jobs hold that version."""
        self.pinned[job_type, version] += jobs

    def unpin(self, job_type: str, version: int) -> None:
        left = self.pinned[job_type, version] - 1
        if left > 0:
            self.pinned[job_type, version] = left
            return
        del self.pinned[job_type, version]
        versions = self.templates.get(job_type, {})
        if version in versions and version != max(versions):
            del versions[version]

    # --- What operators say ----------------------------------------------------------------------
    def put_settings(self, event: QueuePut) -> bool:
        settings = decoded(event.settings, QueueSettings)
        if settings is None:
            return False
        self.settings, self.is_put = settings, True
        return True

    def pause(self, event: QueuePaused | QueueResumed, at: Micros) -> None:
        paused = isinstance(event, QueuePaused)
        self.paused = Paused(at, event.reason, event.by) if paused else None

    def apply_model(self, event: ModelPut | ModelDeleted) -> bool:
        if isinstance(event, ModelDeleted):
            return self.models.pop(event.name, None) is not None
        model = decoded(event.model, Model)
        if model is None:
            return False
        self.models[event.name] = model
        return True

    # --- Sessions --------------------------------------------------------------------------------
    def start_session(self, event: RuntimeStarted, at: Micros) -> None:
        known = self.sessions.get(event.runtime_id)
        same = known is not None and known.session == event.session
        number = known.number if known is not None and same else 0
        self.sessions[event.runtime_id] = RuntimeSession(
            event.session, event.types, event.period_us, at, number
        )

    def end_session(self, event: RuntimeEnded) -> None:
        known = self.sessions.get(event.runtime_id)
        if known is not None and known.session == event.session:
            del self.sessions[event.runtime_id]

    def count_assignment(self, event: LeaseGranted) -> None:
        known = self.sessions.get(event.runtime_id)
        if known is not None and known.session == event.session and event.number > known.number:
            self.sessions[event.runtime_id] = replace(known, number=event.number)
