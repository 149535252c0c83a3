"""CPU seconds of process trees, from /proc: Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def tree_cpu(root: int) -> float:
    """Of the living processes below `root`, and of those that they have reaped."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue  # It ended meanwhile.
            fields = text[text.rindex(")") + 2 :].split()
            parents[int(entry)] = int(fields[1])
            spent[int(entry)] = sum(map(int, fields[11:15]))
    if root not in spent:
        return 0.0
    members, todo = {root}, [root]
    while todo:
        parent = todo.pop()
        children = [p for p, of in parents.items() if of == parent and p not in members]
        members.update(children)
        todo += children
    return sum(spent[p] for p in members) / TICKS_A_SECOND


def cpu_of(roots: Iterable[int]) -> float:
    return sum(map(tree_cpu, roots))
