"""Which parameters are tuned: norm layers, head, prompts, adapters, globs, and their union as one vector."""

from fastntk.tuning.head import find_head
from fastntk.tuning.prompts import attach_prompts
from fastntk.tuning.spec import tune
from fastntk.tuning.subset import Subset
from fastntk.tuning.tuned_file import load_tuned, save_tuned

__all__ = ["Subset", "attach_prompts", "find_head", "load_tuned", "save_tuned", "tune"]
