"""What the paper's own settings would take on larger machines, as a table of docs/reproduce.md."""

from __future__ import annotations

from collections.abc import Sequence

from fastntk.reproduce.cells import Cell, cells_of
from fastntk.reproduce.expect import CPU, GPU, Expected, Machine, expected
from fastntk.reproduce.paper import TABLES


def total(cells: Sequence[Cell], machine: Machine) -> Expected:
    """All cells one after the other."""
    costs = [expected(cell, machine) for cell in cells]
    return Expected(sum(cost.seconds for cost in costs), max(cost.memory for cost in costs))


def expectation_table() -> str:
    """Markdown: every network of every table in the paper's own settings, on both machines."""
    lines = [
        f"Counted operations; {GPU}, {CPU}. Memory is the most that one cell needs at once.",
        "",
        "| table | network | cells | seeds | time on the GPU | time on the CPU | memory |",
        "|" + " --- |" * 7,
    ]
    for table in TABLES:
        cells = cells_of(table, real=True)
        for model in dict.fromkeys(cell.model for cell in cells):
            group = [cell for cell in cells if cell.model == model]
            fast, slow = total(group, GPU), total(group, CPU)
            lines.append(
                f"| {table} | {group[0].title} | {len(group)} | {len(group[0].setting.seeds)} | {fast.seconds / 3600:.1f} h | "
                f"{slow.seconds / 3600:.1f} h | {fast.memory / 1e9:.1f} GB |"
            )
    return "\n".join(lines) + "\n"
