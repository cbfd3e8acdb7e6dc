"""Table 3: what a model's own head, and a linear probe on its frozen features, get right on D_r and D_f.

The paper's figure on D_f is 0 for Fast-NTK although a probe is trained on D_r ∪ D_f: that is what the unlearned model's own
head would give. Both are recorded, each under its own name. Pre-trained (tuned parameters at the anchor) and Random-init have
no head for these classes yet, so only a probe.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastntk.auditing.metrics import accuracy
from fastntk.auditing.predictions import observe
from fastntk.auditing.probes import linear_probe, random_model
from fastntk.auditing.record import to_dict
from fastntk.base.errors import InputError
from fastntk.experiments.bench import Bench
from fastntk.experiments.cells import UNTRAINED
from fastntk.experiments.setting import Request


def probe_figures(bench: Bench, request: Request, *, label: str, vector: Tensor | None, seed: int) -> dict[str, Any]:
    """JSON-able: accuracies by set, ``own_head`` (None where there is none) and ``linear_probe`` (None if not finite).

    ``vector`` (d,) is the model's tuned vector, None for the untrained ones.
    """
    model = bench.model
    if label == "random-init":
        model, _ = random_model(bench.model, seed=seed)
    else:
        bench.subset.set(bench.anchor if vector is None else vector)
    split = bench.split(request)
    outputs, features = observe(model, bench.samples.inputs, title=f"features of {label}")
    answers, inner = observe(model, bench.holdout.inputs, title=f"features of {label}: hold-out")
    if features is None or inner is None:
        raise InputError(f"{bench.setting.model} does not end in a linear head: there are no features to probe.")
    truth = bench.samples.labels
    labels = {"retain": truth[split.retain], "forget": truth[split.forget], "holdout": bench.holdout.labels}
    logits = {"retain": outputs[split.retain], "forget": outputs[split.forget], "holdout": answers}
    own = None if label in UNTRAINED else {name: accuracy(logits[name], labels[name]) for name in labels}
    inside = {"retain": features[split.retain], "forget": features[split.forget], "holdout": inner}
    probe = linear_probe(inside, labels)
    return {"own_head": own, "linear_probe": None if probe is None else to_dict(probe)}
