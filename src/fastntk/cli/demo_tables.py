"""The demo's figures: what a request cost against Retrain, what it forgot, and how near to Retrain it came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from fastntk.data import Samples
    from fastntk.unlearning import Unlearned

KEPT, GONE = "holdout_kept_classes", "holdout_forgotten_classes"
RETRAIN, FULL = "retrain", "full"


def forget_rows(
    results: Mapping[str, Unlearned], audits: Mapping[str, dict[str, Any]], holdout: Samples, *, shared: Mapping[str, float]
) -> list[dict[str, Any]]:
    """A row for each result, Full first; ``audits``: of all but Retrain, which is their reference.

    ``distance`` is the mean total variation to the Retrains of other seeds, over the mean between two Retrains, by where it is
    taken; ``shared``: seconds to add to a method's own.
    """
    from torch.nn.functional import cross_entropy

    from fastntk.auditing.metrics import margins
    from fastntk.training.network import predict

    seconds = {label: result.seconds + shared[label] for label, result in results.items()}
    forgotten = results[RETRAIN].forgotten
    rows, before = [], None
    for label, result in results.items():
        outputs, on_holdout = (predict(result.model, samples.inputs).double() for samples in (forgotten, holdout))
        losses = cross_entropy(outputs, forgotten.labels, reduction="none")
        before = losses if before is None else before
        rows.append(
            {
                "method": label,
                "seconds": seconds[label],
                "of_retrain": seconds[label] / seconds[RETRAIN],
                **_accuracies(result, on_holdout, holdout),
                "forget_loss": float(losses.mean()),
                "forget_margin": float(margins(outputs, forgotten.labels).mean()),
                "forget_rank": _rank(losses, cross_entropy(on_holdout, holdout.labels, reduction="none")),
                "rose": int((losses > before).sum()),
                "distance": _distance(audits, label),
                "verdict": audits[label]["verdict"]["level"] if label in audits else None,
            }
        )
    return rows


def _distance(audits: Mapping[str, dict[str, Any]], label: str) -> dict[str, float | None]:
    """To the Retrains of other seeds; that of Retrain itself is in every audit, as pairs of Retrains."""
    record = audits[label] if label in audits else next(iter(audits.values()))
    distances, own = record["distances"], str(record["reference"]["seed"])
    spread = distances["retrain_spread"]["total_variation"]
    pairs = [pair["total_variation"] for seeds, pair in distances["retrain_pairs"].items() if own in seeds.split("-")]
    others = [distances["other_seeds"]["total_variation"]] if label in audits else pairs
    means = {place: sum(each[place] for each in others) / len(others) for place in spread}
    return {place: means[place] / spread[place] if spread[place] else None for place in spread}


def _accuracies(result: Unlearned, outputs: Tensor, holdout: Samples) -> dict[str, float]:
    """As fractions; where whole classes were forgotten, hold-out also by kept and forgotten classes."""
    import torch

    from fastntk.training.network import accuracy_on, is_right

    right = is_right(outputs, holdout.labels)
    shares = {"retain": accuracy_on(result.model, result.retained), "holdout": float(right.double().mean())}
    shares["forget"] = accuracy_on(result.model, result.forgotten)
    if result.split.whole_classes:
        forgotten_mask = torch.isin(holdout.labels, torch.tensor(result.split.whole_classes))
        shares |= {KEPT: float(right[~forgotten_mask].double().mean()), GONE: float(right[forgotten_mask].double().mean())}
    return shares


def _rank(losses: Tensor, others: Tensor) -> float:
    """The share of new images that are easier than one of the forgotten ones, on average."""
    return float((others[None, :] < losses[:, None]).double().mean())


LIKE = {"like retrain": "yes", "differs from retrain": "differs", "memory left": "memory"}


def table_of(request: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and cells, narrow enough for 80 characters: the cost, whether it forgot, whether it is like Retrain."""
    rows = request["rows"]
    if KEPT in rows[0]:
        titles, middle = ["new images of it", "other new"], _of_class
    else:
        titles, middle = ["loss", "margin", "rank"], _of_single
    columns = ("method", "× Retrain", *titles, "distance", "like Retrain")
    return columns, [(row["method"], _cost(row), *middle(row), _times(row["distance"]), _like(row)) for row in rows]


def words_of(request: dict[str, Any]) -> str:
    """What the columns are, and how to read them."""
    rows = {row["method"]: row for row in request["rows"]}
    seconds = rows[RETRAIN]["seconds"]
    cost = f"× Retrain: the time of the request over that of a Retrain ({seconds:.1f} s)"
    distance = (
        "Distance: to Retrains of other seeds, on the forgotten / on new images, in units of the distance between two of "
        f"{request['retrains']} Retrains; Retrain itself is at about 1. Like Retrain: an audit's verdict, of path-replay the "
        "whole audit's, of the others by predictions and losses alone."
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
