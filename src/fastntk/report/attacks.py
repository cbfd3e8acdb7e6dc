"""Tables and remarks on attacks: the population attack, U-LiRA with the median shift, KLoM. From the record's figures alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from fastntk.auditing.record_figures import Attack, Klom, KlomFigures, Membership, OfModels, PopulationAttack, ULira, known
from fastntk.report.blocks import Table, table
from fastntk.report.words import clean, duration, figure, percent, plain

SATURATED = 0.5
"""From this share of samples without a common bin on, KLoM is not shown as a distance (:mod:`fastntk.auditing.klom`)."""
SETS = {"": "Forgotten samples", "retained": "Retained samples", "held_out": "Never-seen samples"}


def attack_table(title: str, attacks: Mapping[str, Attack], lira: ULira | None) -> Table:
    """Areas with their noise, the rate at 1 %, and what belongs to this attack only."""
    rows = {
        "Area under the curve (0.5: guessing)": {m: f"{a.auc:.3f} ± {a.auc_standard_error:.3f}" for m, a in attacks.items()},
        "Found at 1 % false alarms": {m: percent(a.tpr_at_1pct_fpr) for m, a in attacks.items()},
    }
    by_features = {model: each for model, each in attacks.items() if isinstance(each, PopulationAttack)}
    noise = {model: known(each.difference_standard_error) for model, each in by_features.items()}
    if any(value is not None for value in noise.values()):
        rows["Noise of the area’s difference to Retrain’s"] = {m: "–" if v is None else f"± {v:.3f}" for m, v in noise.items()}
    alone = {model: asdict(each.by_feature) for model, each in by_features.items()}
    for name in dict.fromkeys(name for areas in alone.values() for name in areas):
        rows[f"Area, {plain(name)} alone"] = {model: f"{areas[name]:.3f}" for model, areas in alone.items()}
    shifts = None if lira is None else known(lira.shift)
    if shifts is not None:
        cells = {model: f"{each.median:+.2f} ± {each.standard_error:.2f}" for model, each in shifts.items() if each is not None}
        rows["Median shift, in Retrain’s standard deviations"] = cells
    return table(title, "Measure", list(attacks), rows)


def klom_tables(klom: Klom | None) -> list[Table]:
    """KLoM on each set of samples, and the Gaussian divergence beside it."""
    if klom is None:
        return []
    parts: dict[str, OfModels[KlomFigures | None]] = {"": klom}
    parts |= {name: part for name in ("retained", "held_out") if (part := known(getattr(klom, name))) is not None}
    tables = []
    for name, part in parts.items():
        figures = {model: each for model, each in part.items() if each is not None}
        if figures:
            tables.append(
                table(f"KLoM, margins against Retrain’s: {SETS[name].lower()}", "Over samples", list(figures), _rows(figures))
            )
    return tables


def _rows(figures: Mapping[str, KlomFigures]) -> dict[str, dict[str, str]]:
    rows = {
        "Mean": {model: _shown(each, each.mean) for model, each in figures.items()},
        "95th percentile": {model: _shown(each, each.p95) for model, each in figures.items()},
        "Samples without a common bin": {model: percent(known(each.disjoint)) for model, each in figures.items()},
        "Gaussian KL, median": {
            model: figure(None if (normal := known(each.gaussian)) is None else normal.median) for model, each in figures.items()
        },
    }
    return {name: cells for name, cells in rows.items() if any(cell != "–" for cell in cells.values())}


def _shown(each: KlomFigures, value: float) -> str:
    """The value, unless it says "apart" and not how far."""
    apart = known(each.disjoint)
    return "apart (saturated)" if apart is not None and apart >= SATURATED else figure(value)


def ensemble_remarks(attacks: Membership) -> tuple[str, ...]:
    """How the ensemble was made, what differs between its models, and what so many can tell."""
    lira, klom = known(attacks.u_lira), known(attacks.klom)
    if lira is None:
        return ()
    about = lira.ensemble
    by = "" if known(about.made_by) is None else f" by {clean(str(about.made_by))}"
    variant = known(about.variation) or "seed-only"
    differ = "their seeds" if variant == "seed-only" else "their seeds and forget sets"
    text = (
        f"U-LiRA used an ensemble of {about.size} {about.kind} models, made{by} in {duration(about.seconds)}. It is {variant}: "
        f"the models differ by {differ}."
    )
    note = None if klom is None else known(klom.note)
    return (text, f"KLoM: {clean(note)}") if note else (text,)
