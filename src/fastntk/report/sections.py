"""What each section of the page says, from the record's figures: accuracy, losses, relearning, attacks, distances, cost.

Each function takes the whole record and returns a :class:`Section`; what the record does not have becomes a sentence on
how to get it. No figure is computed here that the record does not hold, but ratios of two that it holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastntk.auditing.calibration import distance_limit
from fastntk.auditing.evidence import spread_remark
from fastntk.auditing.record import AuditRecord, Requirement
from fastntk.auditing.record_figures import MODELS, SETS, Attack, Distance, Places, SetCounts, known
from fastntk.report.attacks import attack_table, ensemble_remarks, klom_tables
from fastntk.report.blocks import Section, Table, table
from fastntk.report.evidence_plots import cost_bars, distance_bars, epochs, relearn_curves, roc_curves
from fastntk.report.plots import accuracy_bars, loss_steps
from fastntk.report.svg import Plot
from fastntk.report.words import (
    GROUP_NAMES,
    NONE,
    SHORT_NAMES,
    clean,
    duration,
    figure,
    group_name,
    model_name,
    percent,
    plain,
    size,
)

AUDIT = "fastntk audit RUN RESULT --holdout SRC"
DISTANCES = {
    "total_variation": "Total variation",
    "jensen_shannon": "Jensen–Shannon",
    "agreement": "Same prediction",
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


def retrain_command(record: AuditRecord) -> str:
    """The command that makes Retrain too: by the run's recipe, or where there is none by a training function of the user."""
    by_recipe = record.subject.recipe is not None and known(record.reference.made_by) is None
    return f"{AUDIT} --reference retrain" if by_recipe else f"{AUDIT} --retrain-with MODULE:FUNCTION"


def without_retrain(record: AuditRecord) -> tuple[str, str]:
    """What is missing without Retrain, and the command that makes it."""
    why = "" if record.subject.recipe is not None else ": the run has no recipe to repeat, and no training function was given"
    return f"Retrain, the model that never saw the forgotten samples, was not made for this audit{why}", retrain_command(record)


def ensemble_command(record: AuditRecord) -> str:
    """The command that an ensemble is asked for with."""
    return AUDIT if record.subject.recipe is not None else retrain_command(record)


def accuracy(record: AuditRecord) -> Section:
    """Accuracy before, after and of Retrain, on each set of samples; mean losses."""
    groups = {group: dict(figures.items()) for group, figures in record.accuracy.items()}
    # Over all classes the figure falls with the forgotten ones, which is no damage: the kept ones where they are known.
    holdout_group = "holdout_kept_classes" if "holdout_kept_classes" in groups else "holdout"
    plots = [
        accuracy_bars(groups[group], name=f"accuracy-{group}", title=group_name(group).capitalize())
        for group in ("forget", "retain", holdout_group)
    ]
    rows = {
        group_name(key).capitalize(): {m: percent(v, 2) for m, v in groups[key].items()} for key in GROUP_NAMES if key in groups
    }
    losses = {group: dict(getattr(record.loss, group).items()) for group in GROUP_NAMES if group in SETS}
    figures_by_set = {group_name(key).capitalize(): {m: figure(v) for m, v in figures.items()} for key, figures in losses.items()}
    tables = (
        table("Accuracy", "Samples", _columns(groups), rows),
        table("Mean loss (cross-entropy, nats)", "Samples", _columns(losses), figures_by_set),
    )
    return Section(tuple(plots), tables, missing=() if record.reference.made else (without_retrain(record),))


def losses(record: AuditRecord) -> Section:
    """How the losses of single samples are spread, one plot a model."""
    histogram = record.loss_histogram
    shares = {model: _shares(counts) for model, counts in histogram.items()}
    top = max((max(values, default=0.0) for groups in shares.values() for values in groups.values()), default=0.0) or 1.0
    plots = [
        loss_steps(groups, histogram.edges, name=f"loss-{model}", title=model_name(model), top=top)
        for model, groups in shares.items()
    ]
    return Section(tuple(plots), missing=() if "retrain" in shares else (without_retrain(record),))


