"""A rehearsal of a request: the run made again without a validation part, with the run's seed or several, and retrained as well.

Tuning must not see the Retrain that a method is reported against, nor the hold-out set. So both are made once more, on fewer
samples: for every rehearsal seed the run is fine-tuned again, from the anchor and by the run's recipe, on the training data less
a validation part of the retained samples, and retrained once more without the samples to forget. Trials unlearn the first and are
compared with the second. An unlearned model w is judged by one number, where R is the rehearsal Retrain of the same seed,

    score = ½·TV(D_f) + ½·TV(V)            TV(S) = mean over x ∈ S of ½ Σ_c |p_w(c|x) − p_R(c|x)|

0 is R itself, 1 the most there is. D_f: the samples to forget. V: the validation samples, which no rehearsal model saw; all are
retained ones, so of a class that goes as a whole V has none, and TV(D_f) alone speaks for it. Both count alike: a model that is
as good as before and remembers is far on D_f, one that knows nothing on both.

Scores are not divided by the spread between Retrains of different seeds: one seed has none, and the trials of a request are
compared with one another only. Where there are several seeds, :attr:`Rehearsal.spread` is the score of one Retrain against
another, to read scores by. All seeds have the same validation part, so it is the seed alone that differs.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from fastntk.base.errors import DivergedError, InputError, listing
from fastntk.data import ForgetRequest, Samples
from fastntk.tangent.linearisation import Linearisation
from fastntk.training.fitting import fit
from fastntk.training.network import predict, working_copy
from fastntk.training.recipe import Recipe
from fastntk.training.run import Run
from fastntk.unlearning.api import unlearn
from fastntk.unlearning.reuse import share_between_trials
from fastntk.unlearning.update import total_variation


@dataclass(eq=False)
class SeedRehearsal:
    """The rehearsal of one seed: the run made again, its Retrain, and the samples that models are compared on.

    ``linearisation``: rows that a trial left for the next ones.
    """

    seed: int
    run: Run
    retrained: nn.Module
    forgotten: Samples
    validation: Samples
    seconds: float
    linearisation: Linearisation | None = field(default=None, repr=False)

    @cached_property
    def reference(self) -> tuple[Tensor, Tensor]:
        """Probabilities of the Retrain on the forgotten and on the validation samples, (n, C) each."""
        return self._probabilities(self.retrained)

    def judge(self, model: nn.Module) -> dict[str, float]:
        """The score of a model, what it is made of, and the model's accuracies, for reading."""
        outputs = self._probabilities(model)
        forget, validation = (total_variation(ours, theirs) for ours, theirs in zip(outputs, self.reference))
        return {
            "score": 0.5 * forget + 0.5 * validation,
            "forget_distance": forget,
            "validation_distance": validation,
            "forget_accuracy": _accuracy(outputs[0], self.forgotten.labels),
            "validation_accuracy": _accuracy(outputs[1], self.validation.labels),
        }

    def _probabilities(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        logits = [predict(model, part.inputs).double().cpu() for part in (self.forgotten, self.validation)]
        if not all(bool(torch.isfinite(part).all()) for part in logits):
            raise DivergedError("The model gives outputs that are not numbers.")
        return logits[0].softmax(1), logits[1].softmax(1)


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """A request rehearsed with one seed or several, and validation samples of the kept classes that no rehearsal model saw.

    ``forget``: ids; ``whole_classes``: labels that go altogether; ``share`` and ``seed`` of the validation draw.
    """

    origin: Run
    seeds: tuple[SeedRehearsal, ...]
    forget: tuple[str, ...]
    whole_classes: tuple[int, ...]
    validation: Samples
    share: float
    seed: int

    def check(self, run: Run, forget: tuple[str, ...]) -> None:
        """Refuse another run or request than the one rehearsed."""
        if run is not self.origin or set(forget) != set(self.forget):
            raise InputError("This rehearsal is of another run or another request: make one with rehearse(run, ...).")

    @property
    def run(self) -> Run:
        """The run of the first seed."""
        return self.seeds[0].run

    @property
    def seconds(self) -> float:
        """What all of it took."""
        return sum(each.seconds for each in self.seeds)

    def judge(self, model: nn.Module) -> dict[str, float]:
        """The score of a model that was unlearned from the first seed's run."""
        return self.seeds[0].judge(model)

    @cached_property
    def spread(self) -> float | None:
        """The mean score of one seed's Retrain against another's; None for one seed."""
        pairs = list(itertools.combinations(self.seeds, 2))
        return statistics.fmean(first.judge(second.retrained)["score"] for first, second in pairs) if pairs else None


def rehearse(
    run: Run,
    *,
    classes: Sequence[int | str] | None = None,
    ids: Sequence[int | str] | None = None,
    validation: float = 0.2,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
) -> Rehearsal:
    """Fine-tune the run again from its anchor, without a ``validation`` share of the retained samples, and retrain it likewise.

    ``seeds``: of the recipe, two trainings each (default: the recipe's own seed alone). ``seed`` draws the validation part: a
    share of each class (rounded, at least one, and one stays), never of the samples to forget. Recorded where the run was.
    """
    if isinstance(validation, bool) or not isinstance(validation, int | float) or not 0 < validation < 1:
        raise InputError(f"validation is the share of the retained samples to set aside, in (0, 1); got {validation!r}.")
    if run.recipe is None:
        raise InputError(
            "A rehearsal repeats the fine-tuning, and this run has no recipe: give it, Run(..., recipe=Recipe(...))."
        )
    trained_with = _checked_seeds(seeds, run.recipe)
    data = run.data
    request = ForgetRequest(classes=classes, ids=ids)
    split = request.resolve(data)
    aside = stratified(data.labels, split.retain, validation, torch.Generator().manual_seed(seed))
    validation_samples = data.subset(aside)
    some = set(data.labels[split.forget].tolist()) - set(split.whole_classes)
    missing = sorted(some - set(validation_samples.labels.tolist()))
    if missing or not len(validation_samples):
        raise InputError(
            f"No validation samples for the classes {listing(missing) or 'that stay'}: each needs two retained samples or more."
        )
    trained = torch.ones(len(data), dtype=torch.bool)
    trained[aside] = False
    forget = tuple(data.ids[i] for i in split.forget.tolist())
    training_samples = data.subset(trained.nonzero().flatten())
    return Rehearsal(
        origin=run,
        seeds=tuple(_one_seed(run, training_samples, forget, validation_samples, seed=each) for each in trained_with),
        forget=forget,
        whole_classes=split.whole_classes,
        validation=validation_samples,
        share=float(validation),
        seed=seed,
    )


def _checked_seeds(seeds: Sequence[int] | None, recipe: Recipe) -> tuple[int, ...]:
    values = (recipe.seed,) if seeds is None else tuple(seeds)
    whole = all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in values)
    if not whole or not values or len(set(values)) < len(values):
        raise InputError(f"seeds are different whole numbers from 0, one or more; got {seeds!r}.")
    return values


