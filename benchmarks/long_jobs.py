"""What an event costs in jobs of few events and of thousands: `python -m benchmarks.long_jobs
[--full]`.

Jobs that say how far they are, once a second, until they end: asked for, given, decided, encoded
and folded, by the rules alone. JSON lines.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.offline_log import OfflineLog
from benchmarks.results import Result, run
from ledger.domain.commands import HeldLease, ProgressSaid
from ledger.domain.ids import SECOND

WORDS = (0, 30, 300, 3_000)
"""Of progress, a job. Beside them there are four events and the leases' extensions."""
AT_ONCE = 5
"""Jobs that a beat speaks of."""
EVENTS = 15_000
ROUNDS = 5


def event_us(words: int, events: int) -> float:
    """CPU us an event."""
    log = OfflineLog(mixed=False, keeps=False)
    jobs = max(1, events // (words + 4))
    before, began = log.events, time.process_time()
    for first in range(0, jobs, AT_ONCE):
        log.request(min(AT_ONCE, jobs - first))
        grants = log.grant(AT_ONCE)
        log.report(grants, ends=False)
        for word in range(words):
            log.pass_time(SECOND)
            said = ProgressSaid(percent=word * 100 / words, message=f"word {word}")
            log.beat([HeldLease(grant.job_id, grant.fence, said) for grant in grants])
        log.report(grants)
        log.partition.drain_touched()
    return (time.process_time() - began) / (log.events - before) * 1e6


def measure(full: bool) -> Iterator[Result]:
    events = EVENTS * 10 if full else EVENTS
    found: dict[int, list[float]] = {words: [] for words in WORDS}
    for _ in range(ROUNDS):
        for words in WORDS:
            found[words].append(event_us(words, events))
    few, many = (statistics.median(found[words]) for words in (WORDS[1], WORDS[-1]))
    yield Result(
        "long_jobs",
        "x",
        ours=many / few,
        ours_as_beside=many,
        beside=few,
        beside_is=f"us, {WORDS[1]} words",
        detail=f"{WORDS[-1]:,} words a job",
        figures={f"us_{words}": round(statistics.median(found[words]), 1) for words in WORDS},
    )


if __name__ == "__main__":
    run(measure, __doc__)
