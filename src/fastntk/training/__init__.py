"""Fine-tuning: recipes, the one training loop, runs, and what a network needs around a forward pass."""

from fastntk.training.fitting import fit, train
from fastntk.training.network import check_samples, eval_mode, fast_layout, predict, training_mode
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run

__all__ = ["Recipe", "Run", "check_samples", "eval_mode", "fast_layout", "fit", "predict", "train", "training_mode"]
