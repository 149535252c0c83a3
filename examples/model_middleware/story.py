"""The story of a model middleware: `python -m examples.model_middleware.story API MODEL`."""

import json
import sys
import time
from typing import Any

import httpx

from examples.telling import PATIENCE_SECONDS, Api, Json, expect, fail, show_history, tell

URL, MODEL_URL = sys.argv[1:]
api = Api(URL)
TTS = {
    "base_url": MODEL_URL,
    "route": "/tts",
    "method": "POST",
    "api_key_header": "TTS_API_KEY",
    "api_key": "your-key",
    "timeout_seconds": 2,
    "max_concurrency": 2,
    "retry": {"max_attempts": 3, "backoff_seconds": [0.2], "jitter": 0},
    "result_ttl_seconds": 5,
    "failed_ttl_seconds": 5,
}


def call(text: str, *, tenant: str = "acme", model: str = "tts", **fields: Any) -> Json:
    payload = {"text": text, "tenant": tenant} | fields.pop("payload", {})
    labels = {"tenant": tenant, "user": "ada"}
    job = api.post(f"/v1/models/{model}/calls", {"payload": payload, "labels": labels} | fields)
    return job


def seen() -> Json:
    found: Json = httpx.get(f"{MODEL_URL}/seen").json()
    return found


