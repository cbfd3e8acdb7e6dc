"""What an experiment consists of, as data: a network, a data set, a recipe, requests to forget, method rows and seeds.

Two digests keep results apart. ``training_digest`` covers what decides a fine-tuning or a retraining, so settings that differ
in methods, requests or seeds share trained weights. ``digest`` adds what decides a record's figures besides request, method
and seed; a folder of records belongs to one such digest. Requests, methods and seeds can be added later.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fastntk.base.digest import json_digest
from fastntk.base.errors import InputError
from fastntk.data import ForgetRequest, Samples
from fastntk.training.recipe import Recipe

SHARED = "{shared}"
"""Stands for the folder of data and weights in paths, so that a digest does not depend on where it lies."""


REST = "rest"
"""A hold-out set of the images that training leaves."""


class MethodRow(NamedTuple):
    """A row of a table: its label, the method of ``fastntk.unlearn`` behind it, and that method's options."""

    label: str
    method: str
    options: Mapping[str, Any] = {}

    @property
    def slug(self) -> str:
        """The label as part of a file's name."""
        return slug(self.label)


@dataclass(frozen=True)
class Request:
    """What to forget: a class (``value`` is its label), or a random share (``value``) drawn once with ``draw_seed``.

    The draw does not depend on a run's seed: Retrains of different seeds forget the same samples and can be compared.
    """

    kind: Literal["class", "random"]
    value: float
    draw_seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("class", "random") or (self.kind == "random" and not 0 < self.value < 1):
            raise InputError(f"A request is ('class', label) or ('random', share between 0 and 1); got {self}.")

    @property
    def name(self) -> str:
        """A file's name for it."""
        if self.kind == "class":
            return f"class-{int(self.value)}"
        return f"random-{100 * self.value:g}pct-draw{self.draw_seed}"

    @property
    def title(self) -> str:
        """In words."""
        return f"class {int(self.value)}" if self.kind == "class" else f"a random {100 * self.value:g} %"

    def ids(self, samples: Samples) -> tuple[str, ...]:
        """The ids to forget, in the order of the data."""
        if self.kind == "class":
            split = ForgetRequest(classes=(int(self.value),)).resolve(samples)
            return tuple(samples.ids[i] for i in split.forget.tolist())
        count = max(1, round(self.value * len(samples)))
        positions = np.random.default_rng(self.draw_seed).choice(len(samples), count, replace=False)
        return tuple(samples.ids[i] for i in sorted(positions.tolist()))


