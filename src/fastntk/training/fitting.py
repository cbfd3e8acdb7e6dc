"""Fine-tune the tuned subset of a network by a recipe.

The network stays in eval mode (dropout off, BatchNorm statistics frozen) unless the recipe says ``bn_stats="update"``.
Retraining is the same call with ``keep``; nothing here knows about unlearning.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from torch import Tensor, nn

from fastntk.base.atomic import new_folder
from fastntk.base.errors import InputError
from fastntk.base.gradients import with_gradients
from fastntk.data import Samples
from fastntk.models import device_of, logits
from fastntk.training.loop import WalkedBatches, batch_loss, descend
from fastntk.training.network import check_samples, fast_layout, thawed, training_mode
from fastntk.training.recipe import Recipe
from fastntk.training.recording import FitRecorder
from fastntk.training.run import Run
from fastntk.training.speed import measure_speed
from fastntk.training.trace import Trace
from fastntk.training.trace_folder import read_trace, seal_trace
from fastntk.training.tuned_head import check_head
from fastntk.tuning import Subset
from fastntk.tuning.outside import noted


def fit(model: nn.Module, subset: Subset, samples: Samples, recipe: Recipe, *, trace: bool | str | Path | None = None) -> Run:
    """Fine-tune the subset on the samples, in place, and return the run. Deterministic for a seed.

    ``trace``: record the path, in memory (True) or in a new folder; ``unlearn`` can then meet requests in seconds. The weights
    are the same bytes with and without.
    """
    _check_arguments(model, subset, samples, recipe)
    if trace is not None and not isinstance(trace, bool | str | Path):
        raise InputError(f"trace must be True (in memory), a new folder, or None; got {trace!r}.")
    check_samples(model, samples)
    if recipe.epochs:
        check_head(subset, samples)
    anchor, before = subset.get(), noted(subset)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    recorded: Trace | None = None
    recorder, folder = None, None
    with contextlib.ExitStack() as stack:
        if trace is not None and trace is not False:
            if trace is not True:
                folder = stack.enter_context(new_folder(Path(trace)))
                folder.chmod(0o700)
            recorder = stack.enter_context(FitRecorder(model, subset, samples, recipe, folder=folder))
            stack.callback(recorder.writer.close)
        try:
            history = train(model, subset, samples, recipe, recorder=recorder)
            if recorder is not None:
                recorded, digests = recorder.writer.finish(recorder.facts(), samples)
                if folder is not None:
                    seal_trace(recorded, folder, digests)
        except BaseException:
            subset.set(anchor)
            for name, buffer in model.named_buffers():  # BatchNorm statistics, where the recipe updates them
                buffer.copy_(buffers[name])
            raise
    if folder is not None:  # it has its name now
        recorded = read_trace(Path(str(trace)), verify=False)
    return Run(model, subset, anchor, samples, recipe=recipe, history=tuple(history), trace=recorded, pretrained=before)


def _check_arguments(model: nn.Module, subset: Subset, samples: Samples, recipe: Recipe) -> None:
    """Refuse, before anything is trained, what is of another kind or belongs to another model."""
    inputs = {"model": (model, nn.Module), "subset": (subset, Subset), "samples": (samples, Samples), "recipe": (recipe, Recipe)}
    for name, (value, kind) in inputs.items():
        if not isinstance(value, kind):
            raise InputError(
                f"fit takes (model, subset, samples, recipe): {name} must be a {kind.__name__}, got {type(value).__name__}."
            )
    if subset.model is not model:
        raise InputError("The subset belongs to another model: use subset.on(model) or tune(model, spec).")


@with_gradients
def train(
    model: nn.Module,
    subset: Subset,
    samples: Samples,
    recipe: Recipe,
    *,
    keep: Tensor | None = None,
    description: str = "fine-tuning",
    recorder: FitRecorder | None = None,
    walked: WalkedBatches | None = None,
) -> list[dict[str, float]]:
    """Follow the recipe from the model's present values, on the kept samples; return the history.

    ``walked``: batches and rates in place of those the recipe draws.
    """
    check_samples(model, samples)
    inputs, labels = fast_layout(model, samples.inputs), samples.labels.to(device_of(model))

    def loss(batch: Tensor) -> tuple[Tensor, int]:
        if recorder is not None:
            recorder.begin_batch(batch)
        outputs = logits(model, inputs[batch])
        return batch_loss(outputs, labels[batch], recipe), int((outputs.argmax(1) == labels[batch]).sum())

    with training_mode(model, recipe), thawed(subset) as parameters:
        try:
            return descend(
                parameters,
                loss,
                recipe,
                count=len(samples),
                keep=keep,
                description=description,
                watch=None if recorder is None else recorder.watch,
                gradient=None if recorder is None else recorder.gradient,
                walked=walked,
            )
        finally:
            for parameter in parameters:
                parameter.grad = None


def estimated_seconds(subset: Subset, samples: Samples, recipe: Recipe) -> float:
    """About how long :func:`fit` will take, from one short batch."""
    check_samples(subset.model, samples)
    return measure_speed(subset, samples, recipe).step * len(samples) * recipe.epochs
