"""The methods behind ``unlearn(run, method=…)``: a small file each, with the one signature ``method(task, *, …) -> Outcome``."""

from collections.abc import Callable

from fastntk.unlearning.methods.fast_ntk import fast_ntk
from fastntk.unlearning.methods.fine_tune import fine_tune
from fastntk.unlearning.methods.fisher import fisher
from fastntk.unlearning.methods.neggrad_plus import neggrad_plus
from fastntk.unlearning.methods.push_away import max_loss, random_label
from fastntk.unlearning.methods.retrain import full, retrain
from fastntk.unlearning.methods.salun import salun
from fastntk.unlearning.methods.scrub import scrub
from fastntk.unlearning.methods.ssd import ssd
from fastntk.unlearning.methods.tangent_replay import tangent_replay
from fastntk.unlearning.task import Outcome

METHODS: dict[str, Callable[..., Outcome]] = {
    "fast-ntk": fast_ntk,
    "tangent-replay": tangent_replay,
    "retrain": retrain,
    "full": full,
    "max-loss": max_loss,
    "random-label": random_label,
    "fine-tune": fine_tune,
    "neggrad+": neggrad_plus,
    "scrub": scrub,
    "ssd": ssd,
    "salun": salun,
    "fisher": fisher,
}

__all__ = ["METHODS"]
