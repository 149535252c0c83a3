"""Whether a job costs its workers the same whatever their number: one, two and three in turns, with
an equal load each: `python -m benchmarks.scale [--rounds N] [--rate R] [--jobs N]`. JSON lines; the
last says whether the gate holds: within 10 % of one worker's, by the median of the rounds' ratios.

`scale_equal`, which the gate is about: each worker has four partitions with a queue in each, a
runtime for them, and as many jobs a second as each other. They come in bursts, one worker's while
the others rest: that is how they would fare on machines of their own. Were all at work at once, the
one machine would be the busier the more there are, which makes jobs cheaper: a worker that waits
for it finds more to do at once (with small bursts three cost 0.7 of one, on two hyperthreads).
Caches they do share: rounds differ by a tenth and more.

`scale_shared`: the same jobs, all at once, are shared by one, two or three. A worker that is busy
takes something beside its jobs (fetches, flushes, wake-ups), however few it has, so here a job
cannot cost the same: it shows what is taken by a worker that was not needed.

Costs are CPU without what is taken at rest, of the workers alone and, as P1 counts, of all but the
brokers, in us and in paces: only these compare (benchmarks/pace.py). All of it is done on one core:
on two hyperthreads a job costs more the more there is beside it, and a pace, which is taken at any
time, does not tell how much.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from benchmarks.pace import Pace, us_between
from benchmarks.processes import cpu_of
from benchmarks.stack import SETTLE_SECONDS, BenchStack, bench_stack, one_core
from ledger.client.producer import Producer
from ledger.client.runtime_session import SLOTS_MAX
from ledger.embedded.processes import free_ports
from ledger.log.partitions import partition_of

WORKERS = (1, 2, 3)
PARTITIONS = 4
"""For each worker, and queues of each runtime. A load that is shared has those of all."""
EQUAL_SECONDS = 10
KEPT = 0.95
"""Of a rate. Where less was done, bursts met: the machine was full."""
BURSTS_A_SECOND = 1
"""Of each worker's queues."""
WARM_JOBS = 500
"""Of each queue: brokers that are new take more, and so do those who wait for them."""
IDLE_SECONDS = 3.0
GATE = 0.10
OWNED_SECONDS = 180.0
DONE_SECONDS = 120.0
STOP_SECONDS = 60.0
PAYLOAD = {"text": "x" * 170}


class Load(Struct, frozen=True):
    workers: int
    parts: int
    """Of the queues. Each has bursts of its own, in turn."""
    burst: int
    """Jobs at once."""
    bursts: int
    """Of all parts."""
    seconds: float = 0.0
    """From a burst to the next one's."""

    @property
    def jobs(self) -> int:
        return self.burst * self.bursts

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.burst / self.seconds

    def reached(self, took: float) -> int:
        """Jobs a second, where the last had succeeded after so many. The last burst has its time
        like the others, whenever it is done."""
        return round(self.jobs / max(took, self.bursts * self.seconds))


class Cost(Struct, frozen=True):
    load: Load
    jobs_per_second: int
    worker_us_per_job: float
    us_per_job: float
    """Of workers, Postgres, producer and runtimes."""
    pace_us: float
    idle_us_per_second: int
    """Of all workers, and not in what a job cost."""
    shares: list[float]
    """Of each worker in what was spent."""
    load_average: float

    @property
    def worker_paces(self) -> float:
        """A job."""
        return self.worker_us_per_job / self.pace_us

    @property
    def paces(self) -> float:
        """A job, of all but the brokers."""
        return self.us_per_job / self.pace_us


def queues_of(partitions: int) -> list[str]:
    """One in each partition, in their order."""
    names: dict[int, str] = {}
    number = 0
    while len(names) < partitions:
        name = f"scale{number}"
        names.setdefault(partition_of(name, partitions), name)
        number += 1
    return [names[partition] for partition in range(partitions)]


def equal_load(workers: int, rate: int) -> Load:
    """`rate`: jobs a second for each worker."""
    return Load(
        workers,
        parts=workers,
        burst=rate // BURSTS_A_SECOND,
        bursts=workers * BURSTS_A_SECOND * EQUAL_SECONDS,
        seconds=1 / BURSTS_A_SECOND / workers,
    )


def shared_load(workers: int, jobs: int) -> Load:
    return Load(workers, parts=1, burst=jobs, bursts=1)


