"""Results as one table: in the terminal, and in the documentation between two markers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.gates import BY_NAME, GATES, Gate, Verdict, judge, met
from benchmarks.results import Result

HEAD = ("", "measure", "ours", "peer or floor", "ratio", "gate", "aim", "pass")
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def table(results: Sequence[Result]) -> str:
    """Every gate, also those without a figure, then what has none; the last line counts."""
    by_name = {result.measure: result for result in results}
    rows = [HEAD, *(_gate_row(gate, by_name.get(gate.name)) for gate in GATES)]
    rows += [_row(result) for result in results if result.measure not in BY_NAME]
    verdicts = verdicts_of(by_name)
    aims = sum(verdict is not None and verdict.aimed for verdict in verdicts.values())
    reached, many = met(verdicts.items())
    reasons = [f"{result.measure}: {result.failed}" for result in results if result.failed]
    return "\n".join(
        [
            *aligned(rows),
            "",
            *reasons,
            f"aims: {aims} of {len(GATES)}",
            f"gates: {reached} of {many}",
        ]
    )


def verdicts_of(by_name: Mapping[str, Result]) -> dict[Gate, Verdict | None]:
    return {gate: _verdict(gate, by_name.get(gate.name)) for gate in GATES}


def written_into(document: str, results: Sequence[Result]) -> str:
    """The document with the table and what it was measured on between its markers. Raises
    ValueError where it has none."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{setting(results)}\n\n{END}{after}"


def setting(results: Sequence[Result]) -> str:
    """What it was measured on."""
    versions = next((result.versions for result in results if result.versions is not None), None)
    if versions is None:
        return "Nothing was measured."
    loads = [result.load for result in results]
    cores = max(result.cores for result in results)
    return (
        f"Measured on {cores} cores, load {min(loads):.1f} to {max(loads):.1f}, commit "
        f"{versions.commit}: Python {versions.python}, Kafka {versions.kafka}, Postgres "
        f"{versions.postgres}, aiokafka {versions.aiokafka}, psycopg {versions.psycopg}."
    )


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """As Markdown, which is readable as it is."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def _verdict(gate: Gate, result: Result | None) -> Verdict | None:
    if result is None or result.ours is None:
        return None
    return judge(gate, result.ours, result.ours_to_aim)


def _gate_row(gate: Gate, result: Result | None) -> tuple[str, ...]:
    verdict = _verdict(gate, result)
    sign = "≤" if gate.direction == "at most" else "≥"
    bounds = [
        "" if bound is None else f"{sign} {_figure(bound)}" for bound in (gate.gate, gate.aim)
    ]
    if result is None:
        result = Result(gate.name, gate.unit)
    said = "not measured" if verdict is None else _passed(verdict)
    if verdict is not None and verdict.passed and result.is_reduced:
        said += ", at this size"
    return (gate.target, _what(gate.question, result), *_figures(result), *bounds, said)


def _row(result: Result) -> tuple[str, ...]:
    said = "failed" if result.failed else ""
    return ("", _what(result.measure.replace("_", " "), result), *_figures(result), "", "", said)


def _what(name: str, result: Result) -> str:
    return f"{name}: {result.detail}" if result.detail else name


def _figures(result: Result) -> tuple[str, str, str]:
    """Ours, the peer's, their ratio. A ratio that is the figure itself stands there only."""
    beside = "" if result.beside is None else f"{_figure(result.beside)} ({result.beside_is})"
    is_ratio = result.unit == "x"
    shown = result.ours_as_beside if is_ratio else result.ours
    ours = "" if shown is None else _figure(shown)
    if ours and not is_ratio:
        ours += f" {result.unit}"
    ratio = f"{result.ours:.2f}" if is_ratio and result.ours is not None else ""
    return ours, beside, ratio


def _passed(verdict: Verdict) -> str:
    if verdict.aimed:
        return "yes, and the aim"
    return {True: "yes", False: "no", None: ""}[verdict.passed]


def _figure(figure: float) -> str:
    if figure >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.3g}"
