"""The rules of plain jobs once more, written from the requirements and the HTTP contract alone: no
events, no fold, no tables, only dicts that each word changes in place. Slow, and plain.

Instants are whole seconds. A job is named by its number; `say` takes a word as a dict, and gives
the answer as one. Not here: flows, schedules, models, retention, jitter, bounds of memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

Dict = dict[Any, Any]

ENDED = ("succeeded", "failed", "cancelled", "expired")
HELD = ("leased", "running")
CURRENT = (*HELD, "waiting")
"""While the last fence that was given is good for anything."""
DEFAULTS: Dict = {"enabled": True, "repeatable": True, "policy": "allow_parallel", "put": 0}
DEFAULTS |= {"dedupe_keys": ("/scope",), "key_scope": ("/queue", "/type"), "key_seconds": 604_800}
DEFAULTS |= {"cancel": True, "grace": 30, "priority": 5, "timeout": 120, "lease": 60, "retry": {}}
DEFAULTS |= {"start_timeout": None, "exhausted_as": None, "limits": ()}
RETRY: Dict = {"attempts": 4, "backoff": (1, 5, 30), "position": "keep", "fatal": ()}
FRESH: Dict = {"status": "pending", "fence": 0, "attempt": 0, "releases": 0, "started": False}
FRESH |= dict.fromkeys(("stop_asked", "last", "output", "error", "percent", "replaced_by"))
FRESH |= dict.fromkeys(("holder", "start_by", "retried_from"))
NO_WORD: Dict = {"pauses": False, "limits": (), "depth": None}
"""Of an operator on a queue."""
PASSING = ("QUEUE_FULL", "QUEUE_PAUSED", "LIMIT_REACHED")
"""What may turn out otherwise a moment later binds nobody."""
RAN_OUT = ("LEASE_EXPIRED", "JOB_TIMEOUT", "WAIT_TIMEOUT")
ONCE = ("request", "rerun", "lock", "claim")
"""Whose copies would make a job or take a lease once more: they have one outcome by their id."""


def told(code: str = "ok", job: int | None = None, grants: Any = (), again: bool = False) -> Dict:
    return {"code": code, "job": job, "grants": tuple(grants), "again": again}


def first(**refusals: bool) -> Dict | None:
    """The first that is true, in the order in which they are written."""
    return next(
        (told(code.removesuffix("_said_before")) for code, holds in refusals.items() if holds), None
    )


def point(ask: Dict, pointer: str) -> Any:
    found: Any = ask
    for part in pointer.split("/")[1:]:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def equal_by(ask: Dict, template: Dict | None) -> Any:
    """What makes jobs of a template equal; None: nothing equals this one."""
    found = [] if template is None else [point(ask, p) for p in template["dedupe_keys"]]
    return None if not found or None in found else (ask["queue"], ask["type"], *found)


def public(job: Dict) -> str:
    is_stopping = job["stop_asked"] is not None and job["status"] not in ENDED
    return "cancelling" if is_stopping else job["status"]


class Model:
    def __init__(self, window: int) -> None:
        """`window`: how long the id of a command is remembered."""
        self.window, self.now, self.floor, self.tick = window, 0, 0, 0
        self.jobs: dict[int, Dict] = {}
        self.queues: dict[str, Dict] = defaultdict(lambda: dict(NO_WORD))
        tables: list[Dict] = [{} for _ in range(5)]
        self.templates, self.keys, self.seen, self.done, self.sessions = tables

    def say(self, said: Dict) -> Dict:
        self.tick += 1
        kind, content, before = said["kind"], said.get("content"), self.seen.get(said["id"])
        if before is None:
            answer: Dict = getattr(self, kind, self.word)(said)
        elif before["content"] == content:
            answer = before["answer"] | {"again": True}
        else:
            answer = told("IDEMPOTENCY_KEY_REUSED")
        binds = content is not None or (kind in ONCE and (kind != "claim" or answer["grants"]))
        if binds and answer["code"] not in PASSING:
            self.seen.setdefault(said["id"], {"content": content, "answer": answer})
        return answer

    def is_old(self, said: Dict, window: int) -> bool:
        """What may be forgotten is not done once more. A sender's clock may be a minute wrong."""
        return bool(self.now - said["sent"] > window + 60)

    def request(self, said: Dict) -> Dict:
        ask, key, window = said["ask"], None, self.window
        newest = self.templates.get((ask["queue"], ask["type"]))
        by = newest or DEFAULTS
        if ask.get("key") is not None:
            scope = tuple((pointer, point(ask, pointer)) for pointer in by["key_scope"])
            key = (ask["queue"], scope, ask["key"])
            held = self.keys.get(key)
            if held is not None and held["until"] > min(self.now, said["sent"]):
                if held["ask"] != ask:
                    return told("IDEMPOTENCY_KEY_REUSED", held["job"])
                return told(job=held["job"], again=True)
            # Under the template before this one another key may have answered for a copy.
            changed = said["sent"] < by["put"]
            window = min(window, by["key_seconds"]) if changed else by["key_seconds"]
        if refusal := first(
            COMMAND_EXPIRED=self.is_old(said, window), TEMPLATE_DISABLED=not by["enabled"]
        ):
            return refusal
        job = by | ask | {"ask": ask, "once": not by["repeatable"], "equal": equal_by(ask, newest)}
        job |= {"ready": self.now + ask.get("delay", 0)}
        job |= {"retry": RETRY | by["retry"] | ask.get("retry", {})}
        answer = self.admit(job)
        if key is not None and answer["code"] == "ok":
            until = self.now + by["key_seconds"]
            self.keys[key] = {"job": answer["job"], "ask": ask, "until": until}
        return answer

    def rerun(self, said: Dict) -> Dict:
        old = self.jobs[said["job"]]
        newest = self.templates.get((old["queue"], old["type"]))
        if refusal := first(
            JOB_NOT_CLOSED=old["status"] not in ENDED,
            COMMAND_EXPIRED=self.is_old(said, self.window),
            TEMPLATE_DISABLED=newest is not None and not newest["enabled"],
        ):
            return refusal
        job = old | {"ready": self.now}
        if "labels" in said:
            job["ask"] = old["ask"] | {"labels": said["labels"]}
            job["equal"] = equal_by(job["ask"], newest)
        return self.admit(job, of=old["n"])

    def admit(self, job: Dict, of: int | None = None) -> Dict:
        """Beside its equals, and if there is room."""
        newest, leaves = self.templates.get((job["queue"], job["type"])), []
        if job["equal"] is not None and newest is not None:
            if job["once"] and job["equal"] in self.done:
                return told("NOT_REPEATABLE", self.done[job["equal"]])
            equals = [other for other in self.open() if other["equal"] == job["equal"]]
            shared = [other for other in equals if other["stop_asked"] is None]
            if newest["policy"] == "reject_same_scope" and equals:
                return told("DUPLICATE_ACTIVE", equals[0]["n"])
            if newest["policy"] == "share_in_flight" and shared:
                return told(job=shared[0]["n"], again=True)
            leaves = equals if newest["policy"] == "replace_existing" else []
            if not all(other["cancel"] for other in leaves):
                return told("CANCEL_NOT_SUPPORTED")
        pending = [o for o in self.open() if o["queue"] == job["queue"] and public(o) == "pending"]
        depth = self.queues[job["queue"]]["depth"]
        if depth is not None and len([o for o in pending if o not in leaves]) >= depth:
            return told("QUEUE_FULL")
        n = len(self.jobs) + 1
        self.jobs[n] = job | FRESH | {"n": n, "place": self.tick, "retried_from": of}
        if job["start_timeout"] is not None:
            self.jobs[n]["start_by"] = job["ready"] + job["start_timeout"]
        for other in leaves:
            other["replaced_by"] = n if other["stop_asked"] is None else other["replaced_by"]
            self.stop(other)
        return told(job=n)

    def lock(self, said: Dict) -> Dict:
        job = self.jobs[said["job"]]
        refusal = first(
            COMMAND_EXPIRED=self.is_old(said, self.window),
            JOB_CLOSED=job["status"] in ENDED,
            QUEUE_PAUSED=self.queues[job["queue"]]["pauses"],
            JOB_ALREADY_LOCKED=job["status"] in HELD and job["stop_asked"] is None,
            JOB_NOT_PENDING=job["status"] != "pending" or job["ready"] > self.now,
            LIMIT_REACHED=self.is_full(job),
        )
        return refusal or told(grants=[self.lease(job, (said["runtime"], ""))])

    def claim(self, said: Dict) -> Dict:
        refusal = first(
            COMMAND_EXPIRED=self.is_old(said, self.window),
            QUEUE_PAUSED=all(self.queues[queue]["pauses"] for queue in said["queues"]),
        )
        return refusal or told(grants=self.take(said, (said["runtime"], ""), said["limit"]))

    def take(self, said: Dict, holder: tuple[str, str], many: int) -> list[Dict]:
        """The best of each queue in turn. Of jobs that came to wait at one instant, and have no
        order among them, those in `hint` come first."""
        hint = said["hint"]
        grants: list[Dict] = []
        for queue in said["queues"]:
            while len(grants) < many and not self.queues[queue]["pauses"]:
                ready = [
                    (job["priority"], job["place"], hint.index(n) if n in hint else len(hint), n)
                    for n, job in self.jobs.items()
                    if (job["queue"], job["status"]) == (queue, "pending")
                    and (job["type"] in said["types"] and job["ready"] <= self.now)
                    and not self.is_full(job)
                ]
                if not ready:
                    break
                grants.append(self.lease(self.jobs[min(ready)[-1]], holder))
        return grants

    def lease(self, job: Dict, holder: tuple[str, str]) -> Dict:
        job |= {"status": "leased", "holder": holder, "since": self.now, "percent": None}
        job |= {"fence": job["fence"] + 1, "attempt": job["attempt"] + 1}
        job["until"] = self.now + job["lease"]
        return {name: job[name] for name in ("n", "fence", "attempt", "until")}

    def limits_of(self, job: Dict) -> Dict:
        own = self.templates.get((job["queue"], job["type"]), DEFAULTS)["limits"]
        every, found = self.queues[job["queue"]]["limits"], {}
        for where, its in (("", every), (job["type"], own)):
            for number, (pointers, most) in enumerate(its):
                values = tuple(point(job["ask"], pointer) for pointer in pointers)
                found[job["queue"], where, number, values] = most
        return {key: most for key, most in found.items() if None not in key[-1]}

    def holders(self) -> Dict:
        """How many live leases there are under each limit: waiting jobs hold none."""
        keys = [key for o in self.jobs.values() if o["status"] in HELD for key in self.limits_of(o)]
        return {key: keys.count(key) for key in keys}

    def is_full(self, job: Dict) -> bool:
        return any(self.holders().get(its, 0) >= most for its, most in self.limits_of(job).items())

    def word(self, said: Dict) -> Dict:
        """Whatever quotes a fence."""
        job, kind, fence = self.jobs[said["job"]], said["kind"], said["fence"]
        given_up = job["status"] == "waiting" and kind in ("heartbeat", "release")
        decided = kind == "result" and job["output"] is not None
        if refusal := first(
            ok=decided and job["output"] == said["output"],
            RESULT_ALREADY_EXISTS=decided,
            JOB_CLOSED=job["status"] in ENDED,
            ok_said_before=job["last"] == (kind, fence),
            LEASE_STALE=job["status"] == "pending" or fence != job["fence"] or given_up,
            JOB_NOT_PENDING=kind == "cancelled" and job["stop_asked"] is None,
        ):
            return refusal
        if kind not in ("release", "cancelled") and said.get("start", True):
            self.begin(job)
        if said.get("percent") is not None:
            job["percent"] = max(job["percent"] or 0, said["percent"])
        if kind == "heartbeat":
            self.prolong(job, parts=5, at_most=1)
        elif kind in ("result", "cancelled"):
            job["output"] = said.get("output")
            self.end(job, "succeeded" if kind == "result" else kind)
        elif kind == "wait" and job["status"] != "waiting":
            job |= {"status": "waiting", "until": self.now + said["seconds"]}
        elif kind in ("fail", "release"):
            job["last"] = (kind, fence)
            after = self.went_wrong if kind == "fail" else self.give_back
            after(job, said.get("code", ""), said.get("retryable"), said.get("after"))
        return told(job=job["n"])

    def begin(self, job: Dict) -> None:
        if job["status"] == "leased":
            job |= {"status": "running", "started": True, "deadline": self.now + job["timeout"]}

    def prolong(self, job: Dict, *, parts: int, at_most: float = math.inf) -> None:
        """To a whole lease from now, if that is worth a record: at least so small a part of one,
        or so many seconds."""
        more = self.now + job["lease"] - job["until"]
        if parts * more >= job["lease"] or more >= at_most:
            job["until"] = self.now + job["lease"]

    def give_back(self, job: Dict, *said: Any) -> None:
        """A hundred times a job it spends no attempt."""
        job["attempt"] -= job["releases"] < 100
        job["releases"] += 1
        if job["stop_asked"] is not None:
            self.end(job, "cancelled")
        elif job["attempt"] >= job["retry"]["attempts"]:
            self.end(job, "failed", "RELEASED")
        else:
            job |= {"status": "pending", "ready": self.now}

    def beat(self, said: Dict) -> Dict:
        """A runtime with an inbox: only the session that holds a lease prolongs it."""
        (queue,), holder = said["queues"], (said["runtime"], said["session"])
        if self.sessions.get((queue, said["runtime"]), "") > said["session"]:
            return told()
        self.sessions[queue, said["runtime"]] = "" if said["leaving"] else said["session"]
        for job, fence in ((self.jobs[n], fence) for n, fence in said["leases"]):
            if (job["holder"], job["fence"], job["queue"]) != (holder, fence, queue):
                continue
            if said["percent"] is not None and job["status"] in CURRENT:
                self.begin(job)
                job["percent"] = max(job["percent"] or 0, said["percent"])
            if job["status"] in HELD:
                self.prolong(job, parts=3)
        return told(grants=self.take(said, holder, 0 if said["leaving"] else said["slots"]))

    def went_wrong(self, job: Dict, code: str, flag: bool | None, after: int | None) -> None:
        retry, backoff = job["retry"], job["retry"]["backoff"]
        retryable = flag is not False and code not in retry["fatal"]
        if job["stop_asked"] is not None:
            self.end(job, "cancelled")
        elif retryable and job["attempt"] < retry["attempts"]:
            pause = backoff[: job["attempt"]][-1] if backoff else 0
            job |= {"status": "pending", "ready": self.now + max(pause, after or 0)}
            job["place"] = self.tick if retry["position"] == "tail" else job["place"]
        else:
            self.end(job, (job["exhausted_as"] if code in RAN_OUT else None) or "failed", code)

    def end(self, job: Dict, status: str, error: str | None = None) -> None:
        job |= {"status": status, "error": error}
        if status == "succeeded" and job["once"] and job["equal"] is not None:
            self.done.setdefault(job["equal"], job["n"])

    def cancel(self, said: Dict) -> Dict:
        job = self.jobs[said["job"]]
        refusal = first(JOB_CLOSED=job["status"] in ENDED, CANCEL_NOT_SUPPORTED=not job["cancel"])
        if refusal is None:
            self.stop(job)
        return refusal or told(job=job["n"])

    def stop(self, job: Dict) -> None:
        if job["status"] == "pending":
            self.end(job, "cancelled")
        elif job["stop_asked"] is None:
            job["stop_asked"] = self.now

    def open(self) -> list[Dict]:
        return [job for job in self.jobs.values() if job["status"] not in ENDED]

    def moments(self, job: Dict) -> list[tuple[int, str]]:
        """What the clock will say of a job, and when; of what is over the first of these counts.
        Nobody is silent to an owner who has only begun to listen: `floor` is when."""

        def silent(since: int, until: int, period: int) -> int:
            return until if since >= self.floor else max(until, self.floor + period)

        status, asked, found = job["status"], job["stop_asked"], []
        if status in ENDED:
            return []
        if job["start_by"] is not None and not job["started"] and asked is None:
            found.append((job["start_by"], "START_TIMEOUT"))
        if asked is not None:
            found.append((silent(asked, asked + job["grace"], job["grace"]), "GRACE"))
        if status == "running":
            found.append((job["deadline"], "JOB_TIMEOUT"))
        if status in CURRENT:
            code = "WAIT_TIMEOUT" if status == "waiting" else "LEASE_EXPIRED"
            found.append((silent(job["since"], job["until"], job["lease"]), code))
        if status == "pending" and job["ready"] > self.now:
            found.append((job["ready"], "READY"))
        return found

    def clock(self) -> None:
        """All that has fallen due happens now."""
        self.tick += 1
        for job in self.jobs.values():
            over = [what for when, what in self.moments(job) if when <= self.now]
            if over[:1] == ["GRACE"]:
                self.end(job, "cancelled")
            elif over[:1] == ["START_TIMEOUT"]:
                self.end(job, job["exhausted_as"] or "expired", over[0])
            elif over:
                self.went_wrong(job, over[0], None, None)

    def put_template(self, said: Dict) -> Dict:
        template = DEFAULTS | said["template"] | {"put": self.now}
        if template["policy"] == "replace_existing" and not template["cancel"]:
            return told("VALIDATION_FAILED")
        self.templates[said["queue"], said["type"]] = template
        return told()

    def put_queue(self, said: Dict) -> Dict:
        self.queues[said["queue"]] |= said
        return told()

    pause = put_queue