def measure(stack: BenchStack, pace: Pace, load: Load) -> Cost:
    with _workers(stack, load.workers) as (running, queues), _runtimes(stack, queues):
        parts = _cut(queues, len(queues) // load.parts)
        warm = Load(load.workers, load.parts, burst=WARM_JOBS * len(parts[0]), bursts=load.parts)
        _do(stack, parts, warm)
        idle = _spent(stack, running)
        time.sleep(IDLE_SECONDS)
        before, first = _spent(stack, running), pace.mark()
        took = _do(stack, parts, load)
        after, last = _spent(stack, running), pace.mark()
    spent = _less(after, before)
    resting = [its / IDLE_SECONDS for its in _less(before, idle)]
    net = _less(spent, [its * (took + SETTLE_SECONDS) for its in resting])
    return Cost(
        load,
        jobs_per_second=load.reached(took),
        worker_us_per_job=round(sum(net[:-1]) / load.jobs * 1e6, 1),
        us_per_job=round(sum(net) / load.jobs * 1e6, 1),
        pace_us=round(us_between(first, last), 3),
        idle_us_per_second=round(sum(resting[:-1]) * 1e6),
        shares=[round(its / sum(spent[:-1]), 2) for its in spent[:-1]],
        load_average=round(os.getloadavg()[0], 2),
    )


def kept(cost: Cost) -> Cost:
    """Raises SystemExit where the rate was not."""
    load = cost.load
    if cost.jobs_per_second < KEPT * load.rate:
        raise SystemExit(
            f"{cost.jobs_per_second} of {load.rate:.0f} jobs a second were done: the machine does "
            f"not carry {load.workers} workers with so many, choose a smaller --rate"
        )
    return cost


def verdict(equal: Sequence[Cost], shared: Sequence[Cost]) -> dict[str, Any]:
    """Of the rounds, each of which has a cost for each number of workers."""
    found = _medians(equal)
    further = [
        further_share(alone, more) for n in WORKERS[1:] for alone, more in _rounds(shared, n)
    ]
    return {
        "measure": "scale",
        "equal": found,
        "shared": {
            **_medians(shared),
            "further_worker_percent_of_core": round(median(further) * 100, 1),
        },
        "gate": GATE,
        "passed": all(abs(ratio - 1) <= GATE for ratio in found["worker_to_one"].values()),
    }


def further_share(alone: Cost, more: Cost) -> float:
    """What each worker beyond the first took because it was busy, whatever it carried: part of a
    core, at the speed that the machine had with it."""
    us_per_job = (more.worker_paces - alone.worker_paces) * more.pace_us
    return us_per_job * more.jobs_per_second / 1e6 / (more.load.workers - 1)


def _medians(costs: Sequence[Cost]) -> dict[str, dict[int, float]]:
    rounds = {workers: _rounds(costs, workers) for workers in WORKERS}

    def each(of: Callable[[Cost, Cost], float], digits: int) -> dict[int, float]:
        return {
            workers: round(median(of(*pair) for pair in pairs), digits)
            for workers, pairs in rounds.items()
        }

    return {
        "worker_us_per_job": each(lambda _, its: its.worker_us_per_job, 1),
        "worker_paces_per_job": each(lambda _, its: its.worker_paces, 2),
        "worker_to_one": each(lambda alone, its: its.worker_paces / alone.worker_paces, 3),
        "us_per_job": each(lambda _, its: its.us_per_job, 1),
        "paces_per_job": each(lambda _, its: its.paces, 2),
        "to_one": each(lambda alone, its: its.paces / alone.paces, 3),
    }


def _rounds(costs: Sequence[Cost], workers: int) -> list[tuple[Cost, Cost]]:
    """Of each, one worker's cost and that of so many."""
    alone, its = ([c for c in costs if c.load.workers == n] for n in (1, workers))
    return list(zip(alone, its, strict=True))


@contextmanager
def _workers(
    stack: BenchStack, count: int
) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[str]]]:
    """Each owns an equal part of the partitions. With the queues, by their owners."""
    ports = free_ports(count)
    running = [_worker(stack, port) for port in ports]
    names = queues_of(stack.partitions)
    try:
        owned = _until_owned(ports, stack.partitions // count)
        yield running, [names[partition] for its in owned for partition in its]
    finally:
        _stop(running)


@contextmanager
def _runtimes(stack: BenchStack, queues: Sequence[str]) -> Iterator[None]:
    """With as many slots as they may have, so that turns can be full."""
    running = [
        stack.runtime(*its, slots=SLOTS_MAX, name=f"bench-{its[0]}")
        for its in _cut(queues, PARTITIONS)
    ]
    try:
        yield
    finally:
        for runtime in running:
            stack.end(runtime)


def _worker(stack: BenchStack, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cli.main", "worker", "--health-port", str(port)]
    with (stack.logs / f"scale-{port}.log").open("wb") as log:
        process = subprocess.Popen(command, env=stack.environment, stdout=log, stderr=log)
    stack.workers.append(process)  # It ends with the stack, whatever happens here.
    return process


def _stop(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in workers:
        process.send_signal(signal.SIGTERM)
    for process in workers:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_owned(ports: Sequence[int], many: int) -> list[list[int]]:
    """The partitions of each worker."""
    deadline = time.monotonic() + OWNED_SECONDS
    while set(map(len, owned := [_owned(port) for port in ports])) != {many}:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"after {OWNED_SECONDS:.0f} s the workers own {owned}, not {many} each"
            )
        time.sleep(0.2)
    return owned


def _owned(port: int) -> list[int]:
    try:
        report = httpx.get(f"http://127.0.0.1:{port}/healthz").json()
    except httpx.TransportError:
        return []  # It is not there yet.
    partitions = report["owner"]["partitions"].items()
    return [int(partition) for partition, facts in partitions if facts["owner"]]


def _spent(stack: BenchStack, workers: Sequence[subprocess.Popen[bytes]]) -> list[float]:
    """By each worker; last, by Postgres, the producer and the runtimes."""
    all_of_it = stack.cpu()
    beside = all_of_it.postgres + all_of_it.producer + all_of_it.runtimes
    return [*(cpu_of([process.pid]) for process in workers), beside]


def _less(later: Sequence[float], earlier: Sequence[float]) -> list[float]:
    return [now - then for now, then in zip(later, earlier, strict=True)]


async def _submit(stack: BenchStack, parts: Sequence[Sequence[str]], load: Load) -> None:
    """Evenly over the queues."""
    async with Producer(stack.kafka) as producer:
        began = time.perf_counter()
        for number in range(load.bursts):
            due = began + number * load.seconds
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            queues = parts[number % len(parts)]
            await producer.submit_many(_request(queues[n % len(queues)]) for n in range(load.burst))


def _do(stack: BenchStack, parts: Sequence[Sequence[str]], load: Load) -> float:
    """How many seconds it took until the last job had succeeded."""
    queues = [queue for part in parts for queue in part]
    done, began = stack.count("succeeded", *queues), time.perf_counter()
    asyncio.run(_submit(stack, parts, load))
    stack.wait_until("succeeded", done + load.jobs, *queues, seconds=DONE_SECONDS)
    took = time.perf_counter() - began
    time.sleep(SETTLE_SECONDS)
    return took


def _request(queue: str) -> dict[str, Any]:
    return {"type": "noop", "queue": queue, "payload": PAYLOAD}


def _cut(queues: Sequence[str], size: int) -> list[Sequence[str]]:
    return [queues[first : first + size] for first in range(0, len(queues), size)]


def _said(measure: str, cost: Cost) -> Cost:
    _print(
        {
            "measure": measure,
            "workers": cost.load.workers,
            "jobs": cost.load.jobs,
            "jobs_per_second": cost.jobs_per_second,
            "worker_us_per_job": cost.worker_us_per_job,
            "worker_paces_per_job": round(cost.worker_paces, 2),
            "us_per_job": cost.us_per_job,
            "paces_per_job": round(cost.paces, 2),
            "pace_us": cost.pace_us,
            "idle_us_per_second": cost.idle_us_per_second,
            "shares": cost.shares,
            "load": cost.load_average,
        }
    )
    return cost


def _print(line: dict[str, Any]) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", type=int, default=400, help="equal: jobs a second a worker")
    parser.add_argument("--jobs", type=int, default=12_000, help="shared: at once")
    asked = parser.parse_args()
    equal: list[Cost] = []
    shared: list[Cost] = []
    with one_core(), Pace() as pace:
        for number in range(asked.rounds):
            # In either direction: a machine may become slower, or faster, over the rounds.
            order = WORKERS[:: -1 if number % 2 else 1]
            for workers in order:
                # Anew, so that none takes over the history of those before.
                with bench_stack(partitions=PARTITIONS * workers) as stack:
                    load = equal_load(workers, asked.rate)
                    equal.append(_said("scale_equal", kept(measure(stack, pace, load))))
                    if workers == WORKERS[-1]:
                        shared += [
                            _said("scale_shared", measure(stack, pace, shared_load(n, asked.jobs)))
                            for n in order
                        ]
    _print(verdict(equal, shared))


if __name__ == "__main__":
    main()
