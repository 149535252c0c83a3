"""What a careful producer does: whatever is not answered is asked again under the same key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ledger.client.errors import ClientError
from ledger.client.producer import Accepted, Producer
from ledger.domain.ids import JobId

PATIENCE_SECONDS = 300.0


async def insist(producer: Producer, requests: Sequence[Any]) -> list[JobId]:
    """Every request has an idempotency key, and is to make a job. Their ids, in order."""
    job_ids: dict[str, JobId] = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while left := [each for each in requests if each["idempotency_key"] not in job_ids]:
            try:
                outcomes = await producer.submit_many(left, await_decision=True)
            except ClientError as error:
                print(f"asked again: {error!r:.200}")
                continue
            for request, outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, Accepted):
                    job_ids[request["idempotency_key"]] = outcome.job_id
    return [job_ids[each["idempotency_key"]] for each in requests]
