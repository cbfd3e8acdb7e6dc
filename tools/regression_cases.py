"""Small fixed cases of fit, unlearn, audit and what is saved, as vectors and figures: the material of ``tools/regression.py``.

A case is a name and a function without arguments that returns an :class:`Outcome`: named vectors, and figures that JSON can hold.
Only public names of ``fastntk`` are used, so the same file runs on any layout of the package. Times, dates, memory, folders
and versions are left out of the figures. Cases named ``tiny64/…`` are in float64, take seconds, and are the ones whose
values are committed in ``tests/regression/expected.json``. Not a test of correctness: it only says that nothing moved.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.util
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fastntk

CLASS_REQUEST: dict[str, Any] = {"classes": [1]}
IDS_REQUEST: dict[str, Any] = {"ids": ["3", "10", "17", "20", "31"]}
REQUESTS = {"class": CLASS_REQUEST, "ids": IDS_REQUEST}

METHODS: dict[str, dict[str, Any]] = {
    "fast-ntk": {"method": "fast-ntk"},
    "fast-ntk form=ridge": {"method": "fast-ntk", "form": "ridge"},
    "fast-ntk solver=primal": {"method": "fast-ntk", "form": "ridge", "solver": "primal"},
    "fast-ntk solver=dual": {"method": "fast-ntk", "form": "ridge", "solver": "dual"},
    "fast-ntk solver=matrix-free": {"method": "fast-ntk", "form": "ridge", "solver": "matrix-free"},
    "fast-ntk damping scale": {"method": "fast-ntk", "damping": 1e-2, "scale": 2.0},
    "fast-ntk rows=stream": {"method": "fast-ntk", "rows": "stream"},
    "fast-ntk at=anchor": {"method": "fast-ntk", "at": "anchor"},
    "tangent-replay": {"method": "tangent-replay"},
    "tangent-replay path=tangent": {"method": "tangent-replay", "path": "tangent"},
    "tangent-replay path=product": {"method": "tangent-replay", "path": "product"},
    "tangent-replay path=curved": {"method": "tangent-replay", "path": "curved"},
    "tangent-replay polish=1": {"method": "tangent-replay", "polish": 1},
    "tangent-replay average=1 blend=0": {"method": "tangent-replay", "average": 1, "blend": 0.0},
    "tangent-replay average=3 blend=0.5": {"method": "tangent-replay", "average": 3, "blend": 0.5},
    "tangent-replay at=midpoint": {"method": "tangent-replay", "at": "midpoint"},
    "retrain": {"method": "retrain"},
    "retrain seed=5": {"method": "retrain", "seed": 5},
    "full": {"method": "full"},
    "max-loss": {"method": "max-loss", "lr": 1e-3, "epochs": 2},
    "max-loss until forgotten": {"method": "max-loss", "lr": 1e-3},
    "random-label": {"method": "random-label", "lr": 1e-3, "epochs": 2},
    "fine-tune": {"method": "fine-tune", "lr": 1e-2},
    "neggrad+": {"method": "neggrad+", "epochs": 2},
    "scrub": {"method": "scrub", "temperature": 1.0},
    "ssd": {"method": "ssd", "alpha": 1.5},
    "ssd towards=anchor": {"method": "ssd", "alpha": 1.5, "towards": "anchor"},
    "salun": {"method": "salun"},
    "fisher": {"method": "fisher"},
}
"""Every method, given by name: what no name chooses may change."""

LEFT_OUT = {
    "seconds",
    "peak_memory_bytes",
    "created",
    "environment",
    "fastntk",
    "cost",
    "folder",
    "cache",
    "estimated_seconds",
    "rehearsal_seconds",
    "definitions",
}
"""Keys of records that hold times, dates, memory, places, versions or texts about figures."""

TIMED = "It took "
"""Begins the sentence of a verdict that tells times."""


@dataclass(frozen=True)
class Outcome:
    """What a case gave: vectors by name, and JSON-able figures."""

    vectors: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


Case = Callable[[], Outcome]


class TinyNet(nn.Module):
    """Two convolutions with BatchNorm and a linear head: every kind of row the engine knows, in under 300 parameters tuned."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (n, C) of images (n, 3, h, w)."""
        hidden = torch.relu(self.bn1(self.conv1(inputs)))
        hidden = torch.relu(self.bn2(self.conv2(hidden)))
        logits: Tensor = self.head(hidden.mean((2, 3)))
        return logits


