"""A second opinion on the rules: under random words and times the owner's turns and a model that
shares no rule with them give the same answers, and leave the same jobs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw
from msgspec.structs import replace

from ledger.domain import deadlines
from ledger.domain.canonical import canonical
from ledger.domain.commands import (
    AcknowledgeCancel,
    Asked,
    Beat,
    CancelJob,
    CancelPolicy,
    Claim,
    Command,
    FailAttempt,
    Heartbeat,
    HeldLease,
    Limit,
    LockJob,
    PauseQueue,
    ProgressSaid,
    PutQueue,
    PutTemplate,
    QueueSettings,
    ReleaseLease,
    ReportProgress,
    RequestJob,
    RerunJob,
    ResumeQueue,
    RetryAsk,
    StartAttempt,
    SubmitResult,
    Template,
    WaitForCompletion,
)
from ledger.domain.entries import TakeOver
from ledger.domain.events import LeaseGranted
from ledger.domain.ids import (
    SECOND,
    CommandId,
    Fence,
    JobId,
    Micros,
    QueueName,
    RuntimeId,
    Session,
    parse_rfc3339,
)
from ledger.domain.job import Job, status
from ledger.domain.partition import Bounds, Partition
from ledger.domain.progress import merged, recorded
from ledger.domain.steps import Pending, Waiting, current_lease
from ledger.log.replies import Reply
from processors.owner.credit import Offers
from processors.owner.turn import Turn
from tests.property import reference_model as model
from tests.support.examples import examples
from tests.unit.owner.by_hand import NOON, Owner

Dict = dict[str, Any]

WINDOW = 90
REMEMBERED = WINDOW + 300
QUEUES, TYPES = ("default", "other"), ("report", "quiz")
RUNTIMES, SESSIONS = ("ada", "bob"), ("s1", "s2")
LABELS: list[Dict] = [{"user": "1"}, {"user": "2"}, {"user": "1", "tenant": "a"}]
EQUAL_BY: Dict = {
    "report": {"dedupe_keys": ("/scope",)},
    "quiz": {"dedupe_keys": ("/labels/user", "/scope")},
}
"""One way a type: by which version a rerun is compared depends on what is held besides."""
REPLY_TO = "0/tester"

queues = st.sampled_from(["default", "default", "default", "other"])
types = st.sampled_from(["report", "report", "quiz"])
runtimes = st.sampled_from(RUNTIMES)
retries = st.fixed_dictionaries(
    {},
    optional={
        "attempts": st.integers(1, 3),
        "backoff": st.sampled_from([(), (0,), (2, 7)]),
        "position": st.sampled_from(["keep", "tail"]),
        "fatal": st.sampled_from([(), ("FATAL",), ("LEASE_EXPIRED", "WAIT_TIMEOUT")]),
    },
)
asks = st.fixed_dictionaries(
    {
        "type": types,
        "queue": queues,
        "lease": st.just(10),
        "scope": st.sampled_from([None, "x", "x", "y"]),
        "labels": st.sampled_from(LABELS),
    },
    optional={
        "priority": st.sampled_from([0, 5, 9]),
        "key": st.sampled_from([None, None, "k1", "k2"]),
        "delay": st.sampled_from([0, 3, 20]),
        "start_timeout": st.sampled_from([None, None, 0, 15, 40]),
        "timeout": st.sampled_from([0, 12]),
        "retry": retries,
    },
)
limits = st.lists(
    st.tuples(
        st.sampled_from([(), ("/labels/user",), ("/labels/tenant", "/scope")]), st.integers(0, 2)
    ),
    max_size=2,
).map(tuple)
templates = st.fixed_dictionaries(
    {
        "retry": retries,
        "repeatable": st.sampled_from([True, True, False]),
        "policy": st.sampled_from(
            ["allow_parallel", "reject_same_scope", "replace_existing", "share_in_flight"]
        ),
    },
    optional={
        "enabled": st.sampled_from([True, True, False]),
        "key_scope": st.sampled_from([("/queue", "/type"), ("/labels/user",), ()]),
        "key_seconds": st.sampled_from([0, 30, 604_800]),
        "cancel": st.booleans(),
        "grace": st.sampled_from([0, 8]),
        "priority": st.sampled_from([0, 9]),
        "start_timeout": st.sampled_from([None, 15]),
        "exhausted_as": st.sampled_from([None, "failed", "expired"]),
        "limits": limits,
    },
)
words = st.one_of(
    st.fixed_dictionaries({"kind": st.sampled_from(["start", "release", "cancelled"])}),
    st.fixed_dictionaries({"kind": st.just("wait"), "seconds": st.sampled_from([0, 20])}),
    st.fixed_dictionaries({"kind": st.just("result"), "output": st.sampled_from([1, 2])}),
    st.fixed_dictionaries(
        {
            "kind": st.just("fail"),
            "code": st.sampled_from(["BROKEN", "FATAL", "JOB_TIMEOUT"]),
            "retryable": st.sampled_from([None, True, False]),
            "after": st.sampled_from([None, 4]),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("heartbeat"),
            "start": st.booleans(),
            "percent": st.sampled_from([None, 10.0, 50.0]),
        }
    ),
    st.fixed_dictionaries(
        {"kind": st.just("progress"), "percent": st.sampled_from([None, 10.0, 50.0, 40.0])}
    ),
)


operators = st.one_of(
    st.builds(
        lambda queue, kind, template: {
            "kind": "put_template",
            "queue": queue,
            "type": kind,
            "template": template | EQUAL_BY[kind],
        },
        queues,
        types,
        templates,
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("put_queue"),
            "queue": queues,
            "limits": limits,
            "depth": st.sampled_from([None, None, None, 2]),
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("pause"),
            "queue": queues,
            "pauses": st.sampled_from([True, False, False]),
        }
    ),
)


class SecondOpinion(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.owner = Owner()
        bounds = Bounds(closed_us=10**15, commands_us=WINDOW * SECOND)
        self.owner.partition = Partition(0, bounds)
        self.world = model.Model(WINDOW)
        self.ids: dict[int, JobId] = {}
        self.numbers: dict[str, int] = {}
        self.said: list[tuple[Dict, Asked]] = []
        self.beats = 0

    @initialize(template=templates, first=st.lists(asks, min_size=2, max_size=4))
    def begin(self, template: Dict, first: list[Dict]) -> None:
        template = template | EQUAL_BY["report"]
        its = {"queue": "default", "type": "report", "template": template}
        self.say({"kind": "put_template"} | its | {"template": template | {"enabled": True}})
        for ask in first:
            self.request(ask)

    # --- What happens ----------------------------------------------------------------------------
    @rule(ask=asks)
    def request(self, ask: Dict) -> None:
        self.say({"kind": "request", "ask": ask})

    @rule(data=st.data(), more=st.sampled_from([{}, {"priority": 0}]))
    def request_again(self, data: st.DataObject, more: Dict) -> None:
        """What was asked for before, in a command of its own."""
        n = self.draw(data, list(self.ids))
        self.request(self.world.jobs[n]["ask"] | more)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), said=words, back=st.sampled_from([0, 0, 0, 0, 0, 1, 2]))
    def word(self, data: st.DataObject, said: Dict, back: int) -> None:
        of = data.draw(st.sampled_from([self.held(), self.held(), list(self.ids)]))
        n = self.draw(data, of)
        fence = max(0, self.world.jobs[n]["fence"] - back)
        self.say(self.maybe_keyed(data, said | {"job": n, "fence": fence}))

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), said=words, runtime=runtimes)
    def attempt(self, data: st.DataObject, said: Dict, runtime: str) -> None:
        """From its lease to one word, so that limits are reached."""
        n = self.draw(data, self.ready())
        self.say({"kind": "lock", "job": n, "runtime": runtime})
        self.say({"start": True} | said | {"job": n, "fence": self.world.jobs[n]["fence"]})

    @rule(data=st.data(), runtime=runtimes, kind=st.sampled_from(["lock", "lock", "cancel"]))
    def lock_or_cancel(self, data: st.DataObject, runtime: str, kind: str) -> None:
        more = {"runtime": runtime} if kind == "lock" else {}
        n = self.draw(data, list(self.ids))
        self.say(self.maybe_keyed(data, {"kind": kind, "job": n} | more))

    @rule(data=st.data(), more=st.sampled_from([{}, {}, *({"labels": its} for its in LABELS)]))
    def rerun(self, data: st.DataObject, more: Dict) -> None:
        ended = [n for n, job in self.world.jobs.items() if job["status"] in model.ENDED]
        self.say({"kind": "rerun", "job": self.draw(data, ended)} | more)

    @rule(
        runtime=runtimes,
        asked=st.sampled_from([QUEUES, QUEUES[:1]]),
        its=st.sampled_from([TYPES, TYPES[1:]]),
        limit=st.integers(1, 3),
    )
    def claim(self, runtime: str, asked: Any, its: Any, limit: int) -> None:
        self.clock()
        said = {"runtime": runtime, "queues": asked, "types": its, "limit": limit}
        self.say({"kind": "claim"} | said)

    @rule(
        runtime=runtimes,
        session=st.sampled_from(SESSIONS),
        queue=queues,
        slots=st.integers(0, 2),
        percent=st.sampled_from([None, 10.0, 60.0]),
        leaving=st.sampled_from([False, False, False, True]),
    )
    def beat(self, runtime: str, session: str, queue: str, slots: int, **more: Any) -> None:
        """Of a runtime that says it holds every lease, whoever has it."""
        self.clock()
        leases = [
            (n, job["fence"])
            for n, job in self.world.jobs.items()
            if (job["status"] in model.CURRENT)
        ]
        said = {"runtime": runtime, "session": session, "queues": [queue], "slots": slots}
        said |= {"types": TYPES, "leases": [] if more["leaving"] else leases}
        self.say({"kind": "beat"} | said | more)

    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        """A command comes once more, as it was sent."""
        said, asked = data.draw(st.sampled_from(self.said))
        if said["kind"] == "claim":
            self.clock()
        self.hear(said, replace(asked, appended_at=self.owner.at))

    @rule(said=operators)
    def operate(self, said: Dict) -> None:
        self.say(said)

    @rule(
        seconds=st.sampled_from([1, 2, 4, 7, 9, 10, 13, 30, 200, 500]),
        promptly=st.sampled_from([True, True, False]),
    )
    def time_passes(self, seconds: int, promptly: bool) -> None:
        self.owner.at = Micros(self.owner.at + seconds * SECOND)
        self.world.now += seconds
        if promptly:
            self.clock()

    @rule()
    def clock(self) -> None:
        turn = self.owner.turn()
        turn.timers(self.owner.at, 1000)
        turn.finish()
        self.world.clock()

    @rule()
    def take_over(self) -> None:
        self.owner.partition.take_over(TakeOver("nonce", self.owner.at, "test", 1))
        self.world.floor = self.world.now

    # --- How it is said --------------------------------------------------------------------------
    def held(self) -> list[int]:
        return [n for n, job in self.world.jobs.items() if (job["status"] in model.CURRENT)]

    def ready(self) -> list[int]:
        """But for limits and pauses."""
        now, jobs = self.world.now, self.world.jobs.items()
        return [n for n, job in jobs if job["status"] == "pending" and job["ready"] <= now]

    def draw(self, data: st.DataObject, of: list[int]) -> int:
        n: int = data.draw(st.sampled_from((of or list(self.ids) or [0])[-6:]))
        return n

    def maybe_keyed(self, data: st.DataObject, said: Dict) -> Dict:
        """At times under an Idempotency-Key of these seconds; its route belongs to it."""
        if said["kind"] in ("heartbeat", "progress") or data.draw(st.integers(0, 4)):
            return said
        key = f"ik.{said['kind']}-{said['job']}-{self.world.now // WINDOW}"
        return said | {"id": key, "content": msgspec.json.encode(said).hex()}

    def say(self, said: Dict) -> None:
        self.beats += 1
        asked = self.owner.asked(self.command(said), reply_to=REPLY_TO)
        said = {"id": asked.command_id, "sent": self.world.now} | said
        if "content" in said:
            asked = replace(asked, command_id=CommandId(f"{said['id']}.{said['content']}"))
        asked = replace(asked, sent_at=asked.appended_at)
        if not isinstance(asked.command, Beat):  # Of which an owner hears each number once.
            self.said.append((said, asked))
        self.hear(said, asked)

    def hear(self, said: Dict, asked: Asked) -> None:
        self.owner.offers = Offers()
        # An equal refusal within a minute would leave no entry, by which it is remembered.
        self.owner.partition.refused_at.clear()
        turn = self.owner.turn()
        hear = turn.read_request if isinstance(asked.command, RequestJob) else turn.read_command
        hear(asked)
        if isinstance(asked.command, Beat):
            turn.assign()
        turn.finish()
        found = self.answer(turn, asked)
        said["hint"] = [grant["n"] for grant in found["grants"]]
        if self.may_be_forgotten(said, found):
            return
        expected = self.world.say(said)
        names = ("code", "grants", "again") if expected["code"] == "ok" else ("code",)
        for name in names:
            assert found[name] == expected[name], (said, found, expected)
        if expected["code"] == "ok" and said["kind"] in ("request", "rerun"):
            self.note(expected["job"], found["job_id"])
        if expected["job"] is not None:
            assert found["job_id"] == self.ids[expected["job"]], (said, found, expected)

    def may_be_forgotten(self, said: Dict, found: Dict) -> bool:
        """Whether it was said so long ago that its id may be forgotten, and this says no more than
        that: its outcome again, or that it is too old. Else it is decided anew, which may not be
        where a job was made or a lease taken."""
        before = self.world.seen.get(said["id"])
        if before is None or self.world.now - said["sent"] <= REMEMBERED:
            return False
        if found["again"] or found["code"] in (before["answer"]["code"], "COMMAND_EXPIRED"):
            return True
        assert before["answer"]["code"] != "ok" or said["kind"] not in model.ONCE, (said, found)
        del self.world.seen[said["id"]]
        return False

    def note(self, n: int, job_id: JobId) -> None:
        if n not in self.ids:
            assert job_id not in self.numbers, "no new job"
            self.ids[n], self.numbers[job_id] = job_id, n

    def answer(self, turn: Turn, asked: Asked) -> Dict:
        if isinstance(asked.command, Beat):
            events = [event for entry in turn.entries for event in entry.events]
            granted = [event for event in events if isinstance(event, LeaseGranted)]
            its = [self.grant(e.job_id, e.fence, e.attempt, e.until) for e in granted]
            return {"code": "ok", "job_id": None, "again": False, "grants": tuple(its)}
        (waiting,) = turn.effects.replies
        reply: Reply = waiting.reply
        again = reply.outcome == "duplicate" or reply.replayed
        code = reply.code or "ok"
        return {"code": code, "job_id": reply.job_id, "again": again, "grants": self.grants(reply)}

    def grants(self, reply: Reply) -> tuple[Dict, ...]:
        data = msgspec.json.decode(reply.data) if reply.data is not None else {}
        its = data.get("items", [data] if "fence" in data else [])
        return tuple(
            self.grant(
                one["job_id"], one["fence"], one["attempt"], parse_rfc3339(one["lease_expires_at"])
            )
            for one in its
        )

    def grant(self, job_id: str, fence: int, attempt: int, until: Micros) -> Dict:
        n = self.numbers[job_id]
        return {"n": n, "fence": fence, "attempt": attempt, "until": second(until)}

    def command(self, said: Dict) -> Command:
        """The word as the ledger's own command."""
        job_id, fence = self.ids.get(said.get("job", 0), JobId("")), Fence(said.get("fence", 0))
        queue = QueueName(said.get("queue", said.get("queues", [""])[0]))
        runtime = RuntimeId(said.get("runtime", ""))
        match said["kind"]:
            case "request":
                return requested(said["ask"])
            case "rerun":
                return RerunJob(job_id, **({"labels": said["labels"]} if "labels" in said else {}))
            case "lock":
                return LockJob(job_id, runtime)
            case "claim":
                asked = tuple(map(QueueName, said["queues"]))
                return Claim(runtime, asked, said["types"], said["limit"])
            case "beat":
                return self.beat_of(said, queue, runtime)
            case "cancel":
                return CancelJob(job_id)
            case "put_template":
                return PutTemplate(queue, said["type"], template_of(said["template"], self.beats))
            case "put_queue":
                settings = QueueSettings(said["depth"], limits_of(said["limits"]))
                return PutQueue(queue, settings)
            case "pause":
                return PauseQueue(queue) if said["pauses"] else ResumeQueue(queue)
            case _:
                return word_of(said, job_id, fence)

    def beat_of(self, said: Dict, queue: QueueName, runtime: RuntimeId) -> Beat:
        session = Session(said["session"])
        its = self.owner.partition.queue(queue).sessions.get(runtime)
        received = its.number if its is not None and its.session == session else 0
        progress = None if said["percent"] is None else ProgressSaid(said["percent"])
        held = tuple(HeldLease(self.ids[n], Fence(f), progress) for n, f in said["leases"])
        return Beat(
            runtime,
            session,
            queue,
            self.beats,
            said["types"],
            said["slots"],
            received,
            held,
            leaving=said["leaving"],
        )

    # --- What holds after each step --------------------------------------------------------------
    @invariant()
    def every_job_is_where_the_other_says(self) -> None:
        partition = self.owner.partition
        for n, told in self.world.jobs.items():
            job = partition.job(self.ids[n])
            assert job is not None
            assert self.shown(job) == self.told(told), (n, told)

    def shown(self, job: Job) -> Dict:
        partition, step = self.owner.partition, job.steps[0]
        phase, lease = step.phase, current_lease(step)
        until = lease.until if lease is not None else None
        until = phase.until if isinstance(phase, Waiting) else until
        kept = partition.deferred_word(job.id, lease.fence) if lease is not None else None
        said = merged(step.progress, kept) if kept is not None else recorded(step.progress)
        failed = job.end in ("failed", "expired") and step.failure is not None
        return {
            "status": status(job),
            "attempt": step.attempt,
            "fence": job.fence,
            "holder": (lease.runtime_id, lease.session) if lease else None,
            "until": second(until),
            "ready": second(phase.ready_at) if isinstance(phase, Pending) else None,
            "due": second(deadlines.due(job, partition.floor, self.owner.at)),
            "percent": said.percent if lease else None,
            "stop_by": second(job.cancel.deadline) if job.cancel and not job.end else None,
            "output": bytes(job.result.output or b"") if job.result else None,
            "error": step.failure.code if failed and step.failure else None,
            "replaced_by": self.numbers.get(job.replaced_by or ""),
            "retried_from": self.numbers.get(job.request.retried_from or ""),
        }

    def told(self, job: Dict) -> Dict:
        is_current, is_open = (job["status"] in model.CURRENT), job["status"] not in model.ENDED
        asked = job["stop_asked"] if is_open else None
        names = ("attempt", "fence", "replaced_by", "retried_from")
        return {name: job[name] for name in names} | {
            "status": model.public(job),
            "holder": job["holder"] if is_current else None,
            "until": job["until"] if is_current else None,
            "ready": job["ready"] if job["status"] == "pending" else None,
            "due": min((when for when, _ in self.world.moments(job)), default=None),
            "percent": job["percent"] if is_current else None,
            "stop_by": None if asked is None else asked + job["grace"],
            "output": None if job["output"] is None else b"%d" % job["output"],
            "error": job["error"] if job["status"] in ("failed", "expired") else None,
        }

    @invariant()
    def counts_are_what_the_other_counts(self) -> None:
        jobs = self.world.open()
        assert len(self.owner.partition.jobs) == len(jobs)
        pending = Counter(job["queue"] for job in jobs if model.public(job) == "pending")
        held = {}
        for name, queue in self.owner.partition.queues.items():
            assert queue.pending == pending[name]
            for (where, number, value), its in queue.limits.holders.items():
                held[name, where, number, value] = len(its)
        assert held == {
            (*key[:-1], canonical(list(key[-1]))): count
            for key, count in self.world.holders().items()
        }


