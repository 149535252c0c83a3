"""An HTTP proxy in front of a server that answers as a test wants it to go wrong."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Literal

HOLD_SECONDS_MAX = 30.0
"""A hold that a test forgot."""
ANSWER_SECONDS_MAX = 30.0
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What becomes of the next request of a method, whose path has `of` in it."""

    method: str
    of: str = ""
    kind: Literal["refuse", "lose the answer", "cut the body", "hold"]
    status: int = 503
    code: str = "Faulty"
    body_bytes: int = 0
    """So much of the body is sent before the connection is cut."""

    def strikes(self, method: str, path: str) -> bool:
        return method == self.method and self.of in path


@dataclass(slots=True)
class Faults:
    """Each of `once` strikes one request; the others strike all."""

    once: list[Fault] = field(default_factory=list)
    without_headers: set[str] = field(default_factory=set)
    """Headers that the server never sees, as if it did not know them."""
    refused_headers: set[str] = field(default_factory=set)
    """Headers that are answered by 501."""
    released: Event = field(default_factory=Event)
    """Ends every hold."""
    seen: list[tuple[str, str]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def next(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.seen.append((method, path))
            for fault in self.once:
                if fault.strikes(method, path):
                    self.once.remove(fault)
                    return fault
        return None

    def count(self, method: str, of: str = "") -> int:
        with self.lock:
            return sum(seen == method and of in path for seen, path in self.seen)


@contextmanager
def faulty(host: str, port: int) -> Iterator[tuple[str, Faults]]:
    """The proxy's address, and the faults that it will have."""
    faults = Faults()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _go(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = faults.next(self.command, self.path)
            if fault is not None and fault.kind == "refuse":
                return self._refuse(fault.status, fault.code)
            if faults.refused_headers & {name.lower() for name in self.headers}:
                return self._refuse(501, "NotImplemented")
            if fault is not None and fault.kind == "hold":
                faults.released.wait(HOLD_SECONDS_MAX)
                self.close_connection = True
                return None
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in HOP_BY_HOP | faults.without_headers
            }
            server = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS_MAX)
            try:
                server.request(self.command, self.path, body, headers)
                answer = server.getresponse()
                content = answer.read()
            finally:
                server.close()
            if fault is not None and fault.kind == "lose the answer":
                self.close_connection = True
                return None
            # A HEAD says the length of what it does not send.
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if fault is not None and fault.kind == "cut the body":
                self.close_connection = True
                content = content[: fault.body_bytes]
            self.wfile.write(content)
            return None

        def _refuse(self, status: int, code: str) -> None:
            content = f"<Error><Code>{code}</Code></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _go

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a test says what it saw."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that left, as it should at its time-out."""

    with Server(("127.0.0.1", 0), Handler) as proxy:
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}", faults
        finally:
            faults.released.set()
            with suppress(OSError):
                proxy.shutdown()
            thread.join()
