"""The story of a general job core: `python -m examples.job_core.story API_URL`."""

import sys

from examples.telling import Api, Json, expect, show_history, tell

api = Api(sys.argv[1])


def create(type: str, scope: str = "user:user_123", **payload: object) -> Json:
    return api.post("/v1/jobs", request(type, scope, **payload))


def request(type: str, scope: str = "user:user_123", **payload: object) -> Json:
    return {"type": type, "queue": "core", "scope": scope, "payload": payload}


def running(job: Json, step: str) -> Json:
    """Once that step of it runs."""
    return api.until(job["id"], lambda job: steps(job).get(step) == "running")


def steps(job: Json) -> dict[str, str]:
    return {step["name"]: step["status"] for step in job["steps"]}


def cancel(job: Json, reason: str) -> Json:
    return api.post(f"/v1/jobs/{job['id']}/cancel", {"reason": reason})


def a_run_with_steps() -> None:
    tell("A run of three steps for target A; another one for the same scope and target is refused.")
    seconds = {"prepare": 1.5, "execute": 1}
    run = create("demo_long_task", target="A", seconds=seconds, fails="execute")
    same = request("demo_long_task", target="A")
    refusal = api.refused("DUPLICATE_ACTIVE", "/v1/jobs", same)
    expect("the refusal names the run that is active", refusal["job_id"] == run["id"])
    beside = create("demo_long_task", target="B")
    expect("target B is another matter", beside["id"] != run["id"])

    tell("The template changes while it runs: a new version.")
    path = "/v1/queues/core/templates/demo_long_task"
    template = api.get(path)
    for name in ("queue", "type", "version", "put_at", "put_by"):
        del template[name]
    expect("put as it is, it stays version 1", api.put(path, template)["version"] == 1)
    new = api.put(path, template | {"timeout_seconds": 900})
    expect("put with a longer time-out, it is version 2", new["version"] == 2)

    half = api.until(run["id"], lambda job: (job["progress"] or {}).get("phase") == "execute")
    expect("its progress shows where it is", 20 <= half["progress"]["percent"] <= 80)
    done = api.ended(run["id"])
    expect("execute failed once; the second pass succeeds", done["status"] == "succeeded")
    expect("attempt 2 of 2", (done["attempt"], done["max_attempts"]) == (2, 2))
    expect("all steps succeeded", set(steps(done).values()) == {"succeeded"})
    expect("it kept version 1 of its template", done["template_version"] == 1)
    show_history(run["id"])
    tell("It is over, so target A may run again.")
    again = create("demo_long_task", target="A")
    expect("it may", again["id"] != run["id"])


def replaced() -> None:
    tell("A pipeline for project 7, and a newer one before it is done.")
    old = create("multi_step_pipeline", "project:7", seconds={"prepare": 2})
    running(old, "prepare")
    new = create("multi_step_pipeline", "project:7")
    old = api.ended(old["id"])
    expect("the old one is cancelled", old["status"] == "cancelled")
    expect("and names the one that replaced it", old["replaced_by"] == new["id"])
    expect("its first step may not be cut short: it finished", steps(old)["prepare"] == "succeeded")
    expect("and the next was not started", steps(old)["execute"] == "cancelled")
    expect("the new one succeeds", api.ended(new["id"])["status"] == "succeeded")
    show_history(old["id"])


