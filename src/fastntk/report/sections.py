"""What each section of the page says, from the record's figures: answers, losses, relearning, attacks, distances, cost.

Each function takes the whole record and returns a :class:`Section`; what the record does not have becomes a sentence on
how to get it. No figure is computed here that the record does not hold, but ratios of two that it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastntk.report.blocks import Section, Table, models_in, table
from fastntk.report.evidence_plots import cost_bars, distance_bars, epochs, relearn_curves, roc_curves
from fastntk.report.plots import accuracy_bars, loss_steps
from fastntk.report.svg import Plot
from fastntk.report.words import (
    GROUP_NAMES,
    MODELS,
    NONE,
    SHORT_NAMES,
    duration,
    figure,
    group_name,
    model_name,
    percent,
    plain,
    size,
)

AUDIT = "fastntk audit RUN RESULT --holdout SRC"
RETRAIN = ("Retrain, the model that never saw the forgotten samples, was not made for this audit", f"{AUDIT} --reference retrain")
DISTANCES = {
    "total_variation": "Total variation",
    "jensen_shannon": "Jensen–Shannon",
    "agreement": "Same answer",
    "weights": "Distance of the tuned weights",
    "recovered": "Share of the way to Retrain",
    "tug_of_war": "Tug of war",
}
PAIRS = {
    "full": ("Before ↔ Retrain", "full"),
    "same_seed": ("After ↔ Retrain", "unlearned"),
    "other_seeds": ("After ↔ other seeds", "unlearned"),
    "retrain_spread": ("Retrain ↔ Retrain", "retrain"),
}
ATTACKS = {"population": "Population attack", "u_lira": "U-LiRA attack"}


def has_reference(record: Mapping[str, Any]) -> bool:
    """Whether Retrain was there to compare with."""
    return bool((record.get("reference") or {}).get("made"))


def accuracy(record: Mapping[str, Any]) -> Section:
    """Right answers before, after and of Retrain, on each set of samples."""
    groups = _known(record["accuracy"])
    plots = [
        accuracy_bars({model: groups[group][model] for model in models_in(groups[group])}, name=f"accuracy-{group}", title=title)
        for group, title in ((key, group_name(key).capitalize()) for key in ("forget", "retain", "holdout") if key in groups)
        if models_in(groups[group])
    ]
    rows = {group_name(key).capitalize(): {m: percent(v, 2) for m, v in groups[key].items()} for key in _ordered(groups)}
    tables = [table("Share of right answers", "Samples", _columns(groups), rows)] if rows else []
    losses = _known(record.get("loss"))
    if losses:
        shown = {group_name(key).capitalize(): {m: figure(v) for m, v in losses[key].items()} for key in _ordered(losses)}
        tables.append(table("Mean loss (cross-entropy, nats)", "Samples", _columns(losses), shown))
    return Section(tuple(plots), tuple(tables), missing=() if has_reference(record) else (RETRAIN,))


def losses(record: Mapping[str, Any]) -> Section:
    """How the losses of single samples are spread, one plot a model."""
    histogram = record.get("loss_histogram")
    if not histogram or not any(histogram.get(model) for model in MODELS):
        return Section(missing=(("The losses of single samples", AUDIT),))
    shares = {model: _shares(histogram[model]) for model in MODELS if histogram.get(model)}
    top = max((max(values, default=0.0) for groups in shares.values() for values in groups.values()), default=0.0) or 1.0
    plots = [
        loss_steps(groups, histogram["edges"], name=f"loss-{model}", title=model_name(model), top=top)
        for model, groups in shares.items()
    ]
    return Section(tuple(plots), missing=() if "retrain" in shares else (RETRAIN,))


def relearn(record: Mapping[str, Any]) -> Section:
    """How fast each model learns the forgotten samples again."""
    figures = {model: found for model in MODELS if (found := (record.get("relearn") or {}).get(model))}
    if not figures:
        return Section(missing=(("Relearning", AUDIT),))
    rows = {
        model_name(model): {
            "epochs": epochs(found).capitalize(),
            "first": figure(found["curve"][0] if found["curve"] else None),
            "last": figure(found["curve"][-1] if found["curve"] else None),
        }
        for model, found in figures.items()
    }
    columns = {"epochs": "Epochs needed", "first": "Loss at first", "last": "Loss at the end"}
    listed = Table(
        "Epochs and losses",
        ("Model", *columns.values()),
        tuple((head, *(cells[key] for key in columns)) for head, cells in rows.items()),
    )
    drawn = {model: found for model, found in figures.items() if found["curve"]}
    plots = (relearn_curves(drawn, name="relearn", title="Learning the forgotten samples again"),) if drawn else ()
    return Section(plots, (listed,), missing=() if "retrain" in figures else (RETRAIN,))


def membership(record: Mapping[str, Any]) -> Section:
    """Can an attacker tell the forgotten samples from samples the model never saw?"""
    found = record.get("membership") or {}
    plots: list[Plot] = []
    tables: list[Table] = []
    for key, title in ATTACKS.items():
        attack = {model: (found.get(key) or {}).get(model) for model in MODELS}
        known = {model: figures for model, figures in attack.items() if figures}
        if known:
            drawn = {model: figures for model, figures in known.items() if (figures.get("roc") or {}).get("fpr")}
            if drawn:
                plots.append(roc_curves(drawn, name=f"roc-{key.replace('_', '-')}", title=title))
            tables.append(_attack_table(f"{title}: figures", known))
    klom = _known(found.get("klom"))
    if klom:
        rows = {"mean": "Mean", "p95": "95th percentile"}
        cells = {label: {m: figure(f.get(key)) for m, f in klom.items() if isinstance(f, Mapping)} for key, label in rows.items()}
        tables.append(table("KLoM, margins against Retrain’s", "Over samples", models_in(klom), cells))
    missing = [] if found.get("population") else [("The attack on membership", AUDIT)]
    if not found.get("u_lira"):
        missing.append(("U-LiRA and KLoM, which compare many models that forgot with many Retrains", f"{AUDIT} --ensemble 16"))
    if found.get("population") and not has_reference(record):
        missing.append(RETRAIN)
    return Section(tuple(plots), tuple(tables), _ensemble_remark(found), tuple(missing))


def distances(record: Mapping[str, Any]) -> Section:
    """How far the unlearned model is from Retrain, beside how far Retrains are from each other."""
    found = {pair: figures for pair in PAIRS if (figures := _flat((record.get("distances") or {}).get(pair) or {}))}
    if not found:
        return Section(missing=(("Distances to Retrain", RETRAIN[1]),))
    plots = []
    for measure, group in (("total_variation", "forget"), ("total_variation", "holdout")):
        rows = [(*PAIRS[pair], float(f[measure, group])) for pair, f in found.items() if f.get((measure, group)) is not None]
        if rows:
            title = _measure((measure, group))
            plots.append(distance_bars(rows, name=f"distance-{measure.replace('_', '-')}-{group}", title=title))
    keys = list(dict.fromkeys(key for figures in found.values() for key in figures))
    listed = Table(
        "Distances between the models",
        ("Measure", *(PAIRS[pair][0] for pair in found)),
        tuple((_measure(key), *(_distance(key, figures.get(key)) for figures in found.values())) for key in keys),
    )
    missing = (
        () if "retrain_spread" in found else (("The spread between Retrains of several seeds", f"{RETRAIN[1]} --retrains 2"),)
    )
    return Section(tuple(plots), (listed,), _spread_remark(found), missing)


def probes(record: Mapping[str, Any]) -> Section:
    """What a fresh linear classifier finds in each model’s features."""
    found = _known(record.get("probes"))
    names = {"linear_probe": "Linear probe: a new head on each model’s features", "own_head": "The model’s own head"}
    tables = []
    for key, caption in names.items():
        figures = _known(found.get(key))
        groups = [group for group in GROUP_NAMES if any(group in cells for cells in figures.values())]
        if figures and groups:
            rows = tuple(
                (model_name(model), *(percent(figures[model].get(group), 1) for group in groups)) for model in models_in(figures)
            )
            tables.append(Table(caption, ("Model", *(SHORT_NAMES.get(group, group_name(group)) for group in groups)), rows))
    note = found.get("note")
    return Section(
        tables=tuple(tables),
        remarks=(note,) if note else (),
        missing=() if tables else (("Linear probes", f"{AUDIT} --probes"),),
    )


def cost(record: Mapping[str, Any]) -> Section:
    """Time and memory, against Retrain's."""
    found = record.get("cost") or {}
    if found.get("seconds") is None:
        return Section(missing=(("The cost", AUDIT),))
    plots: tuple[Plot, ...] = ()
    seconds, retrain = float(found["seconds"]), found.get("retrain_seconds")
    remarks: tuple[str, ...] = ()
    if retrain is not None:
        plots = (cost_bars(seconds, float(retrain), name="cost", title="Wall time"),)
    ratio = found.get("ratio_to_retrain")
    if ratio is not None:
        before = ", not counting the Jacobian rows, which were made before" if found.get("rows_made_before") else ""
        remarks = (f"Unlearning took {figure(ratio, 2)} times as long as Retrain{before}.",)
    rows = [("Unlearning", duration(seconds))]
    rows += [
        (f"of that, {plain(name)}", duration(took))
        for name, took in (found.get("stages") or {}).items()
        if name != "total" and _number(took)
    ]
    rows += [("Retrain", duration(retrain))]
    rows += [("This audit", duration(found.get("audit_seconds"))), ("Most memory in use", size(found.get("peak_memory_bytes")))]
    listed = Table("Time and memory", ("Step", "Cost"), tuple(row for row in rows if row[1] != NONE))
    return Section(plots, (listed,), remarks, () if retrain is not None else (RETRAIN,))