def relearn(record: AuditRecord) -> Section:
    """How fast each model learns the forgotten samples again."""
    figures = dict(record.relearn.items())
    rows = tuple(
        (model_name(model), epochs(each).capitalize(), figure(each.curve[0]), figure(each.curve[-1]))
        for model, each in figures.items()
    )
    table = Table("Epochs and losses", ("Model", "Epochs needed", "Loss at first", "Loss at the end"), rows)
    plot = relearn_curves(figures, name="relearn", title="Learning the forgotten samples again")
    return Section((plot,), (table,), missing=() if "retrain" in figures else (without_retrain(record),))


def membership(record: AuditRecord) -> Section:
    """Can an attacker tell the forgotten samples from samples the model never saw?"""
    measured = record.membership
    population, lira = known(measured.population), known(measured.u_lira)
    plots: list[Plot] = []
    tables: list[Table] = []
    for key, attack in (("population", population), ("u_lira", lira)):
        attacks: dict[str, Attack] = {} if attack is None else {model: each for model, each in attack.items() if each is not None}
        if attacks:
            curves = {model: figures for model, figures in attacks.items() if figures.roc.fpr}
            if curves:
                plots.append(roc_curves(curves, name=f"roc-{key.replace('_', '-')}", title=ATTACKS[key]))
            tables.append(attack_table(f"{ATTACKS[key]}: figures", attacks, lira if key == "u_lira" else None))
    tables += klom_tables(known(measured.klom))
    none = "" if population else known(measured.note)
    missing = [] if population or none else [("The attack on membership", AUDIT)]
    if lira is None:
        missing.append(
            (
                "U-LiRA and KLoM, which compare many models that forgot with many Retrains",
                f"{ensemble_command(record)} --ensemble 16",
            )
        )
    if population and not record.reference.made:
        missing.append(without_retrain(record))
    remarks = ((clean(none).capitalize() + ".",) if none else ()) + ensemble_remarks(measured)
    return Section(tuple(plots), tuple(tables), remarks, tuple(missing))


def distances(record: AuditRecord) -> Section:
    """How far the unlearned model is from Retrain, beside how far Retrains are from each other."""
    measured = known(record.distances)
    pairs = {pair: _flat(each) for pair in PAIRS if (each := known(getattr(measured, pair, None))) is not None}
    if not pairs:
        return Section(missing=(("Distances to Retrain", retrain_command(record)),))
    plots = []
    for group in ("forget", "holdout"):
        key = ("total_variation", group)
        rows = [(*PAIRS[pair], figures[key]) for pair, figures in pairs.items() if key in figures]
        if rows:
            plots.append(distance_bars(rows, name=f"distance-total-variation-{group}", title=_measure(key)))
    keys = list(dict.fromkeys(key for figures in pairs.values() for key in figures))
    table = Table(
        "Distances between the models",
        ("Measure", *(PAIRS[pair][0] for pair in pairs)),
        tuple((_measure(key), *(_distance(key, figures.get(key)) for figures in pairs.values())) for key in keys),
    )
    missing = (
        ()
        if "retrain_spread" in pairs
        else (("The spread between Retrains of several seeds", f"{retrain_command(record)} --retrains 2"),)
    )
    return Section(tuple(plots), (table,), _spread_remark(record, pairs), missing)


def probes(record: AuditRecord) -> Section:
    """What a fresh linear classifier finds in each model’s features."""
    probe_record = known(record.probes)
    if probe_record is None:
        return Section(missing=(("Linear probes", f"{AUDIT} --probes"),))
    groups = [group for group in GROUP_NAMES if group in SETS]
    tables = []
    for heads, caption in (
        (probe_record.linear_probe, "Linear probe: a new head on each model’s features"),
        (probe_record.own_head, "The model’s own head"),
    ):
        figures = {} if heads is None else dict(heads.items())
        if figures:
            rows = tuple(
                (model_name(model), *(percent(getattr(each, group), 1) for group in groups)) for model, each in figures.items()
            )
            tables.append(Table(caption, ("Model", *(SHORT_NAMES[group] for group in groups)), rows))
    return Section(tables=tuple(tables), remarks=(probe_record.note,) if probe_record.note else ())


