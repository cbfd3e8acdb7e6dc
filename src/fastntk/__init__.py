"""fastntk: make a fine-tuned image classifier forget a class, a person or a list of images.

model  = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
subset = fastntk.tune(model, "norm+head")
run    = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=20), trace=True)
result = fastntk.unlearn(run, classes=[0])
record = fastntk.audit(run, result, holdout=holdout, reference="retrain")

Names are imported on first use, so that ``import fastntk`` and ``fastntk --help`` do not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastntk.base.lazy import lazy_names
from fastntk.base.version import __version__ as __version__

if TYPE_CHECKING:
    from fastntk.auditing import audit
    from fastntk.base.errors import BudgetError, InputError
    from fastntk.data import ForgetRequest, Samples, Split, ids_in_file, ids_of_persons, load_source, matching_ids
    from fastntk.data.request import parse_classes
    from fastntk.models import InputSpec, build_model, input_spec
    from fastntk.planning import Plan
    from fastntk.report import write_report
    from fastntk.storage.keys import verify_ids
    from fastntk.storage.results import load_result, save_result
    from fastntk.storage.runs import load_run, save_run
    from fastntk.tangent import jacobian
    from fastntk.tangent.linearisation import Linearisation, linearise_run
    from fastntk.training.fitting import fit
    from fastntk.training.network import predict
    from fastntk.training.recipe import Recipe
    from fastntk.training.recorder import Recorder, record
    from fastntk.training.run import Run
    from fastntk.tuning import Subset, load_tuned, save_tuned, tune
    from fastntk.unlearning import Rehearsal, TunedBaseline, Unlearned, plan, rehearse, tune_baseline, unlearn
    from fastntk.unlearning.removals import Removals, removals

__all__ = [
    "BudgetError",
    "ForgetRequest",
    "InputError",
    "InputSpec",
    "Linearisation",
    "Plan",
    "Recipe",
    "Recorder",
    "Rehearsal",
    "Removals",
    "Run",
    "Samples",
    "Split",
    "Subset",
    "TunedBaseline",
    "Unlearned",
    "audit",
    "build_model",
    "fit",
    "ids_in_file",
    "ids_of_persons",
    "input_spec",
    "jacobian",
    "linearise_run",
    "load_result",
    "load_run",
    "load_source",
    "load_tuned",
    "matching_ids",
    "parse_classes",
    "plan",
    "predict",
    "record",
    "rehearse",
    "removals",
    "save_result",
    "save_run",
    "save_tuned",
    "tune",
    "tune_baseline",
    "unlearn",
    "verify_ids",
    "write_report",
]

_HOMES = {
    "BudgetError": "base.errors",
    "ForgetRequest": "data",
    "InputError": "base.errors",
    "InputSpec": "models",
    "Linearisation": "tangent.linearisation",
    "Plan": "planning",
    "Recipe": "training.recipe",
    "Recorder": "training.recorder",
    "Rehearsal": "unlearning",
    "Removals": "unlearning.removals",
    "Run": "training.run",
    "Samples": "data",
    "Split": "data",
    "Subset": "tuning",
    "TunedBaseline": "unlearning",
    "Unlearned": "unlearning",
    "audit": "auditing",
    "build_model": "models",
    "fit": "training",
    "ids_in_file": "data",
    "ids_of_persons": "data",
    "input_spec": "models",
    "jacobian": "tangent",
    "linearise_run": "tangent.linearisation",
    "load_result": "storage.results",
    "load_run": "storage.runs",
    "load_source": "data",
    "load_tuned": "tuning",
    "matching_ids": "data",
    "parse_classes": "data.request",
    "plan": "unlearning",
    "predict": "training",
    "record": "training.recorder",
    "rehearse": "unlearning",
    "removals": "unlearning.removals",
    "save_result": "storage.results",
    "save_run": "storage.runs",
    "save_tuned": "tuning",
    "tune": "tuning",
    "tune_baseline": "unlearning",
    "unlearn": "unlearning",
    "verify_ids": "storage.keys",
    "write_report": "report",
}


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