def requirements(record: Mapping[str, Any]) -> Table | None:
    """The thresholds that were stated beforehand, and whether they were met."""
    found = record.get("requirements") or []
    if not found:
        return None
    rows = tuple((each["text"], figure(each.get("left"), 4), figure(each.get("right"), 4), _outcome(each)) for each in found)
    return Table("Requirements stated for this audit", ("Requirement", "Found", "Limit", "Outcome"), rows)


def _outcome(each: Mapping[str, Any]) -> str:
    note = each.get("note")
    return ("✓ passed" if each["passed"] else "✗ failed") + (f" ({note})" if note else "")


def _attack_table(title: str, attack: Mapping[str, Mapping[str, Any]]) -> Table:
    models = models_in(attack)
    rows = {
        "Area under the curve (0.5: guessing)": {m: _area(attack[m]) for m in models},
        "Found at 1 % false alarms": {m: percent(attack[m].get("tpr_at_1pct_fpr")) for m in models},
    }
    features = dict.fromkeys(name for m in models for name in attack[m].get("by_feature") or {})
    for name in features:
        rows[f"Area, {plain(name)} alone"] = {m: _decimals((attack[m].get("by_feature") or {}).get(name)) for m in models}
    return table(title, "Measure", models, rows)


def _decimals(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _area(figures: Mapping[str, Any]) -> str:
    error = figures.get("auc_standard_error")
    return f"{figures['auc']:.3f}" + ("" if error is None else f" ± {error:.3f}")


def _ensemble_remark(found: Mapping[str, Any]) -> tuple[str, ...]:
    ensemble = (found.get("u_lira") or {}).get("ensemble")
    if not isinstance(ensemble, Mapping):
        return ()
    took = f" in {duration(ensemble['seconds'])}" if _number(ensemble.get("seconds")) else ""
    return (f"U-LiRA used an ensemble of {ensemble.get('size')} {ensemble.get('kind')} models, made{took}.",)


def _spread_remark(found: Mapping[str, Mapping[tuple[str, str], Any]]) -> tuple[str, ...]:
    key = ("total_variation", "forget")
    ours, spread = (found.get(pair, {}).get(key) for pair in ("same_seed", "retrain_spread"))
    if ours is None or not spread:
        return ()
    return (
        f"On the forgotten samples the unlearned model is {figure(ours / spread, 2)} times as far from Retrain as Retrains of "
        "different seeds are from each other (total variation). Up to about 1 the difference is no larger than chance makes it.",
    )


def _measure(key: tuple[str, str]) -> str:
    name = DISTANCES.get(key[0], plain(key[0]))
    return f"{name}, {SHORT_NAMES.get(key[1], group_name(key[1])).lower()}" if key[1] else name


def _distance(key: tuple[str, str], value: float | None) -> str:
    return percent(value) if key[0] in ("agreement", "recovered") else figure(value)


def _flat(figures: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Distances by (measure, group); the group is empty for a single figure."""
    flat: dict[tuple[str, str], Any] = {}
    for measure, value in figures.items():
        if isinstance(value, Mapping):
            flat |= {(measure, group): number for group, number in value.items() if number is not None}
        elif _number(value):
            flat[measure, ""] = value
    return flat


def _shares(groups: Mapping[str, Any]) -> dict[str, list[float]]:
    """Counts to shares of the group, in drawing order; empty groups are left out."""
    shares = {}
    for group in ("forget", "retain", "holdout"):
        counts = groups.get(group)
        if counts and sum(counts):
            shares[group] = [count / sum(counts) for count in counts]
    return shares


def _known(figures: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (figures or {}).items() if value}


def _ordered(groups: Mapping[str, Any]) -> list[str]:
    return [key for key in GROUP_NAMES if key in groups] + sorted(key for key in groups if key not in GROUP_NAMES)


def _columns(groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return models_in({model: value for figures in groups.values() for model, value in figures.items() if value is not None})


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