def tiny_model(dtype: torch.dtype) -> nn.Module:
    """A TinyNet with drawn weights and statistics that are not 0 and 1."""
    generator = torch.Generator().manual_seed(11)
    model = TinyNet().to(dtype).eval()
    with torch.no_grad():
        for name, value in sorted(model.state_dict().items()):
            if value.is_floating_point():
                noise = 0.3 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
                centre = 1.0 if name.endswith(("running_var", "bn1.weight", "bn2.weight")) else 0.0
                value.copy_((centre + (0.5 * noise if centre else noise)).to(dtype))
                if name.endswith("running_var"):
                    value.clamp_(min=0.2)
    return model


def tiny_samples(dtype: torch.dtype, *, count: int = 48, side: int = 8, seed: int = 0) -> fastntk.Samples:
    """Noise around one pattern a class; the same patterns for every seed, so that another seed is a hold-out set."""
    patterns = torch.randn(4, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    generator = torch.Generator().manual_seed(100 + seed)
    labels = torch.arange(count) % 4
    noise = torch.randn(count, 3, side, side, generator=generator, dtype=torch.float64)
    return fastntk.Samples((0.6 * patterns[labels] + noise).to(dtype), labels, classes=["ant", "bee", "cat", "dog"])


RECIPE = fastntk.Recipe(epochs=4, lr=1e-2, batch_size=16, seed=3)


@functools.cache
def tiny_run(dtype: torch.dtype, recipe: fastntk.Recipe = RECIPE, tuned: str = "norm+head") -> fastntk.Run:
    """A TinyNet fine-tuned on 48 images."""
    model = tiny_model(dtype)
    return fastntk.fit(model, fastntk.tune(model, tuned), tiny_samples(dtype), recipe)


@functools.cache
def digits(part: str) -> fastntk.Samples:
    """A few digits a class, as the embedded resnet20 takes them."""
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    return fastntk.load_source(f"digits@{part}", spec=fastntk.input_spec(model), images_per_class=6)


@functools.cache
def resnet_run() -> fastntk.Run:
    """The embedded resnet20 fine-tuned on 60 digits for 2 epochs."""
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    recipe = fastntk.Recipe(epochs=2, lr=5e-3, batch_size=20, seed=1)
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), digits("train"), recipe)


@functools.cache
def vit_run() -> fastntk.Run:
    """A small timm ViT with prompts, weights drawn here."""
    torch.manual_seed(4)
    model = fastntk.build_model("timm:test_vit", num_classes=4, image_size=32)
    subset = fastntk.tune(model, "prompts+head", prompt_length=4, prompt_blocks=2, seed=2)
    return fastntk.fit(model, subset, tiny_samples(torch.float32, count=40, side=32), RECIPE)


