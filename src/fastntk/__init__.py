"""fastntk: make a fine-tuned image classifier forget a class, a person or a list of images.

model  = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
subset = fastntk.tune(model, "norm+head")
run    = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=20))
result = fastntk.unlearn(run, classes=[0], method="tangent-replay")
"""

from fastntk.data import ForgetRequest, Samples, Split, load_source
from fastntk.errors import BudgetError, InputError
from fastntk.models import build_model
from fastntk.recipe import Recipe
from fastntk.run import Run
from fastntk.tangent import jacobian
from fastntk.training import fit, predict
from fastntk.tuning import Subset, tune
from fastntk.unlearn import Linearisation, Unlearned, linearise_run, unlearn

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "ForgetRequest",
    "InputError",
    "Linearisation",
    "Recipe",
    "Run",
    "Samples",
    "Split",
    "Subset",
    "Unlearned",
    "build_model",
    "fit",
    "jacobian",
    "linearise_run",
    "load_source",
    "predict",
    "tune",
    "unlearn",
]
