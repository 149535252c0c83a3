"""The story of a learning product's AI jobs: `python -m examples.ai_runtime_jobs.story API_URL`."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from examples.telling import Api, Json, expect, show_history, tell

api = Api(sys.argv[1])
LABELS = {
    "user": "ada",
    "target_type": "material",
    "target_id": "m-1",
    "api_key_mode": "platform_key",
    "model_provider": "deepseek",
    "model_name": "deepseek-chat",
    "prompt_version": "v3",
}


def request(type: str, topic: str | None = "tides", user: str = "ada", **fields: object) -> Json:
    snapshot = {"topic": topic} if topic else {}
    payload: Json = {"snapshot_id": "s-7", "snapshot": snapshot}
    if type == "quiz_generation":
        payload["params"] = {"count": 2}
    job = {"type": type, "queue": "ai", "payload": payload, "labels": LABELS | {"user": user}}
    return job | fields


def idempotent_creation() -> None:
    tell("Ada asks for a quiz, and asks again because the answer was lost.")
    first = api.post("/v1/jobs", request("quiz_generation", idempotency_key="k-1"))
    again = api.post("/v1/jobs", request("quiz_generation", idempotency_key="k-1"))
    expect("the same job answers", again["id"] == first["id"] and again["deduplicated"])
    other = request("quiz_generation", "volcanoes", idempotency_key="k-1")
    api.refused("IDEMPOTENCY_KEY_REUSED", "/v1/jobs", other)
    bobs = api.post("/v1/jobs", request("quiz_generation", user="bob", idempotency_key="k-1"))
    expect("Bob's key k-1 is another key", bobs["id"] != first["id"])
    done = api.ended(first["id"])
    expect("the quiz is made", len(done["result"]["output"]["questions"]) == 2)


def errors_of_two_kinds() -> None:
    tell("The model is too slow at first: MODEL_TIMEOUT can be tried again.")
    slow = request("quiz_generation", "slow at first", timeout_seconds=4)
    job = api.ended(api.post("/v1/jobs", slow)["id"])
    counts = (job["attempt"], job["max_attempts"])
    expect("it succeeds in attempt 2 of 4, which is retry 1 of 3", counts == (2, 4))
    failures = [e["data"]["code"] for e in api.events(job["id"]) if e["type"] == "attempt_failed"]
    expect("the first attempt failed with MODEL_TIMEOUT", failures == ["MODEL_TIMEOUT"])
    show_history(job["id"])

    tell("A snapshot without a topic: INVALID_SNAPSHOT is final.")
    job = api.ended(api.post("/v1/jobs", request("quiz_generation", None))["id"])
    expect("failed in attempt 1 of 4", (job["status"], job["attempt"]) == ("failed", 1))
    expect("the error says why", job["error"]["code"] == "INVALID_SNAPSHOT")

    tell("An admin mends the snapshot and reruns it.")
    payload = {**job["payload"], "snapshot": {"topic": "tides"}}
    rerun = api.post(f"/v1/jobs/{job['id']}/rerun", {"payload": payload})
    expect("a new job that names the old one", rerun["retried_from"] == job["id"] != rerun["id"])
    expect("it succeeds", api.ended(rerun["id"])["status"] == "succeeded")
    expect("the old one stays failed", api.job(job["id"])["status"] == "failed")


def one_winner() -> None:
    tell("Two runtimes over HTTP poll for analyses; 0 is the most urgent.")
    later = api.post("/v1/jobs", request("learning_state_analysis", priority=3))
    urgent = api.post("/v1/jobs", request("learning_state_analysis", priority=0))
    look = {"queues": ["ai"], "types": ["learning_state_analysis"], "limit": 50}
    items = api.post("/v1/runtimes/laptop-1/poll", look)["items"]
    expect("urgent first", [item["id"] for item in items] == [urgent["id"], later["id"]])
    look["types"] = ["flashcard_generation"]
    nothing = api.post("/v1/runtimes/laptop-1/poll", look)["items"]
    expect("only types that the runtime can do", nothing == [])

    tell("Both lock the same job at the same moment.")
    path = f"/v1/jobs/{urgent['id']}"
    with ThreadPoolExecutor() as threads:
        answers = threads.map(lambda name: (name, lock(path, name)), ("laptop-1", "laptop-2"))
        won, lost = sorted(answers, key=lambda answer: answer[1]["http"])
    expect(f"{won[0]} has it", "fence" in won[1])
    expect(f"{lost[0]} is told JOB_ALREADY_LOCKED", lost[1]["code"] == "JOB_ALREADY_LOCKED")
    fence = won[1]["fence"]
    api.post(f"{path}/heartbeat", {"fence": fence})
    expect("its first heartbeat starts the job", api.job(urgent["id"])["status"] == "running")

    tell(f"{won[0]} sends its result, twice, and then another one.")
    output = {"summary": "knows tides", "mastery": {"tides": 0.9}}
    done = api.post(f"{path}/result", {"fence": fence, "output": output})
    again = api.post(f"{path}/result", {"fence": fence, "output": output})
    expect("the same again changes nothing", again["version"] == done["version"])
    other = output | {"summary": "knows nothing"}
    api.refused("RESULT_ALREADY_EXISTS", f"{path}/result", {"fence": fence, "output": other})


def lock(path: str, runtime: str) -> Json:
    return api.attempt(f"{path}/lock", {"runtime_id": runtime})


def expired_lease() -> None:
    tell("laptop-1 takes a planning job under a lease of 3 s, and beats for 4 s.")
    job = api.post("/v1/jobs", request("next_action_planning", lease_seconds=3))
    path = f"/v1/jobs/{job['id']}"
    silent = claim("laptop-1", "next_action_planning")
    until = silent["lease_expires_at"]
    for _ in range(8):
        time.sleep(0.5)
        until = api.post(f"{path}/heartbeat", {"fence": silent["fence"]})["lease_expires_at"]
    extended = until > silent["lease_expires_at"]
    expect("it still has the job: heartbeats extend the lease", extended)
    tell("Then it is never heard of again. laptop-2 asks for work, and waits.")
    taken = claim("laptop-2", "next_action_planning")
    same = (taken["job_id"], taken["attempt"]) == (job["id"], 2)
    expect("it is given the same job, as attempt 2", same)
    output = {"recommendations": [{"action": "read about tides"}]}
    api.refused("LEASE_STALE", f"{path}/result", {"fence": silent["fence"], "output": output})
    done = api.post(f"{path}/result", {"fence": taken["fence"], "output": output})
    expect("laptop-2's result counts", done["status"] == "succeeded")
    types = [event["type"] for event in api.events(job["id"])]
    expect("expired was passed through, as an event", "attempt_expired" in types)
    show_history(job["id"])


def claim(runtime: str, type: str) -> Json:
    ask = {"queues": ["ai"], "types": [type], "wait_seconds": 15}
    leased: Json = api.post(f"/v1/runtimes/{runtime}/claim", ask)["items"][0]
    return leased


def consent_withdrawn() -> None:
    tell("Eve has one analysis running and three waiting, and withdraws her consent.")
    jobs = [api.post("/v1/jobs", request("weak_point_analysis", user="eve")) for _ in range(4)]
    running = claim("laptop-1", "weak_point_analysis")
    api.post(f"/v1/jobs/{running['job_id']}/start", {"fence": running["fence"]})
    expect("four jobs are hers", len(api.get("/v1/jobs", **{"label.user": "eve"})["items"]) == 4)
    where = {"labels": {"user": "eve"}}
    dry = api.post("/v1/jobs/cancel", {"where": where, "reason": "consent", "dry_run": True})
    expect("a dry run says how many it would be", dry["matched"] == 4)
    api.post("/v1/jobs/cancel", {"where": where, "reason": "consent withdrawn"})
    waiting = [job["id"] for job in jobs if job["id"] != running["job_id"]]
    ended = [api.ended(job_id)["status"] for job_id in waiting]
    expect("what waited is cancelled at once", ended == ["cancelled"] * 3)
    api.until(running["job_id"], lambda job: job["status"] == "cancelling")
    path = f"/v1/jobs/{running['job_id']}"
    beat = api.post(f"{path}/heartbeat", {"fence": running["fence"]})
    expect("the runtime hears of it at its next heartbeat", beat["cancel_requested"])
    stopped = api.post(f"{path}/cancelled", {"fence": running["fence"]})
    expect("and stops", stopped["status"] == "cancelled")
    show_history(running["job_id"])


def found_again() -> None:
    tell("What is not the ledger's business is a label, and is found by it.")
    params = {"label.model_name": "deepseek-chat", "label.user": "ada", "status": "failed"}
    failed = api.get("/v1/jobs", **params)["items"]
    expect("Ada's failed job", [job["error"]["code"] for job in failed] == ["INVALID_SNAPSHOT"])


idempotent_creation()
errors_of_two_kinds()
one_winner()
expired_lease()
consent_withdrawn()
found_again()
