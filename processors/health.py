"""A worker's word on itself, over HTTP on loopback: `/healthz`, `/readyz`, `/metrics`.

Hand-made, because a worker needs no framework to answer three questions, and must not listen
anywhere else. `/healthz` is the whole report and 200 as long as the process can answer; `/readyz`
is 503 while it could not do its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

HOST = "127.0.0.1"
REQUEST_BYTES_MAX = 8_192
REQUEST_SECONDS = 5.0
CONNECTIONS_MAX = 32

Report = dict[str, Any]
"""What `Worker.report` says; JSON throughout. `ready` is the one key that is looked at here."""


class HealthServer:
    """`port` 0 takes any free one; `port` says which once `started` is set."""

    def __init__(self, port: int, report: Callable[[], Report]) -> None:
        self.port = port
        self.started = asyncio.Event()
        self._report = report
        self._connections = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises OSError if the port is taken."""
        server = await asyncio.start_server(
            self._answer_one, HOST, self.port, limit=REQUEST_BYTES_MAX
        )
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            self.started.set()
            await stop.wait()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection."""
        self._connections += 1
        try:
            if self._connections > CONNECTIONS_MAX:
                writer.write(_response(503, b"too many connections", "text/plain"))
                return
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response_to(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # It went away, or never said anything whole.
        finally:
            self._connections -= 1
            writer.close()

    def _response_to(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, b"only GET", "text/plain")
        match path:
            case b"/healthz":
                return _response(200, msgspec.json.encode(self._report()), "application/json")
            case b"/readyz":
                report = self._report()
                status = 200 if report.get("ready") else 503
                return _response(status, msgspec.json.encode(report), "application/json")
            case b"/metrics":
                return _response(200, metrics_of(self._report()), "text/plain; version=0.0.4")
            case _:
                return _response(404, b"ask /healthz, /readyz or /metrics", "text/plain")


_PHRASES = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def _response(status: int, body: bytes, content_type: str) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\n"
        f"content-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body


def metrics_of(report: Report) -> bytes:
    """Every number of the report as a gauge: `ledger_worker_<section>_<name>{partition=…}`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ReportMetrics(report))
    return generate_latest(registry)


class _ReportMetrics:
    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterable[Metric]:
        for section, content in self._report.items():
            if isinstance(content, bool | int | float):
                yield GaugeMetricFamily(
                    f"ledger_worker_{section}", f"`{section}` of /healthz", float(content)
                )
            elif isinstance(content, dict):
                yield from _section_metrics(section, content)


def _section_metrics(section: str, content: dict[str, Any]) -> Iterable[Metric]:
    families: dict[str, GaugeMetricFamily] = {}
    for name, value in content.items():
        if isinstance(value, bool | int | float):
            yield GaugeMetricFamily(
                f"ledger_worker_{section}_{name}", f"`{section}.{name}` of /healthz", float(value)
            )
    for partition, facts in content.get("partitions", {}).items():
        for name, value in facts.items():
            if not isinstance(value, bool | int | float):
                continue
            family = families.get(name)
            if family is None:
                family = families[name] = GaugeMetricFamily(
                    f"ledger_worker_{section}_{name}",
                    f"`{section}.partitions.*.{name}` of /healthz",
                    labels=["partition"],
                )
            family.add_metric([str(partition)], float(value))
    yield from families.values()
