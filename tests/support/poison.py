"""What a topic may hold that nobody who keeps the contract writes."""

from __future__ import annotations

POISON: dict[str, bytes | None] = {
    "a tombstone": None,
    "nothing": b"",
    "no UTF-8": b"\xff\xfe\x00",
    "no UTF-8 in a text": b'{"type":"\xff","job_id":"\xff","session":"\xff","command_id":"\xff"}',
    "no JSON": b"<xml/>",
    "cut off": b'{"type":"work","queue":"def',
    "another shape": b'{"type":[],"queue":{},"job_id":1,"items":7}',
    "an unknown field": b'{"type":"work","nobody_knows":"it"}',
    "NUL": b'{"type":"wo\\u0000rk","job_id":"\\u0000","session":"\\u0000"}',
    "half a surrogate": b'{"type":"work","labels":{"a":"\\ud800"}}',
    "not a number": b'{"type":"work","payload":{"a":NaN}}',
    "a very long number": b'{"type":"work","payload":{"a":' + b"9" * 400 + b"}}",
    "very deep": b'{"type":"work","payload":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "very deep, where nobody looks": b'{"x":' + b'{"x":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
    "very large": b'{"type":"work","payload":"' + b"x" * 300_000 + b'"}',
    "an array": b"[]",
}