def plain(value: Any) -> Any:
    """The JSON-able part of a record that depends on nothing but the inputs: without :data:`LEFT_OUT`, and no NaN."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if key not in LEFT_OUT}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and TIMED in value:
        return "a sentence on time"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def outcome_of(result: fastntk.Unlearned) -> Outcome:
    """The new tuned vector, the change, the logits of all samples, and the details."""
    vectors = {
        "tuned": result.subset.get(),
        "delta": result.delta,
        "logits": fastntk.predict(result.model, result.run.data.inputs).flatten(),
    }
    buffers = [value.double().flatten() for value in result.model.buffers() if value.is_floating_point()]
    return Outcome(vectors | ({"buffers": torch.cat(buffers)} if buffers else {}), plain(result.details))


def fitted(run: fastntk.Run) -> Outcome:
    """A run: the tuned vector, the anchor, the logits, and the history."""
    logits = fastntk.predict(run.model, run.data.inputs).flatten()
    history = plain(list(run.history))
    facts = {"history": history, "numel": run.subset.numel, "ratio": run.subset.ratio, "data": run.data.digest()}
    return Outcome({"tuned": run.subset.get(), "anchor": run.anchor, "logits": logits}, facts)


def fitted_by(run: Callable[[], fastntk.Run]) -> Outcome:
    """A run that is made when the case is run."""
    return fitted(run())


def unlearned(run: Callable[[], fastntk.Run], request: Mapping[str, Any], options: Mapping[str, Any]) -> Outcome:
    """One request, one method."""
    return outcome_of(fastntk.unlearn(run(), **request, **options))


def chained(run: Callable[[], fastntk.Run], options: Mapping[str, Any], *, shared: bool) -> Outcome:
    """A class, then ids, then further ids; with one linearisation handed in, or each request's own."""
    origin = run()
    extra: dict[str, Any] = {"linearisation": fastntk.linearise_run(origin)} if shared else {}
    first = fastntk.unlearn(origin, classes=[1], **options, **extra)
    second = fastntk.unlearn(first, ids=["2", "8"], **options, **extra)
    third = fastntk.unlearn(second, ids=["15"], **options, **extra)
    steps = {"first": first.subset.get(), "second": second.subset.get()}
    last = outcome_of(third)
    return Outcome(steps | last.vectors, last.figures)


def on_disk(run: Callable[[], fastntk.Run], options: Mapping[str, Any]) -> Outcome:
    """Rows in a folder: made there, then read again by a second request."""
    with tempfile.TemporaryDirectory() as folder:
        first = fastntk.unlearn(run(), classes=[1], folder=Path(folder) / "rows", **options)
        second = fastntk.unlearn(run(), ids=["2", "8"], folder=Path(folder) / "rows", **options)
        outcome = outcome_of(first)
        vectors = outcome.vectors | {"second": second.subset.get()}
        return Outcome(vectors, {name: item for name, item in outcome.figures.items() if name != "options"})


def saved(run: Callable[[], fastntk.Run], *, rebuilt: bool) -> Outcome:
    """A run and a result written and read again; ``rebuilt``: the package builds the model itself."""
    origin = run()
    with tempfile.TemporaryDirectory() as folder:
        origin.save(Path(folder) / "run")
        model = {} if rebuilt else {"model": TinyNet().to(origin.anchor.dtype)}
        again = fastntk.Run.load(Path(folder) / "run", samples=origin.data, **model)
        result = fastntk.unlearn(again, classes=[1], method="fast-ntk")
        fastntk.save_result(result, Path(folder) / "result")
        loaded = fastntk.load_result(Path(folder) / "result", again)
        other = next(name for name, label in zip(origin.data.ids, origin.data.labels.tolist()) if label != 1)
        more = fastntk.unlearn(loaded, ids=[other], method="fast-ntk")
        vectors = {"run": again.subset.get(), "anchor": again.anchor, "result": loaded.subset.get(), "more": more.subset.get()}
        same = bool(torch.equal(loaded.subset.get(), result.subset.get()) and torch.equal(again.anchor, origin.anchor))
        recipe = None if again.recipe is None else again.recipe.to_dict()
        return Outcome(vectors, {"same_after_loading": same, "recipe": recipe, "history": plain(list(again.history))})


def audited(
    run: Callable[[], fastntk.Run], holdout: Callable[[], fastntk.Samples], options: Mapping[str, Any], **audit_options: Any
) -> Outcome:
    """The record of an audit, without times, dates and versions."""
    origin = run()
    result = fastntk.unlearn(origin, classes=[1], **options)
    with tempfile.TemporaryDirectory() as folder:
        record = fastntk.audit(origin, result, holdout=holdout(), cache=folder, **audit_options)
    return Outcome({"tuned": result.subset.get()}, plain(record))


