"""What a command says: data to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON to standard output, progress to standard error.")
]

LogIsJson = Annotated[
    bool, typer.Option("--json", help="Changes nothing: all that it says is its log, in JSON.")
]

STATUS_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "expired": "red",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "running": "cyan",
    "leased": "cyan",
}


PIPE_WIDTH = 160
"""Of tables where no terminal says how wide it is."""


def out() -> Console:
    """Of this moment: tests change sys.stdout."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, highlight=False, width=width)


def err() -> Console:
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """One line where it is not a terminal, for whoever reads lines."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A word on how it goes; never part of the answer."""
    err().print(Text(printable(text)))


def line(text: str) -> None:
    """A line of the answer, as it is: no markup, whatever a payload holds."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    drawn = Table(*columns, title=title or None, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        drawn.add_row(*(_cell(value) for value in row))
    out().print(drawn)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line."""
    drawn = Table.grid(padding=(0, 2))
    for name, value in pairs:
        drawn.add_row(Text(name, style="dim"), _cell(value))
    out().print(drawn)


def printable(text: str) -> str:
    """Without what would move a terminal's cursor: texts of jobs are strangers' texts."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def short_time(text: str | None) -> str:
    """An instant of the api, in the reader's own zone."""
    if not text:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def clock_time(text: str) -> str:
    """The same, without the day."""
    return datetime.fromisoformat(text).astimezone().strftime("%H:%M:%S.%f")[:-3]


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _cell(value: object) -> Text:
    text = "" if value is None else str(value)
    return Text(printable(text), style=STATUS_STYLES.get(text, ""))
