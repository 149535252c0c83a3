"""What operators say of schedules, queues, models and results, straight over Kafka.

    async with Operator("127.0.0.1:9092") as operator:
        await operator.pause_queue("ai", "deploy")

An operator is a producer that may say more; it raises what a producer does. What it returns is what
the HTTP routes answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ledger.client.command_ids import new_command_id
from ledger.client.producer import Accepted, Producer, accepted, data_of
from ledger.client.requests import sealed_api_key
from ledger.domain.commands import (
    CollectJob,
    DeleteModel,
    DeleteSchedule,
    DisableSchedule,
    EnableSchedule,
    PauseQueue,
    PutModel,
    PutQueue,
    PutSchedule,
    ResumeQueue,
    RunSchedule,
)
from ledger.domain.ids import CommandId

Json = dict[str, Any]


class Operator(Producer):
    # --- Schedules -------------------------------------------------------------------------------
    async def put_schedule(
        self,
        queue: str,
        name: str,
        schedule: Mapping[str, object],
        *,
        command_id: str | None = None,
    ) -> Json:
        """`schedule`: as the body of `PUT`. The schedule, with when it comes next."""
        body = {"queue": queue, "name": name, "schedule": schedule}
        reply = await self._command(PutSchedule.TYPE, body, command_id)
        return dict(data_of(reply)["schedule"])

    async def enable_schedule(
        self, queue: str, name: str, *, command_id: str | None = None
    ) -> Json:
        body = {"queue": queue, "name": name}
        return dict(data_of(await self._command(EnableSchedule.TYPE, body, command_id))["schedule"])

    async def disable_schedule(
        self, queue: str, name: str, *, command_id: str | None = None
    ) -> Json:
        body = {"queue": queue, "name": name}
        reply = await self._command(DisableSchedule.TYPE, body, command_id)
        return dict(data_of(reply)["schedule"])

    async def run_schedule(
        self, queue: str, name: str, *, command_id: str | None = None
    ) -> Accepted:
        """Its job, now; also of a disabled one."""
        body = {"queue": queue, "name": name}
        return accepted(await self._command(RunSchedule.TYPE, body, command_id))

    async def delete_schedule(
        self, queue: str, name: str, *, command_id: str | None = None
    ) -> None:
        await self._command(DeleteSchedule.TYPE, {"queue": queue, "name": name}, command_id)

    # --- Queues ----------------------------------------------------------------------------------
    async def put_queue(
        self,
        queue: str,
        *,
        depth_max: int | None = None,
        limits: Sequence[Mapping[str, object]] = (),
        command_id: str | None = None,
    ) -> Json:
        """What is not said is no bound any more."""
        body = {"queue": queue, "settings": {"depth_max": depth_max, "limits": limits}}
        return data_of(await self._command(PutQueue.TYPE, body, command_id))

    async def pause_queue(
        self, queue: str, reason: str = "", *, command_id: str | None = None
    ) -> Json:
        body = {"queue": queue, "reason": reason}
        return data_of(await self._command(PauseQueue.TYPE, body, command_id))

    async def resume_queue(
        self, queue: str, reason: str = "", *, command_id: str | None = None
    ) -> Json:
        body = {"queue": queue, "reason": reason}
        return data_of(await self._command(ResumeQueue.TYPE, body, command_id))

    # --- Models ----------------------------------------------------------------------------------
    async def put_model(
        self, name: str, model: Mapping[str, object], *, command_id: str | None = None
    ) -> Json:
        """`model`: as the body of `PUT`; its `api_key` is sealed here, under the keyring. Without
        one the key before it is kept, None removes it. The model, less its key."""
        command_id = CommandId(command_id) if command_id else new_command_id()
        api_key = model.get("api_key")
        if isinstance(api_key, str):
            sealed = sealed_api_key(self._keyring, api_key, name, CommandId(command_id))
            model = {**model, "api_key": sealed}
        body = {"name": name, "model": model}
        return dict(data_of(await self._command(PutModel.TYPE, body, command_id))["model"])

    async def delete_model(self, name: str, *, command_id: str | None = None) -> None:
        await self._command(DeleteModel.TYPE, {"name": name}, command_id)

    # --- Results ---------------------------------------------------------------------------------
    async def collect(self, job_id: str, *, command_id: str | None = None) -> Json:
        """`{id, collected_at, result_expires_at}`. Of a job that ended an hour ago its owner may
        know nothing (JOB_NOT_FOUND); `POST /v1/jobs/collect` does."""
        return data_of(await self._command(CollectJob.TYPE, {"job_id": job_id}, command_id))
