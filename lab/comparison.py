"""All methods on one network: all tuned alike, audited alike, for a class and for a random share of the samples.

    tuning     ``tune_baseline`` with the same budget for each method, once per request, on spare seeds, by the distance to
               rehearsal Retrains                                                 -> <out>/tuned/<request>/<row>.json
    records    the runner's, with evidence, on the seeds that are reported        -> <out>/records/compare-<request>/…

A baseline has one row, with its tuned options; one whose tuning is missing is left out, and the page says so. Our own methods
have a row with their defaults, and another one where tuning chose other options. Processes with a request each share nothing but
the trained weights, which are made by one of them while the other waits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fastntk.reproduce import costs
from fastntk.reproduce.cells import RESNET
from fastntk.reproduce.code import UNLEARNING, changed_rooms, code_of, vouched
from fastntk.reproduce.environment import environment
from fastntk.reproduce.experiment import Experiment, open_experiment
from fastntk.reproduce.records import jsonable, read_record, write_record
from fastntk.reproduce.setting import (
    FAST_NTK,
    FULL,
    PATH_AUTO,
    PATH_BEST,
    PATH_HEAD,
    REPLAY,
    RETRAIN,
    RIDGE,
    MethodRow,
    Request,
    Setting,
    slug,
)
from fastntk.unlearning.baseline_tuning import tune_baseline
from fastntk.unlearning.registry import METHODS
from fastntk.unlearning.rehearsal import Rehearsal, rehearse

REQUESTS = (Request("class", 0), Request("random", 0.1, draw_seed=0))
SEEDS = (0, 1, 2, 3, 4)
EXTRA_RETRAIN_SEEDS = (5, 6, 7, 8, 9)
REHEARSAL_SEEDS = (100, 101, 102)
"""Never reported."""
BUDGET = 25
SURVIVORS = 4
VALIDATION = 0.2
"""The share of the retained samples that trials are scored on."""
FOLDER = "tuned"
TUNING = 2
"""The schema of a tuning's file."""
TRIAL = 0.25
"""What a trial takes of a Retrain, on average: for estimates."""
SAMPLES_CAP = 10
"""Epochs of relearning for a random share: no model, Full included, gets there in 100, so it costs time and tells nothing."""


class Tuned(NamedTuple):
    """What is tuned: a method, options that every trial has, and the space where it is not the method's own.

    ``default``: the row with the defaults, None where only the tuned one is shown.
    """

    label: str
    method: str
    fixed: Mapping[str, Any] = {}
    grid: Mapping[str, Sequence[Any]] | None = None
    default: MethodRow | None = None

    @property
    def space(self) -> Mapping[str, Sequence[Any]]:
        """The values that are tried."""
        return METHODS[self.method].search_space if self.grid is None else self.grid


DAMPINGS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0)
PATH_ALL = MethodRow("path-replay, all", "path-replay", {"depth": "all"})
PATH_ROWS = (
    PATH_HEAD,
    MethodRow("path-replay, last block", "path-replay", {"depth": 1}),
    MethodRow("path-replay, last stage", "path-replay", {"depth": 3}),
    PATH_AUTO,
    PATH_ALL,
    PATH_BEST,
)
OWN = (
    Tuned("fast-ntk-ridge", "fast-ntk", {"form": "ridge"}, {"damping": DAMPINGS, "scale_fit": ("auto", "least-squares")}, RIDGE),
    Tuned("fast-ntk", "fast-ntk", {"form": "softmax"}, {"damping": DAMPINGS}, FAST_NTK),
    Tuned(
        "tangent-replay",
        "tangent-replay",
        {},
        {"path": ("auto", "tangent", "product", "curved"), "average": (1, 3, 5), "blend": ("auto", 0.0, 0.5)},
        REPLAY,
    ),
    Tuned(
        "path-replay, all",
        "path-replay",
        {"depth": "all"},
        {"checkpoints": (1, 2, 3), "correction": (0, 1, 2), "exact": (0, 1, 2)},
        PATH_ALL,
    ),
)
"""Ours, and the spaces they are tuned over. What only buys nearness by training longer (``polish``, more ``exact`` epochs) is not
in them, for the same reason that no baseline may retrain: at the end of that axis is Retrain itself."""
BASELINES = tuple(name for name, method in METHODS.items() if method.search_space)


