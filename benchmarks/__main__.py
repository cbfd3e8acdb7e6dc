"""Run benchmarks by name, print their tables and write one JSON record each."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from pathlib import Path

import torch

from benchmarks import NAMES, SLOW
from benchmarks.common import environment


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(NAMES)}; default: all but {', '.join(SLOW)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that everything works, not speed")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown benchmarks {', '.join(unknown)}: expected any of {', '.join(NAMES)}")
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or [name for name in NAMES if name not in SLOW]:
        module = importlib.import_module(f"benchmarks.{name}")
        start = time.perf_counter()
        result = module.run(quick=options.quick)
        record = {
            "benchmark": name,
            "quick": options.quick,
            "seconds": round(time.perf_counter() - start, 1),
            "environment": environment(),
            "result": result,
        }
        path = options.out / f"{name}.json"
        path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")
        print(f"\n## {name}{' (quick: sizes too small to mean anything)' if options.quick else ''}\n")
        print(module.table(result))
        print(f"\n{record['seconds']} s, written to {path}", flush=True)


if __name__ == "__main__":
    main()
