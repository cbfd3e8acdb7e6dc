"""The methods behind ``unlearn(run, method=…)``: a small file each, with the one signature ``method(task, *, …) -> Outcome``."""

from collections.abc import Callable

from fastntk.unlearning.baselines.fine_tune import fine_tune
from fastntk.unlearning.baselines.fisher import fisher
from fastntk.unlearning.baselines.neggrad_plus import neggrad_plus
from fastntk.unlearning.baselines.push_away import max_loss, random_label
from fastntk.unlearning.baselines.retrain import full, retrain
from fastntk.unlearning.baselines.salun import salun
from fastntk.unlearning.baselines.scrub import scrub
from fastntk.unlearning.baselines.ssd import ssd
from fastntk.unlearning.fast_ntk.method import fast_ntk
from fastntk.unlearning.tangent_replay.method import tangent_replay
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
