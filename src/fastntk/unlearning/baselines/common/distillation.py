"""Teachers, and how far a student is from one.

    T²·KL(softmax(t/T) ‖ softmax(s/T)),   the mean over a batch;   t, s: the teacher's and the student's logits

T softens both distributions, so that wrong classes count for more; T² keeps the size of the gradient (Hinton et al. 2015). T = 1
is the plain divergence. A teacher does not change, so it is asked once for all samples, not once a batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastntk.training.network import predict


def taught(teacher: nn.Module, inputs: Tensor, *, temperature: float, device: torch.device) -> Tensor:
    """The teacher's log-probabilities at this temperature, (n, C)."""
    return torch.log_softmax(predict(teacher, inputs) / temperature, 1).to(device)


def divergence(teacher: Tensor, outputs: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Mean of T²·KL(teacher ‖ student), from the teacher's log-probabilities at T and the student's logits, (b, C) each."""
    student = (outputs / temperature).log_softmax(1)
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2
