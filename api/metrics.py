"""What the HTTP side counts, for `GET /metrics`. Added once a request."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Of one app: registries of their own keep two in one process apart."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "ledger_http_requests",
            "Requests answered",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "ledger_http_request_seconds",
            "From a request's headers to its answer",
            ("route",),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._in_flight = Gauge(
            "ledger_http_commands_awaited",
            "Commands whose decision a request waits for",
            registry=self._registry,
        )

        self._listening = Gauge(
            "ledger_http_listeners",
            "Event streams and progress sockets that are open",
            registry=self._registry,
        )
        self._dropped = Counter(
            "ledger_http_listeners_dropped",
            "Listeners that did not read in time",
            registry=self._registry,
        )
        self._feed_queries = Counter(
            "ledger_http_feed_queries",
            "Asked of the views by the feed of changes, for all listeners together",
            registry=self._registry,
        )

    def watch_listeners(self, listening: Callable[[], int]) -> None:
        self._listening.set_function(listening)

    def drop_listener(self) -> None:
        self._dropped.inc()

    def ask_feed(self) -> None:
        self._feed_queries.inc()

    def watch_in_flight(self, in_flight: Callable[[], int]) -> None:
        self._in_flight.set_function(in_flight)

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """`route` is the path as the table writes it, so that ids make no new series."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)
