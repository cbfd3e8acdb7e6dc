"""What may still remember: BatchNorm statistics gathered on the data, and weights outside the tuned subset.

Statistics that were frozen stay untouched. Statistics that fine-tuning updated are estimated anew from the retained
samples. Weights outside the subset are compared with the pre-trained ones by their digests; where they differ, or
nothing is known of them, the result says that influence remains there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastntk.base.digest import tensor_digest
from fastntk.data import Samples, Split
from fastntk.models import card_of, logits
from fastntk.training.run import Run
from fastntk.tuning.adapters import adapters_of, backbone_names, inside

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def outside_report(run: Run) -> dict[str, Any]:
    """JSON-able: are the weights outside the subset the pre-trained ones?"""
    card = card_of(run.model)
    if card is None or not card.fingerprint:
        return {
            "status": "unknown",
            "message": "Nothing is known of the pre-trained weights, so influence of the forgotten samples may remain "
            "in the weights outside the tuned subset.",
        }
    tuned, adapters = set(run.subset.names), adapters_of(run.model)
    before = backbone_names(run.model)
    changed = [
        name
        for name, tensor in run.model.state_dict().items()
        if name not in tuned
        and name.rpartition(".")[2] not in STATISTICS
        and (
            inside(name, (*adapters.trained, *adapters.copies))
            or (name in before and before[name] in card.fingerprint and tensor_digest(tensor) != card.fingerprint[before[name]])
        )
    ]
    if changed:
        return {
            "status": "differ",
            "count": len(changed),
            "names": changed[:20],
            "message": f"{len(changed)} tensors outside the tuned subset differ from the pre-trained ones: influence "
            "of the forgotten samples remains there.",
        }
    return {"status": "pre-trained", "message": "All weights outside the tuned subset are the pre-trained ones."}


def statistics_updated(run: Run) -> bool | None:
    """Whether fine-tuning changed BatchNorm statistics; None where that cannot be told."""
    if not any(isinstance(module, _BatchNorm) for module in run.model.modules()):
        return False
    if run.recipe is not None:
        return run.recipe.bn_stats == "update"
    if run.trace is not None and run.trace.facts.mode == "recorded":
        return any(name.endswith(("running_mean", "running_var")) for name in run.trace.facts.buffers)
    card = card_of(run.model)
    if card is None or not card.fingerprint:
        return None
    state = run.model.state_dict()
    return any(
        tensor_digest(state[name]) != card.fingerprint[before]
        for name, before in backbone_names(run.model).items()
        if name.endswith(("running_mean", "running_var")) and before in card.fingerprint
    )


def renew_statistics(run: Run, model: nn.Module, split: Split) -> dict[str, Any]:
    """Estimate BatchNorm statistics of ``model`` anew, from the retained samples, where they were updated; say so."""
    updated = statistics_updated(run)
    if not updated:
        known = "untouched" if updated is False else "unknown: left as they are; they may remember the forgotten samples"
        return {"batch_norm_statistics": known}
    if run.samples is None:
        kept = "left as they are, for estimating them anew needs the images; they may remember the forgotten samples"
        return {"batch_norm_statistics": kept}
    retained = run.data.subset(split.retain)
    estimate_statistics(model, retained)
    return {"batch_norm_statistics": "estimated anew from the retained samples", "samples": len(retained)}


@torch.no_grad()
def estimate_statistics(model: nn.Module, samples: Samples, *, batch_size: int = 128) -> None:
    """Plain averages over fixed batches of the samples, in place; everything else stays in eval mode."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [module.momentum for module in norms]
    modes = [module.training for module in norms]
    for module in norms:
        module.reset_running_stats()
        module.momentum = None
        module.train()
    # A last batch of one sample has no variance: it joins the one before.
    sizes = [len(part) for part in torch.arange(len(samples)).split(batch_size)]
    if len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [sizes[-2] + 1]
    for part in samples.inputs.split(sizes):
        logits(model, part)
    for module, momentum, mode in zip(norms, momenta, modes):
        module.momentum = momentum
        module.train(mode)
