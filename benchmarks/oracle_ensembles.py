"""Do cheap ensembles give the verdicts of real ones? U-LiRA and the divergence of margins under both kinds, on a small real case.

ResNet-20 with embedded CIFAR-100 weights, norm+head, 30 images per class of CIFAR-10; forget class 0, and a random 10 %. For
Full, fast-ntk, tangent-replay and Retrain: the area of U-LiRA, the median shift and the Gaussian KL with K real trainings and
with K tangent replays. A verdict is "told apart" where the area is above Retrain's own by 2 of its own standard errors and 0.05.

    python -m benchmarks.oracle_ensembles [--size 16] [--images 30] [--epochs 20] [--cache DIR] [--out FILE]
    python -m benchmarks.oracle_ensembles --page        fill docs/metrics.md from the record, run nothing

With K = 16 this takes 2 × 16 trainings a request (10 to 15 s each on one core), and as many unlearnings a method.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastntk
from benchmarks.common import SHARED, environment, markdown
from fastntk.auditing.calibration import LIRA_GAP
from fastntk.auditing.ensembles import ensemble_figures
from fastntk.base.atomic import write_file
from fastntk.models import input_spec

METHODS = ("fast-ntk", "tangent-replay")
KINDS = ("real", "tangent")
ERRORS = 2
"""Standard errors above Retrain's own area from which a row is told apart here."""
DATA = "data/cifar10-5k.npz@train"
START, END = "<!-- ensembles:start -->", "<!-- ensembles:end -->"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"


def run(*, size: int, images: int, epochs: int, cache: Path | None) -> dict[str, Any]:
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    subset = fastntk.tune(model, "norm+head")
    samples = fastntk.load_source(str(SHARED / DATA), spec=input_spec(model), images_per_class=images)
    trained = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=epochs))
    some = np.random.default_rng(0).permutation(len(samples))[: len(samples) // 10]
    requests: dict[str, dict[str, Any]] = {
        "class 0": {"classes": [0]},
        "random 10 %": {"ids": [samples.ids[number] for number in sorted(some.tolist())]},
    }
    linearisation = fastntk.linearise_run(trained)
    cases = {name: _case(trained, linearisation, request, size=size, cache=cache) for name, request in requests.items()}
    return {
        "size": size,
        "images_per_class": images,
        "recipe": trained.recipe.to_dict() if trained.recipe else None,
        "cases": cases,
    }


def _case(
    origin: fastntk.Run, linearisation: fastntk.Linearisation, request: dict[str, Any], *, size: int, cache: Path | None
) -> dict[str, Any]:
    """By kind, then by model: area, its standard error, KLoM, and whether it is told apart from Retrain."""
    out: dict[str, Any] = {}
    for kind in KINDS:
        rows: dict[str, Any] = {}
        seconds = 0.0
        for method in METHODS:
            result = fastntk.unlearn(origin, method=method, linearisation=linearisation, **request)
            lira, klom = ensemble_figures(origin, result, size=size, kind=kind, cache=cache)  # type: ignore[arg-type]
            seconds += lira.ensemble.seconds
            for name, row in (("full", "full"), ("unlearned", method), ("retrain", "retrain")):
                rows[row] = {key: getattr(getattr(lira, name), key) for key in ("auc", "auc_standard_error", "tpr_at_1pct_fpr")}
                rows[row]["klom"] = getattr(klom, name).mean
                rows[row]["gaussian_kl"] = getattr(klom, name).gaussian.median
                rows[row]["shift"] = getattr(lira.shift, name).median
            print(f"{kind} {method}: {lira.unlearned.auc:.3f}", flush=True)
        for row in rows.values():
            gap = row["auc"] - rows["retrain"]["auc"]
            row["told_apart"] = gap > max(ERRORS * row["auc_standard_error"], LIRA_GAP)
        out[kind] = {"models": rows, "seconds": seconds}
    return out


def table(result: dict[str, Any]) -> str:
    lines = []
    # Records of before have another KLoM, which saturated, and neither of these.
    known = {name: key for name, key in (("shift", "shift"), ("Gaussian KL", "gaussian_kl")) if _has(result, key)}
    for request, kinds in result["cases"].items():
        for model in ("full", *METHODS, "retrain"):
            cells: list[object] = [request, model]
            for kind in KINDS:
                row = kinds[kind]["models"][model]
                area = f"{row['auc']:.3f} ± {row['auc_standard_error']:.3f}"
                cells += [area, *(f"{row[key]:.2f}" for key in known.values())]
            verdicts = [kinds[kind]["models"][model]["told_apart"] for kind in KINDS]
            words = ["told apart" if verdict else "not told apart" for verdict in verdicts]
            lines.append([*cells, words[0] if verdicts[0] == verdicts[1] else f"{words[0]} / {words[1]}"])
    head = ["request", "model", *(f"{name}, {kind}" for kind in KINDS for name in ("U-LiRA", *known)), "verdict"]
    return markdown(head, lines)


def _has(result: dict[str, Any], key: str) -> bool:
    return all(key in row for kinds in result["cases"].values() for kind in kinds.values() for row in kind["models"].values())


def section(record: dict[str, Any]) -> str:
    """The generated part of the page."""
    result = record["result"]
    about = (
        f"ResNet-20, CIFAR-10, {result['images_per_class']} images per class, {result['recipe']['epochs']} epochs, "
        f"K = {result['size']}, one run, commit {record['environment']['commit']}."
    )
    return f"{START}\n{about}\n\n{table(result)}\n{END}"


def fill(page: Path, record: dict[str, Any]) -> None:
    text = page.read_text("utf-8")
    before, _, rest = text.partition(START)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{page} has no section {START} … {END}")
    write_file(page, (before + section(record) + after).encode(), overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("results/bench/oracle_ensembles.json"))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        fill(PAGE, json.loads(options.out.read_text("utf-8")))
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    result = run(size=options.size, images=options.images, epochs=options.epochs, cache=options.cache)
    record = {"environment": environment(), "result": result}
    write_file(options.out, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode(), overwrite=True)
    print(table(result))


if __name__ == "__main__":
    main()
