"""A model server to be called: `model.py PORT`. `GET /seen` says what it has seen.

What a call asks for decides what happens: `{"text": …, "behave": WHAT}`, where
WHAT is `busy once`, `slow once`, `broken once` or `broken`.
"""

import json
import sys
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

KEY = "your-key"
CALL_SECONDS, SLOW_SECONDS = 0.3, 3.0
lock = Lock()
calls: list[dict[str, Any]] = []
now: Counter[str] = Counter()
together: Counter[str] = Counter()
"""The most calls at the same time, by tenant."""


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with lock:
            seen = {"calls": list(calls), "together": dict(together)}
        self.answer(200, seen)

    def do_POST(self) -> None:
        asked: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        names = ("Authorization", "X-User-Info", "Idempotency-Key")
        call = {"text": asked["text"]} | {name: self.headers[name] for name in names}
        with lock:
            is_first = asked["text"] not in [call["text"] for call in calls]
            calls.append(call)
            now[asked["tenant"]] += 1
            together[asked["tenant"]] = max(together[asked["tenant"]], now[asked["tenant"]])
        status, headers = self.work(asked.get("behave"), is_first)
        with lock:
            now[asked["tenant"]] -= 1
        self.answer(status, {"audio": f"~{asked['text']}~"}, headers)

    def work(self, behave: str | None, is_first: bool) -> tuple[int, dict[str, str]]:
        if self.headers["TTS_API_KEY"] != KEY:
            return 401, {}
        if behave == "busy once" and is_first:
            return 429, {"Retry-After": "1"}
        if behave == "broken" or (behave == "broken once" and is_first):
            return 500, {}
        time.sleep(SLOW_SECONDS if behave == "slow once" and is_first else CALL_SECONDS)
        return 200, {}

    def answer(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        with suppress(BrokenPipeError, ConnectionResetError):  # Whoever asked has given up.
            self.end_headers()
            self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
