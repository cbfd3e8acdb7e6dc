"""How the methods of the comparison were tuned, as a section of its page: budget, seeds, spaces, scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastntk.reproduce.records import read_record
from fastntk.reproduce.setting import Request, Setting
from lab.comparison import BUDGET, REHEARSAL_SEEDS, SURVIVORS, TUNING, Tuned, tuned_methods, tuning_file

COLUMNS = ("request", "method", "trials", "winner", "its score", "score of the defaults", "trials that failed")


def tuning_text(settings: Sequence[Setting], *, out: Path) -> str:
    """The section."""
    seeds = ", ".join(map(str, REHEARSAL_SEEDS))
    lines = [
        "## How the methods were tuned",
        "",
        f"All alike, ours included, by `tune_baseline` ([baselines.md](baselines.md#tuning)) on each request by itself: the run "
        f"is made again with each of the seeds {seeds}, which are not reported, without a fifth of the retained samples, and so "
        f"is its Retrain. {BUDGET} trials each, the defaults among them, on the first seed (all of the space where it is "
        f"smaller); the best {SURVIVORS} and the defaults on the other seeds; the least mean score wins. The score is the mean "
        "of the total variations to the rehearsal's own Retrain on D_f and on the samples set aside; no trial sees the hold-out "
        "set or a Retrain that is reported. Every trial is in the records.",
        "",
    ]
    for setting in settings:
        lines += [_scale(setting.requests[0], out=out), ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for setting in settings:
        lines += _lines(setting.requests[0], out=out)
    lines += ["", "Spaces; the defaults are tried where they are not in it:", ""]
    lines += [f"- {each.label}: {_space(each)}" for each in tuned_methods()]
    return "\n".join(lines) + "\n"


def _scale(request: Request, *, out: Path) -> str:
    """What scores to compare with, from any tuning of the request."""
    paths = [tuning_file(request, each.label, out) for each in tuned_methods()]
    protocol = next((read_record(path, schema=TUNING)["protocol"] for path in paths if path.exists()), None)
    if protocol is None:
        return f"Scores for {request.title}: not run."
    spread = "" if protocol["spread"] is None else f", a rehearsal Retrain of another seed {protocol['spread']:.4f}"
    return f"To read the scores for {request.title} by: doing nothing has {protocol['nothing_done']:.4f}{spread}."


def _lines(request: Request, *, out: Path) -> list[str]:
    lines = []
    for each in tuned_methods():
        path = tuning_file(request, each.label, out)
        cells = _cells(read_record(path, schema=TUNING)) if path.exists() else ["not run"] * (len(COLUMNS) - 2)
        lines.append("| " + " | ".join([request.title, each.label, *cells]) + " |")
    return lines


def _cells(record: Mapping[str, Any]) -> list[str]:
    trials, protocol = record["trials"], record["protocol"]
    winner = next(trial for trial in trials if trial["options"] == record["options"])
    default = trials[0]
    chosen = "the defaults" if winner is default else options_text(record["options"])
    return [
        f"{protocol['tried']} of {protocol['space']}",
        chosen,
        f"{winner['score']:.4f}",
        "failed" if default["score"] is None else f"{default['score']:.4f}",
        str(sum("failed" in trial for trial in trials)),
    ]


def options_text(options: Mapping[str, Any]) -> str:
    """Options in words."""
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _space(tuned: Tuned) -> str:
    axes = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in tuned.space.items())
    return axes + (f" (always {options_text(tuned.fixed)})" if tuned.fixed else "")
