"""Evidence on an unlearned model: how it answers, how it compares with Retrain, how fast it learns the data again."""

from fastntk.auditing.metrics import accuracy, margins, mean_loss, recovered, total_variation
from fastntk.auditing.relearn import Relearned, relearn

__all__ = ["Relearned", "accuracy", "margins", "mean_loss", "recovered", "relearn", "total_variation"]