def second(at: Micros | None) -> int | None:
    """Since noon; whole ones only."""
    if at is None:
        return None
    seconds, rest = divmod(at - NOON, SECOND)
    assert rest == 0
    return seconds


def limits_of(its: Any) -> tuple[Limit, ...]:
    return tuple(Limit(key, most) for key, most in its)


def retry_of(its: Dict) -> RetryAsk:
    names = {"attempts": "max_attempts", "backoff": "backoff_seconds", "fatal": "fatal_codes"}
    return RetryAsk(jitter=0.0, **{names.get(name, name): value for name, value in its.items()})


def requested(ask: Dict) -> RequestJob:
    names = {"key": "idempotency_key", "delay": "delay_seconds", "lease": "lease_seconds"}
    names |= {"start_timeout": "start_timeout_seconds", "timeout": "timeout_seconds"}
    said = {names.get(name, name): value for name, value in ask.items()}
    return RequestJob(**said | {"retry": retry_of(ask.get("retry", {}))})


def template_of(its: Dict, number: int) -> Template:
    """Each differs from the one before it: an equal one would make no version."""
    names = {"policy": "concurrency_policy", "key_scope": "idempotency_scope"}
    names |= {"key_seconds": "idempotency_seconds", "start_timeout": "start_timeout_seconds"}
    said = {names.get(name, name): value for name, value in its.items()}
    supported, grace = said.pop("cancel", True), said.pop("grace", 30)
    said["cancel"] = CancelPolicy(supported, grace)
    said |= {"retry": retry_of(its["retry"]), "limits": limits_of(its.get("limits", ()))}
    free = ("priority", "delay_seconds", "timeout_seconds", "start_timeout_seconds", "labels")
    return Template(f"{number}", **said, overridable=(*free, "lease_seconds", "retry"))


def word_of(said: Dict, job_id: JobId, fence: Fence) -> Command:
    match said["kind"]:
        case "start":
            return StartAttempt(job_id, fence)
        case "release":
            return ReleaseLease(job_id, fence)
        case "cancelled":
            return AcknowledgeCancel(job_id, fence)
        case "wait":
            return WaitForCompletion(job_id, fence, said["seconds"])
        case "result":
            return SubmitResult(job_id, fence, Raw(b"%d" % said["output"]))
        case "fail":
            return FailAttempt(
                job_id,
                fence,
                said["code"],
                retryable=said["retryable"],
                retry_after_seconds=said["after"],
            )
        case "heartbeat":
            percent = said["percent"]
            progress = None if percent is None else ProgressSaid(percent)
            return Heartbeat(job_id, fence, progress, said["start"])
        case _:
            return ReportProgress(job_id, fence, said["percent"])


TestSecondOpinion = SecondOpinion.TestCase
TestSecondOpinion.settings = settings(
    max_examples=examples(500),
    stateful_step_count=50,
    deadline=None,
    # A long story is made short only on request: it takes minutes. Add Phase.shrink for that.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