def tuned_baseline(run: Callable[[], fastntk.Run], method: str) -> Outcome:
    """The options that three trials choose."""
    return Outcome({}, plain(fastntk.tune_baseline(run(), method, classes=[1], budget=3, seed=2).to_dict()))


def rows(run: Callable[[], fastntk.Run]) -> Outcome:
    """The Jacobian of the first samples, whole and in chunks."""
    origin = run()
    inputs = origin.data.inputs[:5]
    whole = fastntk.jacobian(origin.model, origin.subset, inputs)
    parts = fastntk.jacobian(origin.model, origin.subset, inputs, chunk=2)
    return Outcome({"whole": whole.flatten(), "chunks": parts.flatten()}, {"shape": list(whole.shape)})


def by_hand(dtype: torch.dtype) -> fastntk.Run:
    """A run made elsewhere: no recipe, so that fast-ntk has to choose its form."""
    origin = tiny_run(dtype)
    return fastntk.Run(origin.model, origin.subset, origin.anchor, origin.data)


def all_cases() -> dict[str, Case]:
    """Every case by name, the cheap ones first."""
    return dict([*tiny_cases("tiny64", torch.float64), *tiny_cases("tiny32", torch.float32), *resnet_cases(), *vit_cases()])


QUICK = (
    "fit",
    "jacobian",
    "class/*",
    "ids/fast-ntk",
    "ids/fast-ntk form=ridge",
    "ids/tangent-replay",
    "ids/retrain",
    "empty/*",
    "chained/*",
    "rows on disk/*",
    "audit/tangent-replay",
    "saved",
    "no recipe/*",
    "squared/*",
    "sgd/*",
    "bn update/*",
)


def quick_cases() -> dict[str, Case]:
    """The cases in float64 whose values are committed: a few seconds, and nothing that rounding could tip over."""
    cases = dict(tiny_cases("tiny64", torch.float64))
    return {name: case for name, case in cases.items() if any(fnmatch.fnmatchcase(name, f"tiny64/{part}") for part in QUICK)}


def tiny_cases(room: str, dtype: torch.dtype) -> Iterator[tuple[str, Case]]:
    """Everything, on a model of which a case takes a fraction of a second."""
    run = functools.partial(tiny_run, dtype)
    holdout = functools.partial(tiny_samples, dtype, count=40, seed=1)
    yield f"{room}/fit", functools.partial(fitted_by, run)
    yield f"{room}/jacobian", lambda: rows(run)
    for request, forget in REQUESTS.items():
        for title, options in METHODS.items():
            yield f"{room}/{request}/{title}", functools.partial(unlearned, run, forget, options)
    for title in ("fast-ntk", "tangent-replay", "fine-tune"):
        yield f"{room}/empty/{title}", functools.partial(unlearned, run, {"ids": []}, METHODS[title])
    for title in ("fast-ntk", "fast-ntk form=ridge", "tangent-replay", "retrain"):
        for shared in (False, True):
            name = f"{room}/chained/{title}{' shared linearisation' if shared else ''}"
            yield name, functools.partial(chained, run, METHODS[title], shared=shared)
    for title in ("fast-ntk", "tangent-replay"):
        yield f"{room}/rows on disk/{title}", functools.partial(on_disk, run, METHODS[title])
        audit_options = {"reference": "retrain", "relearn_cap": 5, "require": ["forget_accuracy<=retrain+1"]}
        yield f"{room}/audit/{title}", functools.partial(audited, run, holdout, METHODS[title], **audit_options)
    yield f"{room}/audit/no reference", functools.partial(audited, run, holdout, METHODS["ssd"], relearn_cap=2)
    for kind in ("real", "tangent"):
        audit_options = {"ensemble": 8, "ensemble_kind": kind, "probes": False, "relearn_cap": 1}
        yield f"{room}/audit/ensemble {kind}", functools.partial(audited, run, holdout, METHODS["fast-ntk"], **audit_options)
    for method in ("fine-tune", "ssd"):
        yield f"{room}/tune_baseline/{method}", functools.partial(tuned_baseline, run, method)
    yield f"{room}/saved", functools.partial(saved, run, rebuilt=False)
    yield f"{room}/no recipe/fast-ntk", lambda: unlearned(lambda: by_hand(dtype), CLASS_REQUEST, METHODS["fast-ntk"])
    yield from recipe_cases(room, dtype)


