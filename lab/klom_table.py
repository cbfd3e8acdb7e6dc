"""What KLoM can tell with K models a side, by simulation: normal margins, shifts that are known. Half a minute, no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fastntk.auditing.klom import BINS, CLIP, EPSILON, ceiling, gaussian_floor, klom_figures
from fastntk.auditing.record import to_dict
from fastntk.reproduce.environment import environment
from fastntk.reproduce.records import reason_to_run, write_record
from lab.module_code import module_code

SCHEMA = "fastntk-klom-table/1"
SIZES = (8, 10, 16, 20, 50, 100)
SHIFTS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
SAMPLES = 1000
MODULES = ("auditing/klom.py", "auditing/ulira.py")
"""What the figures rest on."""


def write_klom_table(path: Path, *, keep_stale: bool = False) -> None:
    """Write the record, unless it is there and fresh (``keep_stale``: or made by other code)."""
    digest, code = f"{SIZES} {SHIFTS} {SAMPLES} {BINS} {CLIP} {EPSILON}", module_code(*MODULES)
    if reason_to_run(path, lambda _: digest, code, schema=SCHEMA, keep_stale=keep_stale) is not None:
        head = {"schema": SCHEMA, "digest": digest, "code": code, "environment": environment()}
        write_record(path, head | klom_table())


def klom_table() -> dict[str, Any]:
    """Mean of KLoM, share of disjoint samples and median of the Gaussian divergence, by models a side and true shift."""
    rows = {}
    for size in SIZES:
        rng = np.random.default_rng(size)
        row = {}
        for shift in SHIFTS:
            found = klom_figures(shift + rng.normal(size=(size, SAMPLES)), rng.normal(size=(size, SAMPLES)))
            plain = to_dict(found)
            row[str(shift)] = {
                "mean": round(plain["mean"], 3),
                "disjoint": plain["disjoint"],
                "gaussian": round(plain["gaussian"]["median"], 3),
            }
        rows[str(size)] = {"floor": gaussian_floor(size), "shifts": row}
    return {"rows": rows, "ceiling": ceiling(), "true": {str(shift): shift**2 / 2 for shift in SHIFTS}}
