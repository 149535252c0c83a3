"""Named places where a test lets a process die, and what is promised of each.

`LEDGER_CRASH_AT=name:n` kills the process with SIGKILL at the n-th pass of `name`;
`name:n:raise` raises `CrashPointReached` there instead. Unset, `reach` does nothing: 30 ns a call.
"""

from __future__ import annotations

import os
import signal
from difflib import get_close_matches
from typing import Literal, NamedTuple

Process = Literal["owner", "projector", "gateway", "runtime", "cleaner"]


class CrashPoint(NamedTuple):
    """`outlived_by`: those of `reached_by` that an error there does not end. Any other ends with
    its reason and an exit code other than 0, and whoever supervises it starts it again."""

    name: str
    fault: str
    """Its number in the list of faults to inject; empty: beside those."""
    reached_by: tuple[Process, ...]
    outlived_by: tuple[Process, ...]
    promise: str


_OWNER: tuple[Process, ...] = ("owner",)
_PROJECTOR: tuple[Process, ...] = ("projector",)
_GATEWAY: tuple[Process, ...] = ("gateway",)
_RUNTIME: tuple[Process, ...] = ("runtime",)
_CLEANER: tuple[Process, ...] = ("cleaner",)

POINTS: tuple[CrashPoint, ...] = (
    # --- Of every process: the log's clients ----------------------------------------------------
    CrashPoint(
        *("intake.after_poll", "F1", ("owner", "gateway", "runtime"), ("gateway", "runtime")),
        "What was fetched is read again, or was a hint: a reply, an assignment that is sent again.",
    ),
    CrashPoint(
        *("reader.after_poll", "F6", ("owner", "projector"), ()),
        "A take-over or a projector reads the history again from where it began.",
    ),
    CrashPoint(
        *("offsets.after_answer", "F2", ("owner", "projector", "gateway", "runtime"), _GATEWAY),
        "Nothing was changed: it is asked again.",
    ),
    CrashPoint(
        *("outbox.before_append", "F4", ("owner", "gateway", "runtime", "cleaner")),
        ("gateway", "cleaner"),
        "Nothing was sent; whoever is owed it asks again, or is told again.",
    ),
    CrashPoint(
        *("outbox.after_append", "F5", ("owner", "gateway", "runtime", "cleaner")),
        ("gateway", "cleaner"),
        "It stands, and its sender does not know: it is sent again, and twice is no news.",
    ),
    # --- The owner ------------------------------------------------------------------------------
    CrashPoint(
        *("owner.before_take_over", "F6", _OWNER, ()),
        "Nothing was written; the next owner takes over.",
    ),
    CrashPoint(
        *("take_over.before_record", "F6", _OWNER, ()),
        "The history was read, nothing was written; the next owner takes over.",
    ),
    CrashPoint(
        *("take_over.after_record", "F7", _OWNER, ()),
        "A take-over without entries: the next one ends it.",
    ),
    CrashPoint(
        *("owner.after_take_over", "F7", _OWNER, ()),
        "A take-over without entries, and nobody was told: the next owner tells all.",
    ),
    CrashPoint(
        *("owner.after_poll", "F1", _OWNER, ()),
        "Nothing was decided: the next owner reads the same commands.",
    ),
    CrashPoint(
        *("owner.after_dead_letters", "F2", _OWNER, ()),
        "The dead letter lies there and its record is decided by the next owner, with a second"
        " letter.",
    ),
    CrashPoint(
        *("owner.after_forwards", "F2", _OWNER, ()),
        "The request was sent on and is sent on again; its id makes it one job.",
    ),
    CrashPoint(
        *("owner.after_decide", "F2", _OWNER, ()),
        "What was decided is forgotten, and decided again.",
    ),
    CrashPoint(
        *("schedule.before_entry", "F10", _OWNER, ()),
        "The occurrence is due still: the next owner makes its one run.",
    ),
    CrashPoint(
        *("schedule.after_entry", "F11", _OWNER, ()),
        "The occurrence has its run, and no second one.",
    ),
    CrashPoint(
        *("append.before_acknowledgement", "F3", _OWNER, ()),
        "The entries may stand or not: the next owner sees, and decides what was not.",
    ),
    CrashPoint(
        *("append.before_proof", "F3", _OWNER, ()),
        "The entries stand, no effect of theirs was released: the next owner releases.",
    ),
    CrashPoint(
        *("owner.after_append", "F4", _OWNER, ()),
        "The entries stand and are proven; projectors find them in the log.",
    ),
    CrashPoint(
        *("owner.before_effects", "F4", _OWNER, ()),
        "Assignments are sent again when their runtimes beat; who waits for a reply asks again.",
    ),
    CrashPoint(
        *("owner.after_effects", "F5", _OWNER, ()),
        "All is done and said; the next owner may say it again.",
    ),
    CrashPoint(
        *("owner.after_inbox_made", "", _OWNER, ()),
        "The inbox is there, its runtimes were not told to beat: the next owner tells them.",
    ),
    CrashPoint(
        *("snapshot.after_listed", "", _OWNER, ()),
        "Nothing was written, or one that stands: the next owner lists them again.",
    ),
    CrashPoint(
        *("snapshot.before_put", "", _OWNER, _OWNER),
        "There is no snapshot: the one before it counts.",
    ),
    CrashPoint(
        *("snapshot.after_put", "", _OWNER, _OWNER),
        "The snapshot counts; an old one more lies there until the next is written.",
    ),
    CrashPoint(
        *("snapshot.after_deleted", "", _OWNER, _OWNER),
        "The snapshot counts, the old ones are gone.",
    ),
    # --- The projector --------------------------------------------------------------------------
    CrashPoint(
        *("projector.after_checkpoint_read", "", _PROJECTOR, ()),
        "Nothing was written: it is read again.",
    ),
    CrashPoint(
        *("projector.before_rows", "F8", _PROJECTOR, ()),
        "The checkpoint moved in a transaction that is rolled back: the batch is applied anew.",
    ),
    CrashPoint(
        *("projector.before_commit", "F8", _PROJECTOR, ()),
        "Rows and checkpoint are rolled back together: the batch is applied anew.",
    ),
    CrashPoint(
        *("projector.after_commit", "F9", _PROJECTOR, ()),
        "Rows and checkpoint stand together: it goes on behind the batch.",
    ),
    # --- The gateway ----------------------------------------------------------------------------
    CrashPoint(
        *("gateway.before_append", "", _GATEWAY, _GATEWAY),
        "Nothing was asked: the caller gets an error and asks again.",
    ),
    CrashPoint(
        *("gateway.after_append", "F12", _GATEWAY, _GATEWAY),
        "The command is decided once; the caller who asks again under its key is told how.",
    ),
    CrashPoint(
        *("gateway.after_reply", "F12", _GATEWAY, _GATEWAY),
        "The caller was not told: the same; what was granted to it is given back.",
    ),
    CrashPoint(
        *("gateway.after_beat", "", _GATEWAY, _GATEWAY),
        "The owner was told which claims wait, and is not told again: it takes them back.",
    ),
    CrashPoint(
        *("gateway.after_unawaited", "", _GATEWAY, _GATEWAY),
        "A lease was given back, or a new owner told of a claim that waits: said again, no news.",
    ),
    # --- The runtime ----------------------------------------------------------------------------
    CrashPoint(
        *("runtime.after_fetch", "F13", _RUNTIME, _RUNTIME),
        "The lease lapses, and the next attempt fetches again.",
    ),
    CrashPoint(
        *("runtime.before_call", "F13", _RUNTIME, _RUNTIME),
        "The lease lapses, and another attempt is made; an error fails the attempt.",
    ),
    CrashPoint(
        *("runtime.after_call", "F14", _RUNTIME, _RUNTIME),
        "What the handler did is done again by the next attempt; its output counts for nothing.",
    ),
    CrashPoint(
        *("runtime.after_upload", "F15", _RUNTIME, _RUNTIME),
        "No job refers to the object: it is swept as an orphan; the next attempt has its own.",
    ),
    CrashPoint(
        *("runtime.after_report", "F16", _RUNTIME, ()),
        "The results stand; what else was held lapses.",
    ),
    CrashPoint(
        *("runtime.after_beat", "", _RUNTIME, ()),
        "The owner may assign what nobody begins: those leases lapse.",
    ),
    # --- The cleaner ----------------------------------------------------------------------------
    CrashPoint(
        *("cleaner.after_read", "", _CLEANER, _CLEANER),
        "Nothing was changed: the next round looks again.",
    ),
    CrashPoint(
        *("cleaner.after_ask", "", _CLEANER, _CLEANER),
        "The owner decides what was asked; asked again under the same id, it is no news.",
    ),
    CrashPoint(
        *("cleaner.after_withdrawn", "F16b", _CLEANER, _CLEANER),
        "The reference is withdrawn, the object lies there: the next round deletes it.",
    ),
    CrashPoint(
        *("cleaner.after_deleted", "F16b", _CLEANER, _CLEANER),
        "The object is gone, and not recorded as deleted: the next round deletes and records it.",
    ),
    CrashPoint(
        *("cleaner.after_owner_deleted", "", _CLEANER, _CLEANER),
        "The removal goes on with what is left.",
    ),
    CrashPoint(
        *("cleaner.after_mark", "", _CLEANER, _CLEANER),
        "The store says whose it is; the next pass finds its own mark.",
    ),
    CrashPoint(
        *("cleaner.after_page", "", _CLEANER, _CLEANER),
        "Nothing of the page was deleted: the next pass lists it again.",
    ),
    CrashPoint(
        *("cleaner.before_orphans_deleted", "", _CLEANER, _CLEANER),
        "The orphans are found again by the next pass.",
    ),
    CrashPoint(
        *("cleaner.after_orphans_deleted", "", _CLEANER, _CLEANER),
        "They are gone; the next pass finds no others.",
    ),
    CrashPoint(
        *("cleaner.after_swept", "", _CLEANER, _CLEANER),
        "The pass was whole, and the next one is no later for it.",
    ),
)
"""Every point there is, in the order of a command's way."""
NAMES = frozenset(point.name for point in POINTS)


