"""Named places where a test lets the process die.

`LEDGER_CRASH_AT=name:n` kills the process with SIGKILL at the n-th pass of `name`;
`name:n:raise` raises `CrashPointReached` there instead. Unset, `reach` does nothing.
"""

from __future__ import annotations

import os
import signal


class CrashPointReached(Exception):
    """The test asked for this error here."""


def _parse(setting: str) -> tuple[str, int, bool]:
    name, _, rest = setting.partition(":")
    count, _, how = rest.partition(":")
    if not name or not count.isdecimal() or int(count) < 1 or how not in ("", "raise"):
        raise ValueError(f"LEDGER_CRASH_AT={setting!r}: write name:n or name:n:raise")
    return name, int(count), how == "raise"


_name, _left, _raises = "", 0, False
if _setting := os.environ.get("LEDGER_CRASH_AT"):
    _name, _left, _raises = _parse(_setting)


def reach(name: str) -> None:
    global _left
    if name != _name or not _left:
        return
    _left -= 1
    if _left:
        return
    if _raises:
        raise CrashPointReached(name)
    os.kill(os.getpid(), signal.SIGKILL)
