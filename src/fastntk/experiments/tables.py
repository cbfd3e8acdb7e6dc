"""A table of the paper from start to end: which steps its cells miss, and its files from the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fastntk.base.atomic import write_file
from fastntk.experiments import costs
from fastntk.experiments.bench import fit_file, retrain_file, vector_folder
from fastntk.experiments.cells import UNTRAINED, Cell
from fastntk.experiments.compare import compare
from fastntk.experiments.plots import plot
from fastntk.experiments.records import check_folder, has_record, setting_folder
from fastntk.experiments.render import html, latex, markdown
from fastntk.experiments.runner import LINEARISED, Step, plan, probe_digest
from fastntk.experiments.selection import settings_of
from fastntk.experiments.setting import Setting
from fastntk.experiments.sheets import sheet


def plan_cells(cells: Sequence[Cell], *, out: Path, work: Path) -> list[Step]:
    """The steps that are missing, in order."""
    steps = plan(settings_of([cell for cell in cells if not cell.probed]), out=out, work=work)
    for cell in cells:
        if cell.probed:
            steps += plan_probes(cell.setting, cell.probed, out=out, work=work)
    return steps


def plan_probes(setting: Setting, labels: Sequence[str], *, out: Path, work: Path) -> list[Step]:
    """Steps for the probes of these models that are not there, trainings first."""
    folder, kept = setting_folder(out, setting.name), vector_folder(setting, work)
    check_folder(folder, setting.digest)
    missing = list(_missing(setting, labels, folder=folder))
    seconds, request = costs.training_seconds(setting), setting.requests[0]
    steps: list[Step] = []
    for seed in setting.seeds:
        wanted = {step.probe for step in missing if step.seed == seed}
        if wanted - {*UNTRAINED, "retrain"} and not (kept / fit_file(seed)).exists():
            steps.append(Step(setting, "fit", seed, kept / fit_file(seed), seconds))
        if "retrain" in wanted and not (kept / retrain_file(request, seed)).exists():
            steps.append(Step(setting, "retrain", seed, kept / retrain_file(request, seed), seconds, request))
    return steps + missing


def _missing(setting: Setting, labels: Sequence[str], *, folder: Path) -> Iterator[Step]:
    request = setting.requests[0]
    for seed in setting.seeds:
        rows = costs.rows_seconds(setting)
        for label in labels:
            # The anchor, and so the pre-trained model, is the same for all seeds.
            if label == "pre-trained" and seed != setting.seeds[0]:
                continue
            target = probe_path(folder, setting, label, seed)
            if has_record(target, probe_digest(setting, request, label, seed)):
                continue
            seconds = costs.probe_seconds(setting)
            if label in LINEARISED:
                seconds, rows = seconds + rows, 0.0
            yield Step(setting, "probe", seed, target, seconds, request, probe=label)


def probe_path(folder: Path, setting: Setting, label: str, seed: int) -> Path:
    """The file of one probe's record."""
    return folder / setting.requests[0].name / f"probe-{label}-seed{seed}.json"


def write_table(name: str, cells: Sequence[Cell], *, out: Path) -> list[Path]:
    """Write ``name``.md, .tex, .html, .svg and .png to ``out``, from the records there."""
    comparisons = compare(name, cells, out=out)
    made = sheet(name, comparisons)
    contents = {
        "md": markdown(made).encode(),
        "tex": latex(made).encode(),
        "html": html(made).encode(),
        "svg": plot(made, comparisons, kind="svg"),
        "png": plot(made, comparisons, kind="png"),
    }
    return [write_file(out / f"{name}.{kind}", content, overwrite=True) for kind, content in contents.items()]