def cost(record: AuditRecord) -> Section:
    """Time and memory, against Retrain's."""
    costs = record.cost
    retrain = costs.retrain_seconds
    plots = () if retrain is None else (cost_bars(costs.seconds, retrain, name="cost", title="Wall time"),)
    remarks: tuple[str, ...] = ()
    if costs.ratio_to_retrain is not None:
        before = ", not counting the Jacobian rows, which were made before" if known(costs.rows_made_before) else ""
        remarks = (f"Unlearning took {figure(costs.ratio_to_retrain, 2)} times as long as Retrain{before}.",)
    rows = [("Unlearning", duration(costs.seconds))]
    rows += [
        (f"of that, {plain(name)}", duration(seconds))
        for name, seconds in costs.stages.items()
        if name != "total" and isinstance(seconds, int | float) and not isinstance(seconds, bool)
    ]
    rows += [("Retrain", duration(retrain))]
    rows += [("This audit", duration(costs.audit_seconds)), ("Most memory in use", size(costs.peak_memory_bytes))]
    table = Table("Time and memory", ("Step", "Cost"), tuple(row for row in rows if row[1] != NONE))
    return Section(plots, (table,), remarks, () if retrain is not None else (without_retrain(record),))


def requirements(record: AuditRecord) -> Table | None:
    """The thresholds that were stated beforehand, and whether they were met."""
    if not record.requirements:
        return None
    rows = tuple((each.text, figure(each.left, 4), figure(each.right, 4), _outcome(each)) for each in record.requirements)
    return Table("Requirements stated for this audit", ("Requirement", "Found", "Limit", "Outcome"), rows)


def _outcome(each: Requirement) -> str:
    return ("✓ passed" if each.passed else "✗ failed") + (f" ({each.note})" if each.note else "")


def _spread_remark(record: AuditRecord, pairs: Mapping[str, Mapping[tuple[str, str], float]]) -> tuple[str, ...]:
    key = ("total_variation", "forget")
    same, other, spread = (pairs.get(pair, {}).get(key) for pair in ("same_seed", "other_seeds", "retrain_spread"))
    if same is None or other is None or not spread:
        return ()
    limit = distance_limit(record.request.forget, len(record.reference.other_seeds))
    sure = spread_remark(record)
    return (
        f"On the forgotten samples the unlearned model is {figure(same / spread, 2)} times as far from the Retrain of its own "
        f"seed, and {figure(other / spread, 2)} times as far from those of other seeds, as Retrains are from each other (total "
        f"variation). A Retrain itself is at about 1; on average over all of them, above {figure(limit, 3)} is more than chance. "
        "At 1 a model may still differ in small probabilities, which U-LiRA sees.",
        *((sure,) if sure else ()),
    )


def _measure(key: tuple[str, str]) -> str:
    name = DISTANCES[key[0]]
    return f"{name}, {SHORT_NAMES[key[1]].lower()}" if key[1] else name


def _distance(key: tuple[str, str], value: float | None) -> str:
    return percent(value) if key[0] in ("agreement", "recovered") else figure(value)


def _flat(distance: Distance) -> dict[tuple[str, str], float]:
    """The known distances by (measure, group); the group is empty for a single figure."""
    flat: dict[tuple[str, str], float | None] = {}
    for measure in DISTANCES:
        value = getattr(distance, measure)
        if isinstance(value, Places):
            flat |= {(measure, "forget"): value.forget, (measure, "holdout"): value.holdout}
        else:
            flat[measure, ""] = value
    return {key: value for key, value in flat.items() if value is not None}


def _shares(counts: SetCounts) -> dict[str, list[float]]:
    """Counts to shares of the group, in drawing order; empty groups are left out."""
    groups = {group: getattr(counts, group) for group in ("forget", "retain", "holdout")}
    return {group: [count / sum(bins) for count in bins] for group, bins in groups.items() if sum(bins)}


def _columns(groups: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [model for model in MODELS if any(model in figures for figures in groups.values())]