def _one_seed(run: Run, seen: Samples, forget: tuple[str, ...], unseen: Samples, *, seed: int) -> SeedRehearsal:
    """The fine-tuning and the Retrain of one seed, on the samples that are not set aside."""
    assert run.recipe is not None
    started = time.perf_counter()
    model = working_copy(run)
    subset = run.subset.on(model)
    subset.set(run.anchor)
    again = fit(model, subset, seen, dataclasses.replace(run.recipe, seed=seed, drawn_from=None), trace=run.trace is not None)
    share_between_trials(again)
    retrained = unlearn(again, ids=forget, method="retrain").model
    seconds = time.perf_counter() - started
    return SeedRehearsal(seed, again, retrained, seen.subset(seen.index_of(forget)), unseen, seconds)


def stratified(labels: Tensor, positions: Tensor, share: float, draws: torch.Generator) -> Tensor:
    """Positions drawn from each class among ``positions``, ascending; a class of one gives none."""
    parts = []
    for label in labels[positions].unique().tolist():
        members = positions[labels[positions] == label]
        count = min(max(1, round(share * len(members))), len(members) - 1)
        parts.append(members[torch.randperm(len(members), generator=draws)[:count]])
    return torch.cat(parts).sort().values


def _accuracy(probabilities: Tensor, labels: Tensor) -> float:
    return float((probabilities.argmax(1) == labels.cpu()).double().mean())