class CrashPointReached(Exception):
    """The test asked for this error here."""


def _parse(setting: str) -> tuple[str, int, bool]:
    name, _, rest = setting.partition(":")
    count, _, how = rest.partition(":")
    if not name or not count.isdecimal() or int(count) < 1 or how not in ("", "raise"):
        raise ValueError(f"LEDGER_CRASH_AT={setting!r}: write name:n or name:n:raise")
    if name not in NAMES:
        close = get_close_matches(name, NAMES, n=1)
        meant = f"did you mean {close[0]}?" if close else "ledger/log/crash_points.py has them all"
        raise ValueError(f"LEDGER_CRASH_AT={setting!r}: there is no point {name!r}; {meant}")
    return name, int(count), how == "raise"


_name, _left, _raises = "", 0, False
if _setting := os.environ.get("LEDGER_CRASH_AT"):
    _name, _left, _raises = _parse(_setting)


def reach(name: str) -> None:
    if _left and name == _name:
        _pass()


def _pass() -> None:
    global _left
    _left -= 1
    if _left:
        return
    os.write(2, f'{{"event": "crash_point.reached", "point": "{_name}"}}\n'.encode())
    if _raises:
        raise CrashPointReached(_name)
    os.kill(os.getpid(), signal.SIGKILL)
