"""A model behind HTTP does the work: `runtime.py BOOTSTRAP MODEL_URL [TYPE…]`; else all five."""

import os
import sys
from pathlib import Path

import httpx

from ledger.client import Context, JobFailure, Runtime

prefix = os.environ.get("LEDGER_PREFIX", "")
runtime = Runtime(f"ai-{os.getpid()}", sys.argv[1], queue="ai", slots=8, prefix=prefix)
refusals = {401: "INVALID_CREDENTIAL", 422: "INVALID_SNAPSHOT", 429: "MODEL_RATE_LIMIT"}


async def ask_the_model(ctx: Context) -> object:
    ctx.progress(10, "asking", ctx.labels.get("model_name"))
    headers = {"Idempotency-Key": ctx.idempotency_key}
    try:
        async with httpx.AsyncClient(timeout=ctx.timeout_seconds / 2) as http:
            answer = await http.post(f"{sys.argv[2]}/{ctx.type}", json=ctx.payload, headers=headers)
    except httpx.TimeoutException as error:
        raise JobFailure("MODEL_TIMEOUT", repr(error)) from error
    except httpx.TransportError as error:
        raise JobFailure("NETWORK_ERROR", repr(error)) from error
    if answer.is_error:
        code = refusals.get(answer.status_code, "TEMPORARY_PROVIDER_ERROR")
        raise JobFailure(code, answer.text[:500])
    return answer.json()


templates = (Path(__file__).parent / "templates").glob("*.json")
for job_type in sys.argv[3:] or [template.stem for template in templates]:
    runtime.job(job_type)(ask_the_model)
runtime.run()