def gone(path: str) -> httpx.Response:
    """The answer, once it is 404 or 410."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := httpx.get(f"{URL}{path}")).status_code not in (404, 410):
        if time.monotonic() > deadline:
            fail(f"{path} is still there: {answer.text}")
        time.sleep(0.1)
    return answer


def configured() -> None:
    tell("A model is configuration: where it is called, how, and within which bounds.")
    model = api.put("/v1/models/tts", TTS)
    expect("its key is kept and not shown", model["has_api_key"] and "your-key" not in str(model))
    expect("2 retries are 3 attempts", model["retry"]["max_attempts"] == 3)
    expect("that go to the tail", model["retry"]["position"] == "tail")
    changed = api.put("/v1/models/tts", {k: v for k, v in TTS.items() if k != "api_key"})
    expect("put again without its key, it still has it", changed["has_api_key"])


def passed_through() -> Json:
    tell("A call whose caller is passed through to the model.")
    secret = {"Authorization": "Bearer adas-token", "X-User-Info": "ada-in-person"}
    job = call("hello", forward_headers=secret)
    ended = api.ended(job["id"])
    expect("it succeeds", ended["status"] == "succeeded")
    ref = ended["result"]["output_ref"]
    tell(f"    {ref['key']}, {ref['size']} bytes")
    place = f"users/ada/tasks/{job['id']}/output/"
    expect("the answer is in the object store, under its user", ref["key"].startswith(place))
    heard = seen()["calls"][0]
    expect("the model heard who called", secret.items() <= heard.items())
    expect("and a key for this attempt", heard["Idempotency-Key"] == f"{job['id']}:1")
    everything = json.dumps([api.get(f"/v1/jobs/{job['id']}/events", limit=100), ended])
    expect("the ledger's record does not have it", "token" not in everything)
    expect("nor who it was", "ada-in-person" not in everything)
    show_history(job["id"])
    return ended


def limited() -> None:
    tell("Six calls of each of two tenants, through two processes that make calls.")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(runtimes := api.get("/v1/runtimes", queue="models")["items"]) < 2:
        if time.monotonic() > deadline:
            fail(f"two were to be there: {runtimes}")
        time.sleep(0.1)
    for runtime in runtimes:
        tell(f"    {runtime['runtime_id']} is {runtime['status']}")
    jobs = [call(f"{tenant} {n}", tenant=tenant) for n in range(6) for tenant in ("acme", "apex")]
    ends = [api.ended(job["id"])["status"] for job in jobs]
    expect("all succeed", ends == ["succeeded"] * 12)
    together = seen()["together"]
    expect("never more than two of a tenant at the same time", together == {"acme": 2, "apex": 2})


def troubled() -> str:
    tell("The model is busy and says when to come back: 429, Retry-After 1.")
    started = time.monotonic()
    busy = api.ended(call("busy", payload={"behave": "busy once"})["id"])
    expect("attempt 2 of 3", (busy["status"], busy["attempt"]) == ("succeeded", 2))
    expect("it was not asked earlier", time.monotonic() - started > 1)
    tell("It is too slow, once.")
    slow = api.ended(call("slow", payload={"behave": "slow once"})["id"])
    codes = [e["data"]["code"] for e in api.events(slow["id"]) if e["type"] == "attempt_failed"]
    expect("MODEL_TIMEOUT, then it succeeds", (codes, slow["attempt"]) == (["MODEL_TIMEOUT"], 2))
    tell("It is broken.")
    broken = api.ended(call("broken", payload={"behave": "broken"})["id"])
    expect("failed after 3 attempts", (broken["status"], broken["attempt"]) == ("failed", 3))
    expect("as TEMPORARY_PROVIDER_ERROR", broken["error"]["code"] == "TEMPORARY_PROVIDER_ERROR")
    show_history(broken["id"])
    failed_id: str = broken["id"]
    return failed_id


def at_the_tail() -> None:
    tell("One call at a time: what is tried again goes behind what waits.")
    one = {"max_concurrency": 1, "retry": {"max_attempts": 2, "backoff_seconds": [0]}}
    api.put("/v1/models/tts-1", TTS | one)
    api.post("/v1/queues/models/pause", {"reason": "so that all three wait"})
    jobs = [call("1st", model="tts-1", payload={"behave": "broken once"})]
    jobs += [call(text, model="tts-1") for text in ("2nd", "3rd")]
    api.post("/v1/queues/models/resume")
    for job in jobs:
        api.ended(job["id"])
    order = [call["text"] for call in seen()["calls"] if call["text"] in ("1st", "2nd", "3rd")]
    expect("1st, 2nd, 3rd, 1st", order == ["1st", "2nd", "3rd", "1st"])


def collected(done: Json, failed_id: str) -> None:
    tell("The caller collects a batch: one that succeeded, one that failed, one unknown.")
    unknown = done["id"][:-4] + "0000"
    batch = {"ids": [done["id"], failed_id, unknown]}
    first = api.post("/v1/jobs/collect", batch)["items"]
    for item in first:
        tell(f"    {item['id']} {item['status']} until {item['result_expires_at']}")
    expect("the first has its reference", first[0]["output_ref"] == done["result"]["output_ref"])
    expect("and was collected", first[0]["collected_at"] and first[0]["result_expires_at"])
    expect("the failed one was not", first[1]["collected_at"] is None)
    expect("of the unknown one nothing is known", first[2]["status"] is None)
    again = api.post("/v1/jobs/collect", batch)["items"]
    expect("collecting again gives the same answer", again[0] == first[0])

    tell("Time passes.")
    expired = gone(f"/v1/jobs/{done['id']}/output")
    tell(f"  = {expired.status_code} {expired.json()['code']}, {expired.json()['detail']}")
    job = api.job(done["id"])
    expect("the job stays, its result is gone", job["result"] is None)
    item = api.post("/v1/jobs/collect", {"ids": [done["id"]]})["items"][0]
    expect("collect says so", item["output_ref"] is None and item["collected_at"])
    erased = gone(f"/v1/jobs/{failed_id}")
    expect("the failed job was erased", erased.json()["code"] == "JOB_NOT_FOUND")


def deleted() -> None:
    tell("The model is deleted.")
    api.delete("/v1/models/tts")
    api.refused("MODEL_NOT_FOUND", "/v1/models/tts/calls", {"payload": {"text": "hello?"}})


configured()
done = passed_through()
limited()
at_the_tail()
collected(done, troubled())
deleted()