@dataclass(frozen=True)
class Setting:
    """One network on one data set by one recipe, and what is asked of it.

    ``data``, ``holdout`` and ``weights`` may contain ``{shared}``. With ``class_draw``, an int ``only_classes`` is that many
    classes drawn at random with this seed, in drawn order, instead of the first ones. ``holdout=REST`` takes the images of the
    same classes that training leaves, at most ``holdout_per_class`` of each: for sources without a split of their own.

    The recipe's seed is replaced by each of ``seeds``; Retrain also runs with ``extra_retrain_seeds``, so that its
    seed-to-seed spread rests on enough pairs. Prompts are drawn with ``prompt_seed`` in every run: the anchor is the same for
    all seeds. ``evidence`` keeps confidences and margins of the forgotten samples in every record, ``probes`` has every audit
    probe the features, ``timed`` compares costs with a Retrain timed in the same process rather than with the kept one.
    """

    name: str
    model: str
    weights: str | None
    data: str
    holdout: str
    requests: tuple[Request, ...]
    seeds: tuple[int, ...]
    methods: tuple[MethodRow, ...]
    images_per_class: int | None = None
    only_classes: tuple[str, ...] | int | None = None
    class_draw: int | None = None
    holdout_per_class: int | None = None
    image_size: int | None = None
    tune: str = "norm+head"
    prompt_length: int = 10
    prompt_blocks: int = 5
    prompt_seed: int = 0
    recipe: Recipe = field(default_factory=Recipe)
    extra_retrain_seeds: tuple[int, ...] = ()
    relearn_cap: int = 100
    note: str | None = None
    evidence: bool = False
    probes: bool = False
    timed: bool = False

    def __post_init__(self) -> None:
        if self.recipe.bn_stats != "frozen":
            raise InputError(f"{self.name}: the runner keeps tuned vectors only, so BatchNorm statistics must be frozen.")
        if self.class_draw is not None and not isinstance(self.only_classes, int):
            raise InputError(f"{self.name}: class_draw draws a number of classes; only_classes is {self.only_classes!r}.")
        slugs = [method.slug for method in self.methods]
        if len(set(slugs)) < len(slugs) or len(set(self.retrain_seeds)) < len(self.retrain_seeds):
            raise InputError(f"{self.name}: labels of methods and seeds must be different; got {slugs}, {self.retrain_seeds}.")

    @property
    def retrain_seeds(self) -> tuple[int, ...]:
        """Seeds that Retrain runs with: those of the runs, then the extra ones."""
        return self.seeds + self.extra_retrain_seeds

    def seeds_of(self, method: MethodRow) -> tuple[int, ...]:
        """Seeds a method has records for: Retrain has more than the others where there are extra ones."""
        return self.retrain_seeds if method.method == "retrain" else self.seeds

    def recipe_for(self, seed: int) -> Recipe:
        """The recipe of one run."""
        return dataclasses.replace(self.recipe, seed=seed)

    @property
    def training(self) -> dict[str, Any]:
        """JSON-able: all that decides a fine-tuning besides the seed and the bytes of data and weights."""
        recipe = self.recipe.to_dict()
        recipe.pop("seed")
        names = ("model", "weights", "image_size", "data", "only_classes", "images_per_class", "tune")
        values = {name: getattr(self, name) for name in names}
        prompts = {"length": self.prompt_length, "blocks": self.prompt_blocks, "seed": self.prompt_seed}
        # Named only where it is used, so that settings from before it keep their digests.
        draw = {} if self.class_draw is None else {"class_draw": self.class_draw}
        return values | draw | {"prompts": prompts if "prompts" in self.tune else None, "recipe": recipe}

    @property
    def training_digest(self) -> str:
        """Of :attr:`training`."""
        return json_digest(self.training)

    @property
    def configuration(self) -> dict[str, Any]:
        """JSON-able: all that decides a record besides request, method and seed."""
        most = {} if self.holdout_per_class is None else {"holdout_per_class": self.holdout_per_class}
        return self.training | {
            "holdout": self.holdout,
            **most,
            **({"evidence": 1} if self.evidence else {}),
            **({"probes": 1} if self.probes else {}),
            **({"timed": 1} if self.timed else {}),
            "retrain_seeds": list(self.retrain_seeds),
            "relearn": {"cap": self.relearn_cap},
        }

    @property
    def digest(self) -> str:
        """Of :attr:`configuration`."""
        return json_digest(self.configuration)


def locate(path: str, shared: Path) -> str:
    """Put the folder of data and weights in the place of ``{shared}``."""
    return path.replace(SHARED, str(shared))


def slug(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


FULL = MethodRow("full", "full")
MAX_LOSS = MethodRow("max-loss", "max-loss")
RANDOM_LABEL = MethodRow("random-label", "random-label")
RIDGE = MethodRow("fast-ntk-ridge", "fast-ntk", {"form": "ridge"})
"""The paper's equation (1), corrected."""
FAST_NTK = MethodRow("fast-ntk", "fast-ntk")
REPLAY = MethodRow("tangent-replay", "tangent-replay")
RETRAIN = MethodRow("retrain", "retrain")
PATH_HEAD = MethodRow("path-replay, head", "path-replay", {"depth": "head"})
PATH_AUTO = MethodRow("path-replay, auto", "path-replay", {"depth": "auto"})
PATH_BEST = MethodRow(
    "path-replay, all, 2 checkpoints, corrected",
    "path-replay",
    {"depth": "all", "checkpoints": 2, "correction": 2, "exact": 2},
)
WITHOUT_BEST = (FULL, MAX_LOSS, RANDOM_LABEL, RIDGE, FAST_NTK, REPLAY, PATH_HEAD, PATH_AUTO, RETRAIN)
"""The paper's methods, ``tangent-replay``, and ``path-replay`` where rows of all parameters cost many passes."""
PAPER = (*WITHOUT_BEST[:-1], PATH_BEST, RETRAIN)
"""The same with the deepest ``path-replay``."""
