"""How much each tuned parameter matters for some samples: mean squares of gradients, exact ones of single samples or of batches.

    of the loss      I_j = 1/n Σ_i (∂ℓ(x_i, y_i)/∂w_j)²                        with the given labels
    by batches       I_j = 1/k Σ_b (∂L_b/∂w_j)²                                L_b: mean loss of batch b of k
    Fisher           F_j = 1/n Σ_i Σ_y p(y|x_i) (∂ log p(y|x_i)/∂w_j)²         labels from the model itself

The first and the last are Σ_k (J_iᵀ s_ik)² for vectors s_ik on the logits: s = softmax − onehot; and, for each y,
√p_y·(softmax − onehot_y). So one backward pass per sample and vector gives them (:meth:`fastntk.tangent.RowEngine.probed_rows`).
The square of a batch's mean gradient is something else: gradients that differ in sign cancel before they are squared. For the
squared loss the likelihood is Gaussian: s = f − t, and the unit vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fastntk.base.device import with_float64
from fastntk.base.progress import track
from fastntk.models import device_of
from fastntk.training.network import fast_layout
from fastntk.training.recipe import Loss
from fastntk.unlearning.baselines.common.descent import Descent, loss_recipe
from fastntk.unlearning.method import Task

CHUNK, CHUNK_NUMBERS = 32, 2**25
"""Samples at a time, and the most numbers of gradients held at a time (128 MB in float32)."""


def loss_importance(task: Task, positions: Tensor, *, description: str) -> Tensor:
    """Mean squared per-sample gradient of the run's loss on these samples, (d,) in float64, on the CPU."""
    return _mean_squares(task, positions, loss_vectors, description)


def batch_importance(task: Task, positions: Tensor, *, batch_size: int) -> Tensor:
    """Mean over batches of the squared gradient of a batch's mean loss, (d,) in float64, on the CPU; in the given order."""
    total = torch.zeros(task.run.subset.numel, dtype=torch.float64)
    parts = positions.split(batch_size)
    for gradient in batch_gradients(task, parts):
        total += gradient.cpu().double().square()
    return total / len(parts)


def batch_gradients(task: Task, parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Gradient of the mean loss of each batch at θ, (d,)."""
    descent = Descent(task, lr=1.0, schedule="constant", steps=1, seed=0)
    parameters = list(descent.subset.parameters.values())
    for batch in parts:
        gradients = torch.autograd.grad(descent.loss(batch), parameters, materialize_grads=True)
        yield torch.cat([grad.reshape(-1) for grad in gradients])


def fisher_diagonal(task: Task, positions: Tensor, *, description: str) -> Tensor:
    """Diagonal of the Fisher matrix of the model's own predictions on these samples, (d,) in float64, on the CPU."""
    return _mean_squares(task, positions, fisher_vectors, description)


def loss_vectors(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """∂ℓ/∂f of each sample, (n, C, 1)."""
    one_hot = F.one_hot(labels, outputs.shape[1]).to(outputs)
    if loss == "squared":
        return (outputs - one_hot + 1.0 / outputs.shape[1])[:, :, None]
    return (outputs.softmax(1) - one_hot)[:, :, None]


def fisher_vectors(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """√p_y · ∂(−log p_y)/∂f for each label y, (n, C, C); ``labels`` play no part."""
    unit = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
    if loss == "squared":
        return unit.expand(len(outputs), -1, -1)
    probabilities = outputs.softmax(1)
    return (probabilities[:, :, None] - unit) * probabilities.sqrt()[:, None, :]


def _mean_squares(task: Task, positions: Tensor, vectors: Callable[[Tensor, Tensor, Loss], Tensor], description: str) -> Tensor:
    data, loss = task.run.data, loss_recipe(task).loss
    engine = task.engine
    inputs, labels = fast_layout(engine.model, data.inputs[positions]), data.labels[positions]
    probes = vectors(engine.outputs(inputs)[0], labels, loss)
    size = max(1, min(CHUNK, CHUNK_NUMBERS // (probes.shape[2] * task.run.subset.numel)))
    device = with_float64(device_of(engine.model))
    total = torch.zeros(task.run.subset.numel, dtype=torch.float64, device=device)
    for start in track(range(0, len(inputs), size), description):
        part = slice(start, start + size)
        total += engine.probed_rows(inputs[part], probes[part]).to(device).double().square().sum((0, 1))
    return total.cpu() / len(inputs)
