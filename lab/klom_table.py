"""What KLoM can tell with K models a side, by simulation: normal margins, shifts that are known. Half a minute, no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fastntk.auditing.klom import BINS, CLIP, EPSILON, ceiling, gaussian_floor, klom_figures
from fastntk.auditing.record import to_dict
from fastntk.reproduce.records import has_record, write_record

SCHEMA = "fastntk-klom-table/1"
SIZES = (8, 10, 16, 20, 50, 100)
SHIFTS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
SAMPLES = 1000
DIGEST = f"{SIZES} {SHIFTS} {SAMPLES} {BINS} {CLIP} {EPSILON}"


def write_klom_table(path: Path) -> None:
    """Write the record, unless it is there."""
    if not has_record(path, DIGEST, schema=SCHEMA):
        write_record(path, {"schema": SCHEMA, "digest": DIGEST} | klom_table())


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
