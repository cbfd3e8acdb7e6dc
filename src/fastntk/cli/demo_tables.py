"""The demo's figures: what a request cost against Retrain, what it forgot, and how near to Retrain it came."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from fastntk.data import Samples
    from fastntk.unlearning import Unlearned

KEPT, GONE = "holdout_kept_classes", "holdout_forgotten_classes"
RETRAIN, FULL = "retrain", "full"


def forget_rows(
    results: Mapping[str, Unlearned], retrains: Sequence[Unlearned], holdout: Samples, *, shared: Mapping[str, float]
) -> list[dict[str, Any]]:
    """A row for each result; ``retrains``: of different seeds, the first with the run's own.

    ``distance`` is the mean total variation to the Retrains of other seeds, over the mean between two Retrains, by where it is
    taken; ``shared``: seconds to add to a method's own.
    """
    import torch

    from fastntk.auditing.metrics import total_variation
    from fastntk.training.network import predict

    forgotten = retrains[0].forgotten
    sets = {"forget": forgotten, "holdout": holdout}

    def outputs(result: Unlearned) -> dict[str, Tensor]:
        return {name: predict(result.model, samples.inputs).double() for name, samples in sets.items()}

    trained = [outputs(retrain) for retrain in retrains]

    def apart(first: dict[str, Tensor], second: dict[str, Tensor]) -> dict[str, float]:
        return {name: total_variation(first[name].softmax(1), second[name].softmax(1)) for name in sets}

    def mean(distances: Sequence[dict[str, float]]) -> dict[str, float]:
        return {name: sum(each[name] for each in distances) / len(distances) for name in sets}

    spread = mean([apart(*pair) for pair in itertools.combinations(trained, 2)])
    seconds = {label: result.seconds + shared[label] for label, result in results.items()}
    rows = []
    for label, result in results.items():
        found = outputs(result)
        distance = mean([apart(found, other) for other in trained[1:]])
        rows.append(
            {
                "method": label,
                "seconds": seconds[label],
                "of_retrain": seconds[label] / seconds[RETRAIN],
                **_accuracies(result, found["holdout"], holdout),
                **_of_images(found["forget"], forgotten.labels, found["holdout"], holdout.labels),
                "distance": {name: distance[name] / spread[name] if spread[name] else None for name in sets},
            }
        )
    before = torch.tensor(rows[0]["losses"])
    for row in rows:
        losses = torch.tensor(row.pop("losses"))
        row["rose"] = int((losses > before).sum())
    return rows


def _accuracies(result: Unlearned, outputs: Tensor, holdout: Samples) -> dict[str, float]:
    """As fractions; where whole classes were forgotten, hold-out also by kept and forgotten classes."""
    import torch

    from fastntk.training.network import accuracy_on, is_right

    right = is_right(outputs, holdout.labels)
    shares = {"retain": accuracy_on(result.model, result.retained), "holdout": float(right.double().mean())}
    shares["forget"] = accuracy_on(result.model, result.forgotten)
    if result.split.whole_classes:
        gone = torch.isin(holdout.labels, torch.tensor(result.split.whole_classes))
        shares |= {KEPT: float(right[~gone].double().mean()), GONE: float(right[gone].double().mean())}
    return shares


def _of_images(outputs: Tensor, labels: Tensor, unseen: Tensor, unseen_labels: Tensor) -> dict[str, Any]:
    """Loss and margin of the forgotten images, and their rank: the share of new images that are easier than one of them."""
    import torch
    from torch.nn.functional import cross_entropy

    losses = cross_entropy(outputs, labels, reduction="none")
    others = cross_entropy(unseen, unseen_labels, reduction="none")
    own = outputs.gather(1, labels[:, None]).squeeze(1)
    margins = own - outputs.scatter(1, labels[:, None], -torch.inf).amax(1)
    return {
        "forget_loss": float(losses.mean()),
        "forget_margin": float(margins.mean()),
        "forget_rank": float((others[None, :] < losses[:, None]).double().mean()),
        "losses": losses.tolist(),
    }


LIKE = {"like retrain": "yes", "differs from retrain": "differs", "memory left": "memory"}


def table_of(request: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and cells, narrow enough for 80 characters: the cost, whether it forgot, whether it is like Retrain."""
    rows = request["rows"]
    if KEPT in rows[0]:
        named, middle = ["new images of it", "other new"], _of_class
    else:
        named, middle = ["loss", "margin", "rank"], _of_single
    columns = ("method", "× Retrain", *named, "distance", "like Retrain")
    return columns, [(row["method"], _cost(row), *middle(row), _times(row["distance"]), _like(row)) for row in rows]


def words_of(request: dict[str, Any]) -> str:
    """What the columns are, and how to read them."""
    rows = {row["method"]: row for row in request["rows"]}
    seconds = rows[RETRAIN]["seconds"]
    cost = f"× Retrain: the time of the request over that of a Retrain ({seconds:.1f} s)"
    distance = (
        "Distance: to Retrains of other seeds, on the forgotten / on new images, in units of the distance between two of "
        f"{request['retrains']} Retrains; Retrain itself is at about 1. Like Retrain: the audit's verdict."
    )
    if KEPT in request["rows"][0]:
        return (
            f"full: nothing done; retrain: trained again without the digit, the reference. {cost}, for fast-ntk and "
            f"tangent-replay with the rows of a linearisation. {distance}"
        )
    rose = ", ".join(f"{name} {row['rose']}" for name, row in rows.items() if name != FULL)
    return (
        f"{cost}. Loss and margin (the right digit's score less the best other one's) of the {request['forget']} images; rank: "
        "the share of new images with a smaller loss. Chosen for the demo: the images whose own loss their removal changes most. "
        f"Risen is the loss of {rose}. {distance}"
    )


def _cost(row: dict[str, Any]) -> str:
    share = row["of_retrain"]
    return "–" if row["method"] == FULL else f"{share:.2f}" if share >= 0.1 else f"{share:.3f}"


def _of_class(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{100 * row[name]:.0f} %" for name in (GONE, KEPT))


def _of_single(row: dict[str, Any]) -> tuple[str, ...]:
    return f"{row['forget_loss']:.2f}", f"{row['forget_margin']:+.2f}", f"{100 * row['forget_rank']:.0f} %"


def _times(distance: dict[str, float | None]) -> str:
    return " / ".join("–" if value is None else f"{value:.1f}" if value < 10 else f"{value:.0f}" for value in distance.values())


def _like(row: dict[str, Any]) -> str:
    """In a word; nothing for the reference itself."""
    return "–" if row["verdict"] is None else LIKE.get(row["verdict"], "?")
