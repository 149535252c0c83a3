"""What producers asked for and what they were told: held against the log when all is over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["unknown", "acknowledged", "accepted", "refused"]


@dataclass(eq=False)
class Ask:
    """One request, said as often as it takes."""

    key: str
    """Of its idempotency: in the log it is one job."""
    body: dict[str, Any]
    state: State = "unknown"
    job_id: str = ""
    """Once accepted."""
    code: str = ""
    """Once refused."""


@dataclass(frozen=True)
class Done:
    """A command about a job that was decided: the log must show it."""

    kind: Literal["cancel", "rerun"]
    job_id: str
    new_job_id: str = ""


@dataclass
class Journal:
    asks: dict[str, Ask] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    command_ids: set[str] = field(default_factory=set)
    """Of commands that the brokers acknowledged."""
    seen: Counter[str] = field(default_factory=Counter)
    """Answers by kind: `503 LOG_UNAVAILABLE`, `not acknowledged` …"""
    violations: list[str] = field(default_factory=list)
    """What no reader should have been told."""

    def ask(self, body: dict[str, Any]) -> Ask:
        ask = Ask(body["idempotency_key"], body)
        self.asks[ask.key] = ask
        return ask

    def accepted(self, ask: Ask, job_id: str) -> None:
        if ask.job_id and ask.job_id != job_id:
            self.violations.append(f"{ask.key} was told to be {ask.job_id}, then {job_id}")
        ask.state, ask.job_id = "accepted", job_id

    def acknowledged(self, ask: Ask) -> None:
        if ask.state == "unknown":
            ask.state = "acknowledged"

    def refused(self, ask: Ask, code: str) -> None:
        ask.state, ask.code = "refused", code
        self.seen[f"refused {code}"] += 1

    def open(self) -> list[Ask]:
        """Those of which it is not known whether the log has them."""
        return [ask for ask in self.asks.values() if ask.state == "unknown"]

    def jobs(self) -> list[str]:
        return [ask.job_id for ask in self.asks.values() if ask.job_id]
