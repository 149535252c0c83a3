"""Stands for a language model: `model.py PORT`. What it is asked about decides how it behaves."""

import json
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

QUESTION = {"question": "What makes tides?", "choices": ["the moon", "wind"], "answer": 0}
SLOW_SECONDS = 4.0
asked: list[str] = []


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body: Any = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        topic = body["snapshot"].get("topic")
        is_first = topic not in asked
        asked.append(topic)
        if topic is None:
            return self.answer(422, {"error": "a snapshot without a topic"})
        if topic == "slow at first" and is_first:
            time.sleep(SLOW_SECONDS)
        return self.answer(200, {"questions": [QUESTION] * body["params"]["count"]})

    def answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        with suppress(BrokenPipeError):  # Whoever asked has given up.
            self.end_headers()
            self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
