"""What a runtime tells the log of the owners that it talks to: each thing once."""

from __future__ import annotations

import structlog
from msgspec import Struct

from ledger.client.runtime_session import QueueSession
from ledger.domain.ids import QueueName, RuntimeId

log = structlog.get_logger(__name__)

SILENCE_SECONDS = 15.0
"""A queue whose owner says nothing for so long is worth a line in the log."""


class Silence(Struct):
    """Beats of a queue are not answered."""

    since: float
    told: bool = False


class Notices:
    def __init__(self, runtime_id: RuntimeId) -> None:
        self._runtime_id = runtime_id
        self._silences: dict[QueueName, Silence] = {}
        self._rival_told = False

    def silence(self, session: QueueSession, now: float) -> None:
        """Beats are not answered, or are again."""
        silence = self._silences.get(session.queue)
        if session.answered >= session.beat:
            if silence is not None:
                del self._silences[session.queue]
                if silence.told:
                    log.info("runtime.answered", runtime=self._runtime_id, queue=session.queue)
        elif silence is None:
            self._silences[session.queue] = Silence(now)
        elif not silence.told and now > silence.since + SILENCE_SECONDS:
            silence.told = True
            log.warning("runtime.unanswered", runtime=self._runtime_id, queue=session.queue)

    def refusals(self, session: QueueSession) -> None:
        if not session.refusals:
            return
        refusals, session.refusals = session.refusals, []
        first = refusals[0]
        log.warning(
            "runtime.words_refused",
            runtime=self._runtime_id,
            queue=session.queue,
            count=len(refusals),
            job=first.job_id,
            fence=first.fence,
            code=first.code,
            detail=first.detail,
        )

    def rival(self, session: QueueSession) -> None:
        """Another process uses the runtime's id."""
        if session.rival is not None and not self._rival_told:
            self._rival_told = True
            log.error("runtime.id_in_use", runtime=self._runtime_id, session=session.rival)
