"""What approximations save and what they cost: random output probes (m < C) and Nyström sketches of A.

ResNet-20 with the embedded weights, fine-tuned for a few epochs on 20 images a class of CIFAR-10 (random images where
../shared is missing, which the record says). Errors are relative: of A (Frobenius), of w = (A + λI)⁻¹Jᵀt, and of Jw.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fastntk
from benchmarks.common import SHARED, markdown, timed
from fastntk.linalg import DenseRows, PrimalCholesky, compress_targets, nystrom, output_probes
from fastntk.models.card import input_spec
from fastntk.tangent import checked_engine
from fastntk.tangent.in_memory import rows_in_memory
from fastntk.training.network import fast_layout

CHUNK = 16
ERRORS = ("error_A", "error_w", "error_Jw")


def run(*, quick: bool) -> dict[str, Any]:
    per_class, epochs = (2, 1) if quick else (20, 5)
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    subset = fastntk.tune(model, "norm+head")
    samples, source = _samples(model, per_class)
    fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=epochs))
    images = fast_layout(model, samples.inputs)
    engine = checked_engine(model, subset, images)
    outputs: list[Any] = []
    rows_seconds = min(
        timed(lambda: outputs.append(rows_in_memory(engine, images, chunk=CHUNK))) for _ in range(1 if quick else 3)
    )
    rows = outputs[-1]
    targets = torch.nn.functional.one_hot(samples.labels, 10).double() - 0.1
    exact = rows.gram(torch.float64)
    damping = 1e-2 * float(exact.trace()) / subset.numel
    rhs = rows.rmatvec(targets)
    solutions: list[Tensor] = []

    def direct() -> None:
        solutions.append(_solve(rows.gram(torch.float64), damping, rhs))

    solve_seconds = timed(direct)
    w = solutions[0]
    moved = rows.matvec(w)

    def errors(gram_error: float, approximate: Tensor) -> dict[str, float]:
        return {
            "error_A": gram_error,
            "error_w": float((approximate - w).norm() / w.norm()),
            "error_Jw": float((rows.matvec(approximate) - moved).norm() / moved.norm()),
        }

    entries = []
    for m in (1, 2, 5):
        each = []
        for seed in range(1 if quick else 3):
            probe_rows: list[Tensor] = []
            seconds = timed(
                lambda m=m, seed=seed, probe_rows=probe_rows: probe_rows.append(_probed(engine.probed_rows, images, m, seed))
            )
            probed = DenseRows(probe_rows[0])
            gram = probed.gram(torch.float64)
            error = float((gram - exact).norm() / exact.norm())
            b = probed.rmatvec(compress_targets(targets, m, seed=seed))
            each.append({**errors(error, _solve(gram, damping, b)), "seconds": seconds})
        median = {key: statistics.median(e[key] for e in each) for key in each[0]}
        entries.append({"what": f"{m} output probes", "time_share": median["seconds"] / rows_seconds, **median})
    for rank in (50, 200, 500):
        sketches: list[Any] = []
        seconds = timed(lambda rank=rank, sketches=sketches: sketches.append(nystrom(rows, rank)))
        low = sketches[0]
        gram = low.gram_matvec(torch.eye(subset.numel, dtype=torch.float64))
        error = float((gram - exact).norm() / exact.norm())
        entry = {**errors(error, low.solve(rhs, damping)), "seconds": seconds, "time_share": seconds / solve_seconds}
        entries.append({"what": f"Nyström, rank {rank}", **entry})
    return {
        "images": len(samples),
        "source": source,
        "parameters": subset.numel,
        "damping": damping,
        "rows_seconds": rows_seconds,
        "solve_seconds": solve_seconds,
        "approximations": entries,
    }


def _solve(gram: Tensor, damping: float, rhs: Tensor) -> Tensor:
    return PrimalCholesky().factorise(gram, damping, overwrite=True).solve(rhs).checked().value


def _probed(probed_rows: Callable[[Tensor, Tensor], Tensor], images: Tensor, m: int, seed: int) -> Tensor:
    parts = []
    for start in range(0, len(images), CHUNK):
        x = images[start : start + CHUNK]
        parts.append(probed_rows(x, output_probes(len(x), 10, m, seed, start=start, dtype=images.dtype)))
    return torch.cat(parts)


def _samples(model: torch.nn.Module, per_class: int) -> tuple[fastntk.Samples, str]:
    file = SHARED / "data" / "cifar10-5k.npz"
    if file.exists():
        source = f"{file}@train"
        return fastntk.load_source(source, spec=input_spec(model), images_per_class=per_class), "CIFAR-10"
    generator = torch.Generator().manual_seed(0)
    count = 10 * per_class
    return fastntk.Samples(torch.randn(count, 3, 32, 32, generator=generator), torch.arange(count) % 10), "random images"


def table(result: dict[str, Any]) -> str:
    lines = [
        [a["what"], f"{a['seconds']:.2f}", f"{a['time_share']:.2f}", *(f"{a[key]:.2g}" for key in ERRORS)]
        for a in result["approximations"]
    ]
    head = ["approximation", "s", "share of the exact step", "error of A", "of w", "of Jw"]
    return (
        f"ResNet-20, norm+head (d = {result['parameters']}), {result['images']} images ({result['source']}), "
        f"damping 1e-2. The exact steps: rows {result['rows_seconds']:.2f} s (compare the probes), A and solve "
        f"{result['solve_seconds']:.2f} s (compare Nyström).\n\n{markdown(head, lines)}"
    )
