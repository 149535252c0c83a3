"""The story of a pipeline for pictures: `python -m examples.generation_pipeline.story API_URL`."""

import hashlib
import json
import sys
import time

import httpx
from websockets.sync.client import connect

from examples.telling import Api, Json, expect, show_history, tell

URL = sys.argv[1]
api = Api(URL)
LABELS = {"user": "ada", "project": "p-1"}
RANGES = {
    "prompt_builder": (0, 20),
    "asset_generator": (20, 60),
    "quality_supervisor": (60, 80),
    "format_adapter": (80, 100),
}


def submit(prompt: str, **params: int) -> Json:
    return api.post("/v1/jobs", request(prompt, **params))


def request(prompt: str, **params: int) -> Json:
    payload = {"prompt": prompt, "asset_type": "sprite", "params": params}
    return {"type": "generate_asset", "queue": "art", "payload": payload, "labels": LABELS}


def count(job: Json, type: str) -> int:
    return sum(event["type"] == type for event in api.events(job["id"]))


def followed() -> None:
    tell("Submitted: the id comes at once. Then the task is watched over a WebSocket.")
    task = submit("a red fox")
    expect("it was not run meanwhile", task["status"] in ("pending", "leased"))
    shown: list[tuple[str, float]] = []
    with connect(f"{URL.replace('http', 'ws', 1)}/v1/jobs/{task['id']}/progress") as socket:
        for message in socket:
            task = json.loads(message)
            progress = task["progress"] or {"phase": None, "percent": 0}
            now = (progress["phase"], progress["percent"])
            if progress["phase"] and now not in shown:
                tell(f"    {now[1]:5.0f} % {now[0]}")
                shown.append(now)
    within = [RANGES[phase][0] <= percent <= RANGES[phase][1] for phase, percent in shown]
    expect("each stage keeps to its range, 0-20-60-80-100", all(within))
    # Whoever watches is told how things are now: of two quick stages maybe only the second.
    stages, seen = list(RANGES), [phase for phase, _ in shown]
    expect("they come in their order", seen == sorted(seen, key=stages.index))
    begun = [e["data"]["step"] for e in api.events(task["id"]) if e["type"] == "attempt_started"]
    expect("the history has all four", begun == stages)
    expect("the last message says how it ended", task["status"] == "succeeded")
    show_history(task["id"])


def shared() -> None:
    tell("The same prompt, type and parameters twice, and another one.")
    api.post("/v1/queues/art/pause", {"reason": "so that the first has not ended yet"})
    first = submit("a blue whale")
    second = submit("a blue whale")
    expect("the second submitter gets the first one's id", second["id"] == first["id"])
    expect("and is told so", second["deduplicated"])
    other = submit("a grey wolf")
    expect("another prompt is another task", other["id"] != first["id"])
    api.post("/v1/queues/art/resume")
    api.ended(first["id"])
    again = submit("a blue whale")
    expect("once it has ended, the same may run again", again["id"] != first["id"])
    for task in (other, again):
        api.ended(task["id"])


def sent_back() -> None:
    tell("The quality check is not content, twice.")
    task = submit("an owl", fails_checks=2)
    ended = api.ended(task["id"])
    expect("it was sent back twice, and passed", count(task, "sent_back") == 2)
    expect("it is not degraded", ended["status"] == "succeeded" and not ended["degraded"])
    expect("all in attempt 1: that is not a retry of the task", ended["attempt"] == 1)

    tell("The quality check is never content.")
    task = submit("a unicorn", fails_checks=99)
    ended = api.ended(task["id"])
    expect("it was sent back three times, not more", count(task, "sent_back") == 3)
    expect("then it went on, degraded", ended["status"] == "succeeded" and ended["degraded"])
    statuses = {step["name"]: step["status"] for step in ended["steps"]}
    expect("its check stays failed", statuses["quality_supervisor"] == "failed")
    for event in api.events(task["id"]):
        if event["type"] in ("sent_back", "step_degraded", "succeeded"):
            tell(f"    {event['seq']:>3} {event['position']:>6} {event['type']}")


def retried() -> None:
    tell("The picture service times out once: after a second all begins anew.")
    task = submit("a storm", times_out=1)
    ended = api.ended(task["id"])
    expect("1 retry: attempt 2 of 2", (ended["attempt"], ended["max_attempts"]) == (2, 2))
    built = [e for e in api.events(task["id"]) if e["type"] == "attempt_started"]
    steps = [e["data"].get("step") for e in built]
    expect("from the first stage on", steps.count("prompt_builder") == 2)
    expect("it succeeded", ended["status"] == "succeeded")
    show_history(task["id"])

    tell("It times out twice.")
    ended = api.ended(submit("a hurricane", times_out=2)["id"])
    expect("failed", ended["status"] == "failed" and ended["error"]["code"] == "AI_API_TIMEOUT")


def bounded() -> None:
    tell("The queue holds three tasks and no more.")
    api.put("/v1/queues/art", {"depth_max": 3})
    api.post("/v1/queues/art/pause", {"reason": "the workers rest"})
    waiting = [submit(f"cloud {number}") for number in range(3)]
    refusal = api.refused("QUEUE_FULL", "/v1/jobs", request("cloud 3"))
    expect("it says when to come back", int(refusal["headers"]["retry-after"]) > 0)
    api.post("/v1/queues/art/resume")
    ends = [api.ended(task["id"])["status"] for task in waiting]
    expect("none of the three was lost", ends == ["succeeded"] * 3)
    fourth = submit("cloud 3")
    expect("and the fourth is welcome now", api.ended(fourth["id"])["status"] == "succeeded")


def stored() -> None:
    tell("The picture is in the object store, under its owner.")
    task = submit("a lighthouse")
    ref = api.ended(task["id"])["result"]["output_ref"]
    tell(f"    {ref['key']}, {ref['size']} bytes")
    place = f"users/ada/projects/p-1/tasks/{task['id']}/output/"
    expect("its key says whose it is", ref["key"].startswith(place))
    output = httpx.get(f"{URL}/v1/jobs/{task['id']}/output", follow_redirects=True)
    digest = hashlib.sha256(output.content).hexdigest()
    expect("the bytes are those of the reference", digest == ref["sha256"])
    picture = output.json()
    expect("and are the picture", picture["checked"] and len(picture["png"]) > 65_536)

    tell("Ada deletes her project.")
    started = api.delete("/v1/owners/ada/projects/p-1")
    path = f"/v1/operations/{started['operation_id']}"
    while api.get(path)["status"] == "running":
        time.sleep(0.05)
    gone = httpx.get(f"{URL}/v1/jobs/{task['id']}/output")
    tell(f"  = {gone.status_code} {gone.json()['code']}, {gone.json()['detail']}")
    expect("the picture is gone", gone.status_code in (404, 410))
    expect("the task's history is not", count(task, "succeeded") == 1)


followed()
shared()
sent_back()
retried()
bounded()
stored()
