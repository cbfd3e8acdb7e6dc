"""U-LiRA, the median shift and KLoM of ensembles, from their margins alone: no model, no torch.

Margins come as φ (K, n) by model, ``full``, ``unlearned`` and ``retrain``, on each set of samples.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import UNSET

from fastntk.auditing.klom import BINS, ceiling, gaussian_floor, klom_by_halves, klom_note
from fastntk.auditing.record_figures import MODELS, EnsembleSummary, Klom, KlomByModel, KlomFigures, Shifts, ULira
from fastntk.auditing.roc import Array
from fastntk.auditing.ulira import median_shift, median_shift_null, u_lira, u_lira_null

Margins = Mapping[str, Array]


def u_lira_of(margins: Margins, ensemble: EnsembleSummary) -> ULira:
    """U-LiRA and the median shift of each model on the forgotten samples; null where outputs are not numbers."""
    retrained = margins["retrain"]
    usable = {name: values for name, values in margins.items() if np.isfinite(values).all() and np.isfinite(retrained).all()}
    attacks = {name: u_lira_null(values) if name == "retrain" else u_lira(values, retrained) for name, values in usable.items()}
    shifts = {
        name: median_shift_null(values) if name == "retrain" else median_shift(values, retrained)
        for name, values in usable.items()
    }
    return ULira(
        ensemble=ensemble,
        shift=Shifts(**{name: shifts.get(name) for name in MODELS}),
        **{name: attacks.get(name) for name in MODELS},
    )


def klom_of(margins: Mapping[str, Margins]) -> Klom:
    """KLoM of each model on forgotten, retained and held-out samples, by halves of equal size."""
    by_set = {where: _by_model(parts) for where, parts in margins.items()}
    forget, size = by_set["forget"], len(margins["forget"]["retrain"]) // 2
    return Klom(
        full=forget["full"],
        unlearned=forget["unlearned"],
        retrain=forget["retrain"],
        retained=KlomByModel(**by_set["retain"]) if "retain" in by_set else UNSET,
        held_out=KlomByModel(**by_set["holdout"]) if "holdout" in by_set else UNSET,
        models=size,
        bins=BINS,
        ceiling=ceiling(),
        gaussian_floor=gaussian_floor(size) if size > 3 else UNSET,
        note=klom_note(size, forget["retrain"]),
    )


def _by_model(margins: Margins) -> dict[str, KlomFigures | None]:
    retrained = margins["retrain"]
    return {
        name: klom_by_halves(values, retrained) if np.isfinite(values).all() and np.isfinite(retrained).all() else None
        for name, values in margins.items()
    }
