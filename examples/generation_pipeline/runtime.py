"""Three workers for the four stages, in nothing but httpx: `runtime.py API_URL`.

A job's parameters say what goes wrong: `fails_checks: 2`, `times_out: 1` (that many times)."""

import base64
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from threading import Thread
from typing import Any

import httpx

WORKERS = 3
Json = dict[str, Any]
done: Counter[str] = Counter()
"""How often each stage of each job was tried; enough to play faults with."""


class StageFailed(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def prompt_builder(task: Json, progress: Callable[[float], None]) -> object:
    progress(50)
    return f"{task['job']['payload']['prompt']}, in the project's style"


def asset_generator(task: Json, progress: Callable[[float], None]) -> object:
    progress(50)
    if tried(task) <= parameter(task, "times_out"):
        raise StageFailed("AI_API_TIMEOUT")
    return {"picture": hashlib.sha256(task["inputs"]["prompt_builder"].encode()).hexdigest()}


def quality_supervisor(task: Json, progress: Callable[[float], None]) -> object:
    progress(50)
    if tried(task) <= parameter(task, "fails_checks"):
        raise StageFailed("STYLE_MISMATCH")
    return {"passed": True}


def format_adapter(task: Json, progress: Callable[[float], None]) -> object:
    """Above 64 KiB: the api puts it into the object store, and the log has a reference."""
    progress(50)
    picture = bytes.fromhex(task["inputs"]["asset_generator"]["picture"]) * 2_500
    checked = task["inputs"]["quality_supervisor"] is not None
    return {"checked": checked, "png": base64.b64encode(picture).decode()}


STAGES = [prompt_builder, asset_generator, quality_supervisor, format_adapter]


def tried(task: Json) -> int:
    name = f"{task['job_id']} {task['step']}"
    done[name] += 1
    return done[name]


def parameter(task: Json, name: str) -> int:
    value: int = task["job"]["payload"].get("params", {}).get(name, 0)
    return value


def work(api_url: str, runtime_id: str) -> None:
    stages = {stage.__name__: stage for stage in STAGES}
    ask = {"queues": ["art"], "types": list(stages), "wait_seconds": 20}
    with httpx.Client(base_url=api_url, timeout=40) as api:
        while True:
            answer = api.post(f"/v1/runtimes/{runtime_id}/claim", json=ask)
            if answer.status_code == 409:  # QUEUE_PAUSED
                time.sleep(0.2)
                continue
            for task in answer.raise_for_status().json()["items"]:
                run(api, task, stages[task["step"]])


def run(api: httpx.Client, task: Json, stage: Callable[..., object]) -> None:
    def say(what: str, **body: object) -> None:
        body["fence"] = task["fence"]
        answer = api.post(f"/v1/jobs/{task['job_id']}/{what}", json=body)
        if answer.is_error:  # Such as LEASE_STALE: it is somebody else's by now.
            print(answer.text, flush=True)

    try:
        output = stage(task, lambda percent: say("progress", percent=percent, phase=task["step"]))
    except StageFailed as failed:
        say("fail", code=failed.code, message=f"in {task['step']}")
    else:
        say("result", output=output)


for number in range(WORKERS):
    Thread(target=work, args=(sys.argv[1], f"artist-{number + 1}")).start()
