"""Recording a fine-tuning by ``fit``: hangs on the head's input and on the gradients, adds no pass and changes no weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.training.loop import epoch_batches, epoch_steps, learning_rate
from fastntk.training.network import eval_mode
from fastntk.training.optimizers import Group
from fastntk.training.recipe import Recipe
from fastntk.training.trace import TraceFacts
from fastntk.training.trace_writer import TraceWriter, describe
from fastntk.training.tuned_head import tuned_head
from fastntk.tuning import Subset, find_head


class FitRecorder:
    """Sees one ``fit`` by a recipe: ``with recorder: …`` around it, then :meth:`facts`."""

    def __init__(self, model: nn.Module, subset: Subset, samples: Samples, recipe: Recipe, *, folder: Any = None) -> None:
        from fastntk.models import logits

        self._tuned = tuned_head(model, subset)
        self._head = self._tuned.layer
        with torch.no_grad(), eval_mode(model):
            outputs, features = self._check(lambda: logits(model, samples.inputs[:2]))
        self._subset, self._recipe = subset, recipe
        self._body = self._tuned.body
        self._anchor = subset.get()
        self._classes, self._width = outputs.shape[1], features.shape[1]
        self._steps = recipe.epochs * epoch_steps(len(samples), recipe)
        self._numbers = _taken_steps(len(samples), recipe)
        size = trace_size(subset, samples, recipe, features=self._width)
        self.writer = TraceWriter(
            features=self._width,
            body=sum(subset.parameters[each].numel() for each in self._body),
            width=subset.numel,
            dtype=self._anchor.dtype,
            half=size["half"],
            gradients=size["gradients"],
            folder=folder,
            bias=0 if self._tuned.bias is None else self._classes,
        )
        self._batch = torch.empty(0, dtype=torch.long)
        self._taken = 0

    def __enter__(self) -> FitRecorder:
        self._hook = self._head.register_forward_pre_hook(self._seen)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._hook.remove()

    def _seen(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._features = args[0].detach()
        self._calls += 1

    def _check(self, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """The logits and the head's input of a forward pass with a head of other numbers: one of zeros would hide much."""
        self._calls, self._features = 0, torch.empty(0)
        with _filled(self._head), self:
            outputs, features = run(), self._features
            logits = nn.functional.linear(features, self._head.weight, self._head.bias) if features.dim() == 2 else features
        layer = self._tuned.weight.rpartition(".")[0]
        if self._calls != 1:
            raise InputError(
                f"A trace needs a head that is called once in a forward pass; {layer} is called {self._calls} times. "
                "Fit without trace."
            )
        if features.dim() != 2:
            raise InputError(
                f"A trace needs a head on flat features (n, H); {layer} is given {tuple(features.shape)}. Fit without trace."
            )
        same = logits.shape == outputs.shape and torch.allclose(logits, outputs, rtol=1e-3, atol=1e-3 * float(logits.abs().max()))
        if not same or not self._passes_through(logits, run):
            raise InputError(
                "A trace needs a model whose logits are its head's output, W·h + b; here something follows the head, or it is "
                "no plain linear layer. Fit without trace."
            )
        return outputs, features

    def _passes_through(self, outputs: Tensor, again: Callable[[], Tensor]) -> bool:
        """Whether other numbers in place of the head's output arrive unchanged: those of a head of zeros would hide a factor."""
        numbers = torch.linspace(-1, 2, outputs.numel()).to(outputs).reshape(outputs.shape)
        hook = self._head.register_forward_hook(lambda module, args, output: numbers)
        try:
            return torch.equal(again(), numbers)
        finally:
            hook.remove()

    def begin_batch(self, batch: Tensor) -> None:
        """The loop is about to look at these samples."""
        self._batch = batch

    def watch(self, epoch: int, optimizer: torch.optim.Optimizer) -> None:
        """An epoch begins."""
        self.writer.epoch(self._subset.get())

    def gradient(self, loss: Tensor) -> list[Tensor]:
        """The gradients of the batch, recorded on their way to the optimiser."""
        parameters = self._subset.parameters
        gradients = list(torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True))
        body = None
        if self.writer.keeps_gradients:
            parts = [grad.reshape(-1) for name, grad in zip(parameters, gradients) if name in self._body]
            body = torch.cat(parts) if parts else self._anchor[:0]
        rate = learning_rate(self._recipe, self._numbers[self._taken], self._steps)
        bias = None if self._tuned.bias is None else gradients[list(parameters).index(self._tuned.bias)]
        self.writer.step(self._batch, self._features, body, rate=rate, bias=bias)
        self._taken += 1
        return gradients

    def facts(self) -> TraceFacts:
        """What is known once the loop is over."""
        recipe = self._recipe
        adam = recipe.optimizer == "adam"
        self.writer.epoch(self._subset.get())
        return TraceFacts(
            classes=self._classes,
            features=self._width,
            head_weight=self._tuned.weight,
            head_bias=self._tuned.bias,
            body=self._body if self.writer.keeps_gradients else (),
            left=() if self.writer.keeps_gradients else self._body,
            optimizer="Adam" if adam else "SGD",
            groups=(Group(self._subset.names, {} if adam else {"momentum": recipe.momentum}),),
            penalty=recipe.weight_decay,
            loss=recipe.loss,
            anchor=tensor_digest(self._anchor),
            trained=tensor_digest(self._subset.get()),
            recipe=recipe.digest,
        )


def _taken_steps(count: int, recipe: Recipe) -> Sequence[int]:
    """Numbers of the steps that are taken: not of those whose samples were all forgotten before."""
    steps = recipe.epochs * epoch_steps(count, recipe)
    if recipe.drawn_from is None:
        return range(steps)
    sizes = [len(batch) for epoch in range(recipe.epochs) for batch in epoch_batches(count, recipe, epoch)]
    return [step for step, size in enumerate(sizes) if size]


@contextmanager
def _filled(layer: nn.Linear) -> Iterator[None]:
    """Other numbers in the layer for a moment."""
    original = layer.weight.detach().clone()
    try:
        layer.weight.copy_(torch.linspace(-1, 2, original.numel()).to(original).reshape(original.shape))
        yield
    finally:
        layer.weight.copy_(original)


def trace_size(subset: Subset, samples: Samples, recipe: Recipe, *, features: int | None = None) -> dict[str, Any]:
    """What a trace of this fine-tuning would take: see :func:`fastntk.training.trace_writer.describe`."""
    name, head = find_head(subset.model)
    prefix = f"{name}." if name else ""
    head_numbers = sum(subset.parameters[each].numel() for each in (f"{prefix}weight", f"{prefix}bias") if each in subset.names)
    return describe(
        visits=recipe.epochs * len(samples),
        features=head.weight.shape[1] if features is None else features,
        steps=recipe.epochs * epoch_steps(len(samples), recipe),
        body=subset.numel - head_numbers,
        epochs=recipe.epochs,
        width=subset.numel,
        itemsize=subset.get().element_size(),
        bias=subset.parameters[f"{prefix}bias"].numel() if f"{prefix}bias" in subset.names else 0,
    )
