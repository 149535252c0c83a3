"""Crash points: their catalogue, and that none is missing where a death has a promise."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from ledger.log import crash_points
from ledger.log.crash_points import NAMES, POINTS

ROOT = Path(__file__).parents[3]
PACKAGES = ("ledger", "processors", "projections", "api", "cli")

LOOPS = (
    *("ledger/log/intake.py", "ledger/log/offsets.py", "ledger/log/entries_reader.py"),
    *("ledger/log/outbox.py", "ledger/log/term.py"),
    "processors/owner/*.py",
    *("projections/feed.py", "projections/projector.py", "projections/checkpoints.py"),
    *("projections/writing.py", "projections/log_source.py"),
    *("api/gateway.py", "api/beats.py", "api/wire.py"),
    *("ledger/client/runtime_link.py", "ledger/client/runtime_inbox.py"),
    *("ledger/client/handlers.py", "ledger/client/carrying.py"),
    "processors/clean/*.py",
)
"""Owner, projector, gateway, runtime, cleaner, and the log's clients that they share."""


# --- The catalogue --------------------------------------------------------------------------------
CROSS = """
from ledger.log.crash_points import reach
for number in range(3):
    reach("owner.after_poll")
    reach("owner.after_decide")
    print(number, flush=True)
"""


@pytest.mark.parametrize(
    ("setting", "passes", "code"),
    [
        ("", "0 1 2", 0),
        ("owner.after_decide:2", "0", -9),
        ("owner.after_decide:3:raise", "0 1", 1),
        ("owner.after_append:1", "0 1 2", 0),
    ],
)
def test_a_crash_point_ends_the_process_at_its_nth_pass(
    setting: str, passes: str, code: int
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CROSS],
        env={"LEDGER_CRASH_AT": setting, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert ended.stdout.split() == passes.split()
    assert ended.returncode == code
    assert ("crash_point.reached" in ended.stderr) == (code != 0)


@pytest.mark.parametrize(
    "setting",
    ["owner.after_poll", *(f"owner.after_poll:{rest}" for rest in ("0", "x", "1:later")), ":1"],
)
def test_a_misshapen_setting_is_an_error(setting: str) -> None:
    with pytest.raises(ValueError, match="write name:n"):
        crash_points._parse(setting)


def test_a_misspelt_point_is_an_error_that_names_the_one_meant() -> None:
    with pytest.raises(ValueError, match=r"did you mean owner\.after_poll\?"):
        crash_points._parse("owner.after_pol:1")
    with pytest.raises(ValueError, match="has them all"):
        crash_points._parse("zzz:1")


def test_every_point_is_placed_and_every_place_is_in_the_catalogue() -> None:
    placed = {
        name
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for name in points_in(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert placed == NAMES
    assert len(POINTS) == len(NAMES)
    assert all(set(point.outlived_by) <= set(point.reached_by) for point in POINTS)


def test_every_numbered_fault_has_its_point() -> None:
    numbers = {f"F{number}" for number in range(1, 17)} | {"F16b"}
    assert {point.fault for point in POINTS} - {""} == numbers


def points_in(tree: ast.AST) -> Iterator[str]:
    """The names that `reach` is called with; each is a literal, or one of two."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "reach":
            [said] = node.args
            names = [said.body, said.orelse] if isinstance(said, ast.IfExp) else [said]
            for name in names:
                assert isinstance(name, ast.Constant)
                assert isinstance(name.value, str)
                yield name.value


# --- None is missing ------------------------------------------------------------------------------
SEAMS: dict[str, set[str]] = {
    "outbox": {"send", "send_one", "posted"},
    "_producer": {"send", "acknowledged"},
    "producer": {"send", "acknowledged"},
    "_term": {"append"},
    "Term": {"take_over"},
    "_wire": {"append"},
    "topics": {"ensure_assigned", "require_safe"},
    "admin": {"find", "delete_records"},
    "consumer": {"getmany"},
    "_consumer": {"getmany"},
    "_carrier": {"payload_of", "inputs_of", "output_of"},
    "store": {"put", "get", "listing", "check", "delete_many", "sweep_unfinished"},
    "_store": {"put", "get", "listing", "check", "delete_many", "sweep_unfinished"},
    "reads": {"removable", "removals", "owned", "referred", "consumed"},
    "connection": {"execute", "commit", "cursor"},
    "cursor": {"copy", "execute"},
    "copy": {"write"},
}
"""By whom they are asked of: what reads or changes something outside the process. Beside each call
stands a point. What is only asked of the log (`Offsets`, `EntriesReader`, `Intake`) has its point
in the client, which is among the loops."""

WAITS = {"wait", "woken", "AsyncExitStack", "aclosing"}
"""For something in this process."""

IN_THE_TRANSACTION = "rolled back with it; each statement is failed in test_projector_faults.py"
OPENS = "a client is opened: nothing was read or written"
CLOSES = "a client is closed: nothing is read or written"
EXCUSED: dict[tuple[str, str, str], str] = {
    (
        "ledger/log/entries_reader.py",
        "_poll",
        "self._consumer.getmany",
    ): "its position is next",
    ("ledger/log/entries_reader.py", "_restart", "*"): OPENS,
    ("ledger/log/entries_reader.py", "close", "stop"): CLOSES,
    ("ledger/log/intake.py", "_new_consumer", "log_consumer"): OPENS,
    ("ledger/log/intake.py", "_note_positions", "consumer.position"): "known without asking",
    ("ledger/log/intake.py", "_watch", "stop"): CLOSES,
    ("ledger/log/intake.py", "close", "stop"): CLOSES,
    ("ledger/log/offsets.py", "_started", "log_consumer"): OPENS,
    ("ledger/log/offsets.py", "_answered", "client._client._wait_on_metadata"): OPENS,
    ("ledger/log/term.py", "take_over", "EntriesReader"): OPENS,
    ("processors/owner/release.py", "send", "self._seams.outbox.posted"): (
        "owner.after_effects stands behind it, in TermOfOffice._send_all"
    ),
    ("processors/owner/service.py", "run", "settings.topics.require_safe"): "reads, at the start",
    ("processors/owner/service.py", "_trim", "Admin"): OPENS,
    ("processors/owner/service.py", "_follow", "sharing.rejoin"): "membership, not data",
    ("processors/owner/trimming.py", "trim", "admin.delete_records"): (
        "once an hour, of what is decided and a week old; deleted again, it is no news"
    ),
    ("projections/checkpoints.py", "*", "*"): IN_THE_TRANSACTION,
    ("projections/writing.py", "*", "*"): IN_THE_TRANSACTION,
    ("projections/projector.py", "_move_partitions", "*"): IN_THE_TRANSACTION,
    ("projections/projector.py", "_load", "connection.execute"): IN_THE_TRANSACTION,
    ("projections/projector.py", "_transaction", "connection.commit"): (
        "projector.before_commit and after_commit stand around it, in _apply"
    ),
    ("projections/projector.py", "_connected", "*"): OPENS,
    ("projections/projector.py", "_look_over", "connection.execute"): (
        "changes no row; projector.after_commit is before it"
    ),
    (
        "projections/feed.py",
        "_in_thread",
        "*",
    ): "the points are in what it does",
    ("projections/log_source.py", "read", "EntriesReader"): OPENS,
    ("ledger/client/carrying.py", "put", "self._store.put"): "runtime.after_upload, in output_of",
    ("ledger/client/carrying.py", "get", "self._store.get"): "runtime.after_fetch, in Handlers",
    ("ledger/client/carrying.py", "_tried", "call"): "what it calls is put or get",
    ("ledger/client/handlers.py", "_store", "self._carrier.output_of"): (
        "runtime.after_upload is its last step"
    ),
    ("ledger/client/handlers.py", "_fetch", "self._carrier.payload_of"): (
        "runtime.after_fetch stands behind the inputs, which are fetched next"
    ),
    ("ledger/client/runtime_inbox.py", "_wait_until_made", "*"): "asks until the owner has made it",
    ("ledger/client/runtime_link.py", "_connected", "partitions_of"): "asks once, at the start",
    ("processors/clean/cleaner.py", "_tried", "work"): "a round of one of its parts",
    ("processors/clean/results.py", "_delete", "store.check"): (
        "touches no object; cleaner.after_withdrawn is next"
    ),
}
"""(module, function, call), `*` for all: why a death there needs no point of its own."""


class Call(NamedTuple):
    module: str
    function: str
    call: str

    def is_excused(self) -> bool:
        module, function, call = self
        return not EXCUSED.keys().isdisjoint(
            {(module, function, call), (module, function, "*"), (module, "*", "*")}
        )


def test_beside_every_call_to_the_outside_stands_a_point() -> None:
    found = {call for module in modules() for call in without_a_point(module)}
    missing = sorted(" ".join(call) for call in found if not call.is_excused())
    assert missing == [], "place reach(…) before or behind them, or excuse them with a reason"


def test_no_excuse_outlives_what_it_excuses() -> None:
    found = [call for module in modules() for call in without_a_point(module)]
    used = {
        excuse
        for excuse in EXCUSED
        if any(
            all(said in ("*", of_call) for said, of_call in zip(excuse, call, strict=True))
            for call in found
        )
    }
    assert used == EXCUSED.keys()


@pytest.mark.parametrize(
    ("code", "is_fine"),
    [
        ("await self._seams.outbox.send(t)", False),
        ("await self._seams.outbox.send(t)\n    reach('x')", True),
        ("reach('x')\n    await self._seams.outbox.send(t)", True),
        ("reach('x')\n    other()\n    await self._seams.outbox.send(t)", False),
        ("try:\n        await store.put(t)\n    finally:\n        pass\n    reach('x')", True),
        ("if t:\n        await store.put(t)\n    else:\n        pass\n    other()", False),
        ("await somebody.else_(t)", False),
        ("await asyncio.sleep(1)", True),
        ("await self.f(t)", True),
        ("await task", True),
        ("connection.execute(t)", False),
        ("async for one in somebody.elses():\n        pass", False),
    ],
)
def test_the_look_for_missing_points_sees_what_it_should(code: str, is_fine: bool) -> None:
    tree = ast.parse(f"async def f(self):\n    {code}\n")
    assert (list(_without_a_point(tree, "m", {"f"})) == []) == is_fine


def modules() -> list[str]:
    return sorted({str(file.relative_to(ROOT)) for pattern in LOOPS for file in ROOT.glob(pattern)})


def without_a_point(module: str) -> Iterator[Call]:
    return _without_a_point(_tree(module), module, _own())


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


@cache
def _own() -> set[str]:
    """Functions of the loops themselves: what they await is looked at in them."""
    return {
        node.name
        for module in modules()
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.AsyncFunctionDef)
    }


def _without_a_point(tree: ast.Module, module: str, own: set[str]) -> Iterator[Call]:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _reaches_outside(node, parents, own):
            continue
        if not _has_a_point_beside(node, parents):
            yield Call(module, _function(node, parents), ast.unparse(node.func))


def _reaches_outside(call: ast.Call, parents: dict[ast.AST, ast.AST], own: set[str]) -> bool:
    """A seam is asked, or something is awaited that is neither ours nor asyncio's."""
    if isinstance(call.func, ast.Attribute):
        asked = _last_name(call.func.value)
        if call.func.attr in SEAMS.get(asked, ()):
            return True
        if asked in ("asyncio", "stack", "closing"):
            return False
    if _called(call) in WAITS:
        return False
    parent = parents[call]
    is_awaited = isinstance(parent, ast.Await | ast.AsyncFor) or (
        isinstance(parent, ast.withitem) and isinstance(parents[parent], ast.AsyncWith)
    )
    return is_awaited and _called(call) not in own


def _has_a_point_beside(call: ast.Call, parents: dict[ast.AST, ast.AST]) -> bool:
    """In the next statement before or behind; at the edge of a block, in that of the block."""
    statement = _statement(call, parents)
    return any(_finds_a_point(statement, parents, step) for step in (-1, 1))


def _finds_a_point(statement: ast.stmt, parents: dict[ast.AST, ast.AST], step: int) -> bool:
    if step == 1 and (inside := getattr(statement, "body", None)) and _is_point(inside[0]):
        return True  # The first thing done with what came.
    parent = parents[statement]
    for _, block in ast.iter_fields(parent):
        if isinstance(block, list) and statement in block:
            place = block.index(statement) + step
            if 0 <= place < len(block):
                return _is_point(block[place])
    if isinstance(parent, ast.stmt) and not isinstance(
        parent, ast.AsyncFunctionDef | ast.FunctionDef
    ):
        return _finds_a_point(parent, parents, step)
    return False


def _is_point(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return len(statement.body) == 1 and _is_point(statement.body[0])
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return _called(statement.value) == "reach"


def _called(call: ast.Call) -> str:
    return _last_name(call.func)


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner):
            return _last_name(inner)
        case _:
            return ""


def _statement(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.stmt:
    while not isinstance(node, ast.stmt):
        node = parents[node]
    return node


def _function(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
        node = parents[node]
    return getattr(node, "name", "")
