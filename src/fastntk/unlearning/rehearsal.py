"""A rehearsal of a request: the run made again without a validation part, so that unlearning can be judged without Retrain.

Every sample the run was trained on is known to it. Samples it does not know are made by fine-tuning again, from the anchor and by
the run's recipe, on the training data less a validation part of the retained samples: one training that serves every method and
every trial. No hold-out set and no retrained model is looked at. The judgement of an unlearned model w is one number,

    score = (1 − V) + G                                        0 is best; both terms lie in [0, 1]

V: accuracy on the validation samples. G: how differently the forgotten samples are treated from samples never seen.

    samples of a class that goes as a whole       G = accuracy on them             who never saw a class never predicts it
    other samples                                 G = ½|A_f − A_v| + ½|L_f − L_v|/(L_f + L_v)

A and L are accuracy and mean loss; those on validation samples (v) are averaged class by class with the forgotten samples' own
class counts. A request of both kinds takes the mean over its samples. Both terms count alike since either alone is won by a
useless model: one that is as good as before and remembers, or one that knows nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastntk.base.errors import InputError, listing
from fastntk.data import ForgetRequest, Samples
from fastntk.training.fitting import fit
from fastntk.training.network import predict, working_copy
from fastntk.training.run import Run
from fastntk.unlearning.reuse import share_between_trials


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The run made again on fewer samples, what it has to forget, and validation samples of the kept classes it never saw.

    ``forget``: ids; ``whole_classes``: labels that go altogether; ``share`` and ``seed`` of the validation draw.
    """

    origin: Run
    run: Run
    forget: tuple[str, ...]
    whole_classes: tuple[int, ...]
    validation: Samples
    share: float
    seed: int
    seconds: float

    def check(self, run: Run, forget: tuple[str, ...]) -> None:
        """Refuse another run or request than the one rehearsed."""
        if run is not self.origin or set(forget) != set(self.forget):
            raise InputError("This rehearsal is of another run or another request: make one with rehearse(run, ...).")

    @property
    def forgotten(self) -> Samples:
        """The samples to forget."""
        return self.run.data.subset(self.run.data.index_of(self.forget))

    def judge(self, model: nn.Module) -> dict[str, float]:
        """The score of a model, and what it is made of: V and G as above, and accuracy and loss on the forgotten samples."""
        forgotten, unseen = self.forgotten, self.validation
        correct, loss = _predictions(model, forgotten)
        correct_unseen, loss_unseen = _predictions(model, unseen)
        whole = torch.isin(forgotten.labels, torch.tensor(self.whole_classes, dtype=torch.int64))
        gap = correct[whole].sum()
        if not bool(whole.all()):
            counts = torch.bincount(forgotten.labels[~whole], minlength=forgotten.num_classes)
            accuracy, mean = correct[~whole].mean(), loss[~whole].mean()
            other = _class_means(correct_unseen, unseen.labels, counts)
            other_mean = _class_means(loss_unseen, unseen.labels, counts)
            apart = 0.5 * (accuracy - other).abs() + 0.5 * (mean - other_mean).abs() / (mean + other_mean).clamp(min=1e-300)
            gap = gap + (~whole).sum() * apart
        gap = gap / len(forgotten)
        return {
            "score": float(1 - correct_unseen.mean() + gap),
            "validation_accuracy": float(correct_unseen.mean()),
            "forget_gap": float(gap),
            "forget_accuracy": float(correct.mean()),
            "forget_loss": float(loss.mean()),
            "validation_loss": float(loss_unseen.mean()),
        }


def rehearse(
    run: Run,
    *,
    classes: Sequence[int | str] | None = None,
    ids: Sequence[int | str] | None = None,
    validation: float = 0.2,
    seed: int = 0,
) -> Rehearsal:
    """Fine-tune a copy of the run again from its anchor, without a ``validation`` share of the retained samples; recorded where
    the run was.

    The share is drawn from each class (rounded, at least one, and at least one stays), never from the samples to forget.
    """
    if isinstance(validation, bool) or not isinstance(validation, int | float) or not 0 < validation < 1:
        raise InputError(f"validation is the share of the retained samples to set aside, in (0, 1); got {validation!r}.")
    if run.recipe is None:
        raise InputError(
            "A rehearsal repeats the fine-tuning, and this run has no recipe: give it, Run(..., recipe=Recipe(...))."
        )
    data = run.data
    request = ForgetRequest(classes=None if classes is None else tuple(classes), ids=None if ids is None else tuple(ids))
    split = request.resolve(data)
    aside = stratified(data.labels, split.retain, validation, torch.Generator().manual_seed(seed))
    unseen = data.subset(aside)
    some = set(data.labels[split.forget].tolist()) - set(split.whole_classes)
    missing = sorted(some - set(unseen.labels.tolist()))
    if missing or not len(unseen):
        raise InputError(
            f"No validation samples for the classes {listing(missing) or 'that stay'}: each needs two retained samples or more."
        )
    trained = torch.ones(len(data), dtype=torch.bool)
    trained[aside] = False
    started = time.perf_counter()
    model = working_copy(run)
    subset = run.subset.on(model)
    subset.set(run.anchor)
    again = fit(model, subset, data.subset(trained.nonzero().flatten()), run.recipe, trace=run.trace is not None)
    share_between_trials(again)
    return Rehearsal(
        origin=run,
        run=again,
        forget=tuple(data.ids[i] for i in split.forget.tolist()),
        whole_classes=split.whole_classes,
        validation=unseen,
        share=float(validation),
        seed=seed,
        seconds=time.perf_counter() - started,
    )


def stratified(labels: Tensor, positions: Tensor, share: float, draws: torch.Generator) -> Tensor:
    """Positions drawn from each class among ``positions``, ascending; a class of one gives none."""
    drawn = []
    for label in labels[positions].unique().tolist():
        members = positions[labels[positions] == label]
        count = min(max(1, round(share * len(members))), len(members) - 1)
        drawn.append(members[torch.randperm(len(members), generator=draws)[:count]])
    return torch.cat(drawn).sort().values


def _predictions(model: nn.Module, samples: Samples) -> tuple[Tensor, Tensor]:
    """Per sample in float64: 1 where correct, and the cross-entropy; (n,) each."""
    outputs, labels = predict(model, samples.inputs).double().cpu(), samples.labels.cpu()
    return (outputs.argmax(1) == labels).double(), F.cross_entropy(outputs, labels, reduction="none")


def _class_means(values: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Σ_c counts_c · mean of the values of class c / Σ counts, over the classes that count."""
    means = [values[labels == c].mean() * counts[c] for c in counts.nonzero().flatten().tolist()]
    return torch.stack(means).sum() / counts.sum()
