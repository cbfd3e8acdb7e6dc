"""What may still remember: BatchNorm statistics gathered on the data, and weights outside the tuned subset.

Statistics that were frozen stay untouched. Statistics that fine-tuning updated are estimated anew from the retained
samples. Weights outside the subset are compared with the pre-trained ones by their digests; where they differ, or
nothing is known of them, the result says that influence remains there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError
from fastntk.data import Samples, Split
from fastntk.models import card_of, logits
from fastntk.training.run import Run
from fastntk.tuning.adapters import adapters_of, backbone_names, inside
from fastntk.tuning.outside import digests, outside


def outside_report(run: Run) -> dict[str, Any]:
    """JSON-able: are the weights outside the subset those from before any training on the data?

    ``status``: ``none`` (all weights are tuned), ``pre-trained``, ``differ`` or ``unknown``; then ``count`` and some ``names``.
    """
    weights, adapters = outside(run.subset), adapters_of(run.model)
    if not weights:
        return {"status": "none", "message": "All weights are in the tuned subset: none is outside."}
    before, origin = _before(run)
    trained = {name for name in weights if inside(name, (*adapters.trained, *adapters.copies))}
    changes = [
        name for name, value in weights.items() if name in trained or (name in before and tensor_digest(value) != before[name])
    ]
    unknown = [name for name in weights if name not in before and name not in trained]
    if changes:
        return _found(
            "differ",
            changes,
            f"{len(changes)} tensors outside the tuned subset were trained ({origin}): what they learnt of the forgotten samples "
            "remains there.",
        )
    if unknown:
        return _found(
            "unknown",
            unknown,
            f"Of {len(unknown)} tensors outside the tuned subset it is not known whether they were trained on this data: what "
            "they learnt of the forgotten samples would remain there.",
        )
    return {"status": "pre-trained", "message": f"All weights outside the tuned subset are the pre-trained ones ({origin})."}


def _before(run: Run) -> tuple[dict[str, str], str]:
    """Digests from before any training, by present names, and how they are known."""
    if run.pretrained is not None:
        return digests(run.pretrained), "compared with those from before the training began"
    card = card_of(run.model)
    if card is None:
        return {}, ""
    names = backbone_names(run.model).items()
    fingerprint = {name: card.fingerprint[before] for name, before in names if before in card.fingerprint}
    return fingerprint, f"compared with those that {card.name} was built with"


def _found(status: str, names: list[str], message: str) -> dict[str, Any]:
    return {"status": status, "count": len(names), "names": names[:20], "message": message}


def cannot_be_told(report: Mapping[str, Any]) -> bool:
    """Whether weights that unlearning does not reach may remember the samples, by :func:`outside_report`."""
    return report.get("status") in ("differ", "unknown")


def check_reason(reason: str | None) -> None:
    """Refuse an ``accept_outside`` that says nothing."""
    if reason is not None and not (isinstance(reason, str) and reason.strip()):
        raise InputError(
            f"accept_outside takes the reason in words, which the record repeats (such as 'the backbone was trained elsewhere "
            f"and on other data'); got {reason!r}."
        )


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
    were_updated = statistics_updated(run)
    if were_updated and len(split.forget) == 0:
        return {"batch_norm_statistics": "as they were: nothing is forgotten"}
    if not were_updated:
        reason = "untouched" if were_updated is False else "unknown: left as they are; they may remember the forgotten samples"
        return {"batch_norm_statistics": reason}
    if run.samples is None:
        remark = "left as they are, for estimating them anew needs the images; they may remember the forgotten samples"
        return {"batch_norm_statistics": remark}
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