def cancelled() -> None:
    tell("Cancelled while it waits: the queue is paused, so nobody takes it.")
    api.post("/v1/queues/core/pause", {"reason": "the story wants it"})
    run = create("demo_long_task", target="waits")
    expect("cancelled at once", cancel(run, "changed my mind")["status"] == "cancelled")
    api.post("/v1/queues/core/resume")
    api.refused("JOB_CLOSED", f"/v1/jobs/{run['id']}/cancel")

    tell("Cancelled while it runs: the worker stops at its next checkpoint.")
    run = create("demo_long_task", target="heeds", seconds={"execute": 10})
    running(run, "execute")
    asked = cancel(run, "no longer needed")
    expect("cancel is requested first", asked["status"] == "cancelling")
    expect("with a deadline", asked["cancel"]["deadline"] > asked["cancel"]["requested_at"])
    ended = api.ended(run["id"])
    expect("then acknowledged", ended["status"] == "cancelled" and how(run) == "acknowledged")

    tell("Cancelled, and the worker does not listen: the reaper settles it after the grace.")
    run = create("demo_long_task", target="stubborn", seconds={"execute": 6}, stubborn=True)
    running(run, "execute")
    cancel(run, "no longer needed")
    expect("cancelled all the same", api.ended(run["id"])["status"] == "cancelled")
    show_history(run["id"])
    expect("and it is recorded why", how(run) == "grace_ended")


def how(job: Json) -> str:
    said: str = api.events(job["id"])[-1]["data"]["how"]
    return said


def waiting_for_somebody_else() -> None:
    tell("A run that an external worker completes; there is no way back, and no second time.")
    run = create("external_worker_task", "import:2026")
    waiting = api.until(run["id"], lambda job: job["status"] == "waiting")
    expect("it waits, and nobody holds a lease", waiting["lease"] is None)
    api.refused("CANCEL_NOT_SUPPORTED", f"/v1/jobs/{run['id']}/cancel")
    fence = api.get(f"/v1/jobs/{run['id']}/attempts")["items"][0]["fence"]
    done = api.post(f"/v1/jobs/{run['id']}/result", {"fence": fence, "output": {"rows": 12}})
    expect("the fence was good for the result", done["status"] == "succeeded")
    again = request("external_worker_task", "import:2026")
    refusal = api.refused("NOT_REPEATABLE", "/v1/jobs", again)
    expect("the refusal names the run that did it", refusal["job_id"] == run["id"])


def scheduled() -> None:
    tell("A report every morning at nine, in Taipei.")
    path = "/v1/queues/core/schedules/morning-report"
    fields = {"cron": "0 9 * * *", "timezone": "Asia/Taipei", "type": "scheduled_report"}
    schedule = api.put(path, fields | {"payload": {"format": "pdf"}, "scope": "system:all"})
    for instant in schedule["next_runs"]:
        tell(f"    next: {instant}")
    nine = [instant[11:] == "01:00:00.000Z" for instant in schedule["next_runs"]]
    expect("five runs are foretold, at 09:00 there", nine == [True] * 5)
    run = api.post(f"{path}/run")
    expect("run now makes a run that names its schedule", run["schedule"] == "morning-report")
    expect("with its payload", run["payload"] == {"format": "pdf"})
    expect("and scope", run["scope"] == "system:all")
    schedule = api.get(path)
    expect("it is the last run now", schedule["last_job_id"] == run["id"])
    off = api.post(f"{path}/disable")
    expect("disabled: no next run", not off["enabled"] and off["next_run_at"] is None)
    on = api.post(f"{path}/enable")
    expect("enabled: the same time as before", on["next_run_at"] == schedule["next_run_at"])
    expect("the run succeeds", api.ended(run["id"])["status"] == "succeeded")


def listed() -> None:
    page = api.get("/v1/jobs", queue="core", page=1, page_size=4)
    tell(f"Page 1 of {page['total_pages']}, {page['total']} runs in all:")
    for job in page["items"]:
        tell(f"    {job['type']:<22} {job['scope']:<16} {job['status']}")
    expect("four a page", len(page["items"]) == 4 and page["total_pages"] == -(-page["total"] // 4))


def checked() -> None:
    tell("A payload that the template's schema does not allow: no target.")
    problem = api.refused("VALIDATION_FAILED", "/v1/jobs", request("demo_long_task"))
    expect("a pointer says where", problem["errors"][0]["pointer"].startswith("/payload"))


a_run_with_steps()
replaced()
cancelled()
waiting_for_somebody_else()
scheduled()
listed()
checked()