def tuned_methods() -> tuple[Tuned, ...]:
    """All that is tuned, baselines first."""
    return (*(Tuned(name, name) for name in BASELINES), *OWN)


def comparison(out: Path) -> tuple[Setting, ...]:
    """A setting per request, with the options as tuned so far."""
    return tuple(
        replace(
            RESNET,
            name=setting_name(request),
            requests=(request,),
            seeds=SEEDS,
            extra_retrain_seeds=EXTRA_RETRAIN_SEEDS,
            methods=tuple(_rows(request, out)),
            relearn_cap=100 if request.kind == "class" else SAMPLES_CAP,
            evidence=True,
            timed=True,
        )
        for request in REQUESTS
    )


def setting_name(request: Request) -> str:
    """``compare-class-0``, ``compare-random``."""
    return f"compare-{request.name if request.kind == 'class' else request.kind}"


def _rows(request: Request, out: Path) -> list[MethodRow]:
    """Full, the tuned baselines, ours with their defaults and, where they differ, as tuned, and Retrain."""
    rows = [FULL]
    for each in tuned_methods():
        path = tuning_file(request, each.label, out)
        tuning = read_record(path, schema=TUNING) if path.exists() else None
        if each.default is None:
            rows += [MethodRow(each.label, each.method, tuning["options"])] if tuning else []
            continue
        rows += PATH_ROWS if each.default is PATH_ALL else [each.default]
        if tuning and tuning["options"] != tuning["trials"][0]["options"] and tuning["options"] != PATH_BEST.options:
            rows.append(MethodRow(f"{each.label}, tuned", each.method, tuning["options"]))
    return [*rows, RETRAIN]


def tuning_file(request: Request, label: str, out: Path) -> Path:
    """Where a tuning lies."""
    return out / FOLDER / request.name / f"{slug(label)}.json"


def untuned(request: Request, out: Path, *, keep_stale: bool = False) -> list[tuple[Tuned, str]]:
    """What is to be tuned, and why: missing, or made by other code or under another protocol."""
    reasons = [(each, _reason(each, tuning_file(request, each.label, out), keep_stale=keep_stale)) for each in tuned_methods()]
    return [(each, reason) for each, reason in reasons if reason is not None]


def _reason(tuned: Tuned, path: Path, *, keep_stale: bool) -> str | None:
    if not path.exists():
        return "missing"
    record = read_record(path, schema=TUNING)
    asked, answered = _asked(tuned), _answered(record)
    differing = [name for name, value in asked.items() if name in answered and answered[name] != value]
    if differing:
        return f"tuned under another protocol ({', '.join(differing)})"
    changed = () if keep_stale else changed_rooms(record.get("code"), code_of(tuned.method, rooms=UNLEARNING))
    return f"made by other code ({', '.join(changed)})" if changed else None


def _asked(tuned: Tuned) -> dict[str, Any]:
    """JSON-able: all that decides a tuning besides the request and the code."""
    asked = {
        "space": tuned.space,
        "fixed": tuned.fixed,
        "budget": BUDGET,
        "survivors": SURVIVORS,
        "seed": REHEARSAL_SEEDS[0],
        "seeds": REHEARSAL_SEEDS,
        "validation": VALIDATION,
        "training": RESNET.training_digest,
    }
    return dict(jsonable(asked))


