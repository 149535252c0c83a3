"""Which test stands for which rule of the requirements: read off the tests' markers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

RULES: dict[str, str] = {
    "S1.1": "Job types are declared, as data",
    "S1.2": "The states of a job, and exactly the transitions between them",
    "S1.3": "A job's fields; labels and payload for what is not the ledger's business",
    "S1.4": "One runtime wins a lease; only its holder extends it",
    "S1.5": "Silence and time-outs expire an attempt, which counts",
    "S1.6": "Which errors are retried, by the type's catalogue and the runtime's own flag",
    "S1.7": "Creation is idempotent on key and declared scope",
    "S1.8": "A result is idempotent on job, attempt and hash",
    "S1.9": "A rerun is a new job that names the old one",
    "S1.10": "Cancel: at once, cooperative, of all that match",
    "S1.11": "Poll: by priority, then age, of the runtime's types only",
    "S2.1": "Templates are versioned; a run keeps its version",
    "S2.2": "What may be done again, and beside its equals",
    "S2.3": "A run's scope, phase, progress, result, error and times",
    "S2.4": "The statuses of runs and of their steps",
    "S2.5": "Steps: linear, as a graph, on conditions",
    "S2.6": "Schedules: one run a nominal time",
    "S2.7": "Cooperative cancel, its grace, and steps that finish first",
    "S2.8": "Guards: only the holder of the lease completes, fails or tells progress",
    "S2.9": "Every change is an event that says what, when, by whom and why",
    "S2.10": "Templates, jobs and schedules over HTTP",
    "S3.1": "Submitting returns at once; progress by asking or by push",
    "S3.2": "Stages with ranges of progress",
    "S3.3": "A check that fails sends back, a bounded number of times, then degrades",
    "S3.4": "The whole run is tried again from its start",
    "S3.5": "Equal requests in flight share one run",
    "S3.6": "Bounded concurrency, bounded queues, back-pressure instead of loss",
    "S3.7": "Outputs in an object store, by owner; an owner's removal removes them",
    "S4.1": "Models: configured, read, changed, removed",
    "S4.2": "Concurrency per tenant and model, over all processes",
    "S4.3": "A call's answer is stored; what was passed through is nowhere in the clear",
    "S4.4": "No two workers take the same job",
    "S4.5": "Collect: the same answer until it expires",
    "S4.6": "Retries at the tail keep the order of arrival",
    "S4.7": "What is past its time is removed with its objects; nothing hangs",
}
"""Our words for each; the tests say it exactly."""

HEAD = """# Requirements and their tests

Made by `make generate` from the markers of the tests; `make check` fails when it is not true.
Each rule is cited by tests that fail without it.

| rule | what it asks | tests |
|---|---|---|
"""


def requirements_document() -> str:
    """Raises ValueError for a rule without a test, or a marker of no rule."""
    cited = dict(sorted(_cited(Path(__file__).resolve().parent.parent / "tests")))
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    for test, rules in cited.items():
        for rule in rules:
            if rule not in found:
                raise ValueError(f"{test} cites {rule}, which is no rule")
            found[rule].append(test)
    missing = [rule for rule, tests in found.items() if not tests]
    if missing:
        raise ValueError(f"no test cites {', '.join(missing)}")
    return HEAD + "".join(
        f"| {rule} | {RULES[rule]} | {_told(tests)} |\n" for rule, tests in found.items()
    )


def _told(tests: list[str]) -> str:
    """By file, each with the names of its tests."""
    by_file: dict[str, list[str]] = {}
    for test in tests:
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(name)
    return "<br>".join(
        f"`{file}`: {', '.join(name.removeprefix('test_') for name in names)}"
        for file, names in by_file.items()
    )


def _cited(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(file::test, rules) of every test with the marker `rule`, its module's included."""
    for file in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        of_all = tuple(
            rule
            for node in tree.body
            if isinstance(node, ast.Assign) and _names(node) == ["pytestmark"]
            for rule in _rules(node.value)
        )
        place = file.relative_to(folder.parent).as_posix()
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not node.name.startswith("test_"):
                continue
            own = [rule for mark in node.decorator_list for rule in _rules(mark)]
            if rules := tuple(dict.fromkeys((*of_all, *own))):
                yield f"{place}::{node.name}", rules


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _rules(node: ast.expr) -> Iterator[str]:
    """What `pytest.mark.rule(…)`, wherever it stands in an expression, is given."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        mark = call.func
        if mark.attr != "rule" or not isinstance(mark.value, ast.Attribute):
            continue
        for argument in call.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value