def recipe_cases(room: str, dtype: torch.dtype) -> Iterator[tuple[str, Case]]:
    """Other recipes: the squared loss, SGD, batch statistics, one that no linear model follows; and all parameters tuned."""
    recipes = {
        "squared": fastntk.Recipe(epochs=4, lr=1e-2, batch_size=16, loss="squared", schedule="linear"),
        "sgd": fastntk.Recipe(epochs=3, lr=5e-2, batch_size=16, optimizer="sgd", schedule="constant"),
        "steep": fastntk.Recipe(epochs=12, lr=8e-2, batch_size=16),
        "bn update": fastntk.Recipe(epochs=3, lr=1e-2, batch_size=16, bn_stats="update"),
    }
    for name, recipe in recipes.items():
        run = functools.partial(tiny_run, dtype, recipe)
        yield f"{room}/{name}/fit", functools.partial(fitted_by, run)
        for title in ("fast-ntk", "tangent-replay", "retrain"):
            yield f"{room}/{name}/{title}", functools.partial(unlearned, run, CLASS_REQUEST, METHODS[title])
    run = functools.partial(tiny_run, dtype, RECIPE, "all")
    for title in ("fast-ntk", "tangent-replay"):
        yield f"{room}/all tuned/{title}", functools.partial(unlearned, run, CLASS_REQUEST, METHODS[title])


def resnet_cases() -> Iterator[tuple[str, Case]]:
    """The embedded network on digits: real layers, channels-last memory, 1 400 tuned parameters."""
    yield "resnet20/fit", functools.partial(fitted_by, resnet_run)
    yield "resnet20/jacobian", lambda: rows(resnet_run)
    for title in ("fast-ntk", "fast-ntk solver=dual", "tangent-replay", "tangent-replay polish=1", "retrain", "scrub", "fisher"):
        yield f"resnet20/class/{title}", functools.partial(unlearned, resnet_run, CLASS_REQUEST, METHODS[title])
    for title in ("fast-ntk", "tangent-replay"):
        yield f"resnet20/ids/{title}", functools.partial(some_digits_unlearned, METHODS[title])
    yield "resnet20/saved", functools.partial(saved, resnet_run, rebuilt=True)
    audit_options = {"reference": "retrain", "relearn_cap": 2}
    options = METHODS["tangent-replay"]
    yield "resnet20/audit", functools.partial(audited, resnet_run, lambda: digits("test"), options, **audit_options)


def some_digits_unlearned(options: Mapping[str, Any]) -> Outcome:
    """Five digits forgotten, named as the source names them."""
    ids = digits("train").ids
    return unlearned(resnet_run, {"ids": [ids[position] for position in (1, 12, 23, 34, 45)]}, options)


def vit_cases() -> Iterator[tuple[str, Case]]:
    """Prompts in a ViT; absent where timm is not installed, which the comparison then reports."""
    if importlib.util.find_spec("timm") is None:
        return
    yield "vit/fit", functools.partial(fitted_by, vit_run)
    yield "vit/jacobian", lambda: rows(vit_run)
    for title in ("fast-ntk", "tangent-replay", "retrain", "neggrad+", "ssd"):
        for request, forget in REQUESTS.items():
            yield f"vit/{request}/{title}", functools.partial(unlearned, vit_run, forget, METHODS[title])