def _answered(record: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a record. Older ones do not name the training, and of the survivors only who they were."""
    protocol = record["protocol"]
    answered = {name: record[name] for name in ("space", "fixed", "survivors", "training") if name in record}
    answered |= {name: protocol[name] for name in ("budget", "seed", "seeds")}
    # The defaults go on, too, where they are not among the best.
    count = len(protocol["survivors"])
    known = {} if "survivors" in record else {"survivors": SURVIVORS if count in (SURVIVORS, SURVIVORS + 1) else count}
    return answered | known | {"validation": protocol["validation"]["share"]}


def _jsonable_space(tuned: Tuned) -> dict[str, list[Any]]:
    return {name: list(values) for name, values in tuned.space.items()}


def tune(
    *,
    out: Path,
    work: Path,
    shared: Path,
    settings: Sequence[str] | None = None,
    keep_stale: bool = False,
    only_plan: bool = False,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:
    """Tune every method on every request (of these settings); what is there and fresh is not made again."""
    setting = replace(RESNET, seeds=REHEARSAL_SEEDS[:1], methods=(PATH_ALL,), name="compare-tuning")
    experiment: Experiment | None = None
    for request in REQUESTS:
        if settings and setting_name(request) not in settings:
            continue
        todo = untuned(request, out, keep_stale=keep_stale)
        minutes = len(todo) * trial_count() * TRIAL * costs.training_seconds(setting) / 60
        say(f"{setting_name(request)}: {len(todo)} of {len(tuned_methods())} methods to tune; about {minutes:.0f} min (rough)")
        if todo and not only_plan:
            experiment = experiment or open_experiment(setting, shared=shared, work=work, keep_stale=keep_stale)
            _tune_request(experiment, request, todo, out=out, say=say)


def trial_count() -> int:
    """Unlearnings that the tuning of one method takes at most."""
    return BUDGET + (SURVIVORS + 1) * (len(REHEARSAL_SEEDS) - 1)


def _tune_request(
    experiment: Experiment, request: Request, todo: Sequence[tuple[Tuned, str]], *, out: Path, say: Callable[[str], None]
) -> None:
    name = setting_name(request)
    run = experiment.run(REHEARSAL_SEEDS[0], traced=True)
    ids = request.ids(experiment.samples)
    say(f"{name}: {2 * len(REHEARSAL_SEEDS)} rehearsal trainings …")
    rehearsal = rehearse(run, ids=ids, validation=VALIDATION, seed=REHEARSAL_SEEDS[0], seeds=REHEARSAL_SEEDS)
    say(f"{name}: rehearsal {rehearsal.seconds:.0f} s, spread {rehearsal.spread:.4f}")
    started = time.perf_counter()
    for count, (tuned, reason) in enumerate(todo, 1):
        record = _tuning(run, tuned, ids, rehearsal)
        code = vouched(code_of(tuned.method, rooms=UNLEARNING), keep_stale=experiment.keep_stale)
        write_record(tuning_file(request, tuned.label, out), {"request": request.name} | code | record)
        left = (time.perf_counter() - started) / count * (len(todo) - count)
        best = next(trial["score"] for trial in record["trials"] if trial["options"] == record["options"])
        say(f"[{count}/{len(todo)}] {name} · {tuned.label} ({reason}): {best:.4f}; about {left / 60:.0f} min of tuning left")


def _tuning(run: Any, tuned: Tuned, ids: Sequence[str], rehearsal: Rehearsal) -> dict[str, Any]:
    result = tune_baseline(
        run,
        tuned.method,
        ids=ids,
        budget=BUDGET,
        survivors=SURVIVORS,
        seed=REHEARSAL_SEEDS[0],
        grid=tuned.grid,
        fixed=tuned.fixed,
        rehearsal=rehearsal,
    )
    head = {"schema": TUNING, "label": tuned.label, "fixed": dict(tuned.fixed), "space": _jsonable_space(tuned)}
    head |= {"survivors": SURVIVORS, "training": RESNET.training_digest}
    return head | result.to_dict() | {"environment": environment()}
