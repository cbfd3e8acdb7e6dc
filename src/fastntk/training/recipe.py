"""How a network was fine-tuned, as data."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fastntk.base.digest import json_digest
from fastntk.base.errors import InputError
from fastntk.base.numbers import plain
from fastntk.base.schema import MAX_GIVEN, parse

Optimizer = Literal["adam", "sgd"]
Schedule = Literal["cosine", "linear", "constant"]
Loss = Literal["cross-entropy", "squared"]
BnStats = Literal["frozen", "update"]
LARGEST = 1e6


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a fine-tuning besides the data.

    The schedule runs per step to 0 (``constant`` does not move). Weight decay is the penalty wd/2·‖w − w0‖² in the loss:
    it pulls towards the anchor, not towards zero. ``squared`` is ½‖f − (onehot − 1/C)‖², averaged over the batch.
    ``bn_stats="update"`` lets BatchNorm gather statistics (and use the batch's) while training; it is recorded, and
    unlearning then has to re-estimate them. ``drawn_from``: of how many samples batches are cut, where samples were forgotten
    since the fine-tuning: those leave gaps in their batches, as in the Retrain of the request that forgot them. None: of those
    at hand.
    """

    epochs: int = 20
    lr: float = 2e-3
    batch_size: int = 64
    optimizer: Optimizer = "adam"
    schedule: Schedule = "cosine"
    weight_decay: float = 1e-3
    loss: Loss = "cross-entropy"
    seed: int = 0
    momentum: float = 0.9
    bn_stats: BnStats = "frozen"
    drawn_from: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        for name, least, strict in (
            ("epochs", 0, False),
            ("lr", 0, True),
            ("batch_size", 1, False),
            ("seed", 0, False),
            ("drawn_from", 1, False),
        ):
            value = getattr(self, name)
            if name == "drawn_from" and value is None:
                continue
            whole = name != "lr"
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise InputError(f"Recipe.{name} must be a {'whole ' if whole else ''}number, got {value!r}.")
            if whole and value > MAX_GIVEN:
                raise InputError(f"Recipe.{name} must be at most {MAX_GIVEN}, got {value!r}.")
            if not math.isfinite(value) or value < least or (strict and value == least):
                raise InputError(f"Recipe.{name} must be {'>' if strict else '≥'} {least}, got {value!r}.")
        # Beyond it, optimisers multiply numbers that their precision does not hold.
        if self.lr > LARGEST or self.weight_decay > LARGEST:
            raise InputError(f"Recipe.lr and weight_decay must be ≤ {LARGEST:g}, got {self.lr!r} and {self.weight_decay!r}.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0) or not 0 <= self.momentum < 1:
            raise InputError(
                f"Recipe.weight_decay must be ≥ 0 and momentum in [0, 1), got {self.weight_decay!r}, {self.momentum!r}."
            )
        choices = {"optimizer": Optimizer, "schedule": Schedule, "loss": Loss, "bn_stats": BnStats}
        for name, kind in choices.items():
            if getattr(self, name) not in get_args(kind):
                values = ", ".join(get_args(kind))
                raise InputError(f"Recipe.{name} must be one of {values}; got {getattr(self, name)!r}.")

    @classmethod
    def from_dict(cls, stored: Any) -> Recipe:
        """The way back from JSON; refuses what is no recipe."""
        fields = {"drawn_from": None, **stored} if isinstance(stored, dict) else stored
        return parse(fields, cls, what="recipe", complete=True)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary; ``drawn_from`` is in it only where it says something, so digests of before stay."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if name != "drawn_from" or value is not None}

    @property
    def digest(self) -> str:
        """Of everything but ``drawn_from``."""
        return json_digest({name: value for name, value in self.to_dict().items() if name != "drawn_from"})
