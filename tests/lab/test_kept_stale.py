"""What an experiment makes with ``keep_stale`` names no code: weights that other code trained may be behind it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.calibration_models import POOLS, open_pool
from tiny_cells import TINY as BASE

from fastntk.reproduce import MethodRow, Request
from fastntk.reproduce.setting import RETRAIN
from lab import at_once, calibration_models, chain, path, single

HEAD = MethodRow("head", "path-replay", {"depth": "head", "validate": False})
TINY = replace(
    BASE, requests=(Request("class", 0), Request("random", 0.5)), seeds=(100,), methods=(HEAD,), probes=False, relearn_cap=1
)
QUIET: dict[str, Any] = {"shared": Path("nowhere"), "say": lambda text: None}


def test_nothing_made_from_kept_weights_names_its_code(tmp_path: Path) -> None:
    folders = {"out": tmp_path, "work": tmp_path / "work"}
    for keep_stale in (True, False):
        path.run(TINY, **folders, **QUIET, keep_stale=keep_stale)
        chain.run(TINY, **folders, **QUIET, requests=2, keep_stale=keep_stale)
        single.run(replace(TINY, requests=()), **folders, **QUIET, removals=2, keep_stale=keep_stale)
        of_path = json.loads((tmp_path / "path/tiny/seed100.json").read_text())
        parts = [
            *of_path["rows"].values(),
            *of_path["references"].values(),
            *json.loads((tmp_path / "path/chain/seed100.json").read_text())["depths"].values(),
            *(json.loads((tmp_path / "single/tiny" / name).read_text()) for name in ("removal-000.json", at_once.FILE)),
        ]
        assert len(parts) == 1 + 2 + 2 + 2
        # Without the option all of it is stale, and made again.
        assert [("code" in part) for part in parts] == [not keep_stale] * len(parts)


def test_a_model_measured_from_kept_weights_is_measured_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(calibration_models, "CAP", 1)
    pool = replace(POOLS["development"], setting=TINY, requests=TINY.requests[:1], seeds=(100,), runs=(100,))
    folders = {"out": tmp_path, "work": tmp_path / "work", "shared": Path("nowhere")}
    kept, fresh = (open_pool(pool, **folders, kept=False, keep_stale=keep_stale) for keep_stale in (True, False))
    request = pool.requests[0]
    kept.get(request, RETRAIN, 100)
    assert kept.read(request, RETRAIN, 100) is not None
    assert fresh.read(request, RETRAIN, 100) is None
    fresh.get(request, RETRAIN, 100)
    assert fresh.read(request, RETRAIN, 100) is not None
