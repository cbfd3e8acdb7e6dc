"""What a recorded fine-tuning costs: the time it adds, the bytes it takes, and the replay of a trace larger than memory allows.

Recording: fits with and without a trace take turns, in changing order; the figure is the median over rounds of the ratio within a
round, in CPU seconds (wall seconds are recorded too). Sizes: by formula, for the settings of docs/results-path.md; the traces of
the timed fits are compared with it. The large trace is synthetic (random features in half precision, on disk, no network): its
head is replayed without 100 samples in a process of its own. Removals: many requests of one sample in one vectorised call,
against one by one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fastntk
from benchmarks.common import SHARED, PeakMemory, child, markdown, timed
from fastntk.base.text import byte_size, duration
from fastntk.data import Samples, load_source
from fastntk.models import input_spec
from fastntk.training.optimizers import Group, Span
from fastntk.training.recording import trace_size
from fastntk.training.trace import Trace, TraceFacts
from fastntk.training.trace_folder import read_trace, seal_trace
from fastntk.training.trace_writer import TraceWriter
from fastntk.tuning import Subset
from fastntk.unlearning.path_replay.replay import replay

SLOWDOWN_WANTED = 1.05
MEMORY_WANTED = 2e9
SPEEDUP_WANTED = 5.0
LONGEST = 240.0
"""Seconds of a whole replay above which only ``SHARE`` of its steps are walked, and the rest is proportional."""
SHARE = 0.02
FORGOTTEN = 100
IMAGENET = {"samples": 1_280_000, "epochs": 10, "features": 384, "classes": 1000}

Built = tuple[Subset, Samples, fastntk.Recipe]


def run(*, quick: bool) -> dict[str, Any]:
    return {
        "slowdown": [slowdown(title, build, repeats=1 if quick else 11) for title, build in cases(quick=quick).items()],
        "sizes": [] if quick else sizes(),
        "large": large(quick=quick),
        "removals": removals(quick=quick),
    }


# --- what recording costs


def cases(*, quick: bool) -> dict[str, Callable[[], Built]]:
    return {
        "ResNet-20, norm+head, 100 images a class, 3 epochs": lambda: _resnet20(2 if quick else 100, 1 if quick else 3),
        "ViT-S/14 at 56 px, prompts+head, 8 images a class, 1 epoch": lambda: _vit_small(1 if quick else 8),
    }


def _resnet20(images: int, epochs: int) -> Built:
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    samples = load_source(f"{SHARED}/data/cifar10-5k.npz@train", spec=input_spec(model), images_per_class=images)
    return fastntk.tune(model, "norm+head"), samples, fastntk.Recipe(epochs=epochs)


def _vit_small(images: int) -> Built:
    weights = SHARED / "weights" / "vit_small_patch14_dinov2.safetensors"
    model = fastntk.build_model("timm:vit_small_patch14_dinov2", num_classes=20, image_size=56, weights=weights)
    spec = input_spec(model)
    samples = load_source(f"{SHARED}/data/caltech50@train", spec=spec, images_per_class=images, only_classes=20)
    return fastntk.tune(model, "prompts+head"), samples, fastntk.Recipe(epochs=1, lr=5e-3, batch_size=32, weight_decay=1e-4)


def slowdown(title: str, build: Callable[[], Built], *, repeats: int) -> dict[str, Any]:
    """Seconds of a fit, plain and recorded, and the size of what was recorded."""
    subset, samples, recipe = build()
    anchor = subset.get()
    rounds: list[dict[str, tuple[float, float]]] = []
    recorded: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="fastntk-trace-") as scratch:

        def fit(where: str, number: int) -> tuple[float, float]:
            subset.set(anchor)
            target = {"plain": None, "memory": True, "folder": Path(scratch) / str(number)}[where]
            cpu, wall = time.process_time(), time.perf_counter()
            trace = fastntk.fit(subset.model, subset, samples, recipe, trace=target).trace
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if trace is not None:
                recorded[where] = trace.nbytes
            return cpu, wall

        fit("plain", -1)  # what is done once only
        names = ["plain", "memory", "folder"]
        for number in range(repeats):
            order = names[number % 3 :] + names[: number % 3]
            rounds.append({where: fit(where, number) for where in order})
    ratios = {where: [tuple(a / b for a, b in zip(each[where], each["plain"])) for each in rounds] for where in names[1:]}
    return {
        "title": title,
        "repeats": repeats,
        "seconds": {where: statistics.median(each[where][0] for each in rounds) for where in names},
        "ratio": {where: statistics.median(cpu for cpu, _ in values) for where, values in ratios.items()},
        "wall_ratio": {where: statistics.median(wall for _, wall in values) for where, values in ratios.items()},
        "ratios": {where: [cpu for cpu, _ in values] for where, values in ratios.items()},
        "recorded_bytes": recorded["folder"],
        "expected_bytes": trace_size(subset, samples, recipe)["nbytes"],
    }


def sizes() -> list[dict[str, Any]]:
    """The trace of every setting of the path experiment, by formula."""
    from lab.settings import PATH

    from fastntk.reproduce.experiment import open_experiment

    entries = []
    for setting in PATH:
        experiment = open_experiment(setting, shared=SHARED, work=Path("unused"))
        size = trace_size(experiment.subset, experiment.samples, setting.recipe)
        visits = setting.recipe.epochs * len(experiment.samples)
        entries.append({"setting": setting.name, "visits": visits, "tuned": experiment.subset.numel, **size})
    return entries


# --- a trace larger than memory allows


def large(*, quick: bool) -> dict[str, Any]:
    """The head of a synthetic trace, replayed without a few samples in a process of its own."""
    size = (
        {"samples": 2000, "epochs": 2, "features": 32, "classes": 10} if quick else {**IMAGENET, "samples": 100_000, "epochs": 20}
    )
    batch = 256
    with tempfile.TemporaryDirectory(prefix="fastntk-trace-") as scratch:
        folder = Path(scratch)
        writing = timed(lambda: synthetic_trace(folder, **size, batch=batch))
        nbytes = sum(path.stat().st_size for path in folder.iterdir())
        measured = child("benchmarks.trace", folder, FORGOTTEN)
    per_visit = measured["seconds"] / measured["visits"]
    visits = IMAGENET["samples"] * IMAGENET["epochs"]
    return {
        **size,
        "batch": batch,
        "bytes": nbytes,
        "writing_seconds": writing,
        **measured,
        "whole_seconds": per_visit * size["samples"] * size["epochs"],
        "below_limit": measured["peak_bytes"] < MEMORY_WANTED,
        "imagenet": {
            **IMAGENET,
            "bytes": visits * (2 * IMAGENET["features"] + 4),
            "hours": per_visit * visits / 3600,
            "writing_hours": writing / (size["samples"] * size["epochs"]) * visits / 3600,
        },
    }


def synthetic_trace(folder: Path, *, samples: int, epochs: int, features: int, classes: int, batch: int) -> None:
    """A trace of random features in half precision in an empty folder; features of a class lie around a point of their own."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % classes
    centres = torch.randn(classes, features, generator=generator)
    writer = TraceWriter(features=features, body=0, width=0, dtype=torch.float32, half=True, gradients=False, folder=folder)
    steps = epochs * math.ceil(samples / batch)
    step = 0
    for _ in range(epochs):
        writer.epoch(torch.empty(0))
        for visited in torch.randperm(samples, generator=generator).split(batch):
            seen = centres[labels[visited]] + torch.randn(len(visited), features, generator=generator)
            writer.step(visited, seen, None, rate=2e-3 * 0.5 * (1 + math.cos(math.pi * step / steps)))
            step += 1
    writer.epoch(torch.empty(0))
    facts = TraceFacts(
        classes=classes,
        features=features,
        head_weight="head.weight",
        head_bias="head.bias",
        body=(),
        left=(),
        optimizer="Adam",
        groups=(Group(("head.weight", "head.bias"), {}),),
        penalty=1e-3,
        loss="cross-entropy",
        anchor="synthetic",
        trained="synthetic",
    )
    trace, digests = writer.finish(facts, Samples(torch.empty(samples, 0), labels))
    seal_trace(trace, folder, digests)


def replayed_head(folder: Path, forgotten: int) -> dict[str, Any]:
    """Replay the head of a trace without ``forgotten`` samples; of a long one the first steps only. JSON-able."""
    trace = read_trace(folder, verify=False)
    keep = torch.ones(1, len(trace.listed), dtype=torch.bool)
    keep[0, torch.linspace(0, len(trace.listed) - 1, forgotten).long()] = False
    classes, width = trace.facts.classes, trace.facts.features
    anchor = {"head": torch.zeros(classes, width), "bias": torch.zeros(classes)}
    size = classes * width
    spans = [Span("head.weight", 0, size, (classes, width)), Span("head.bias", size, size + classes, (classes,))]

    def walk(part: Trace) -> float:
        return timed(lambda: replay(part, anchor, keep, spans=spans))

    # Not ru_maxrss: a child inherits its parent's, and the parent wrote the trace.
    with PeakMemory() as memory:
        part = first_steps(trace, max(1, round(SHARE * trace.steps)))
        seconds = walk(part)
        if seconds / part.visits * trace.visits <= LONGEST:
            part, seconds = trace, walk(trace)
    counts = {"forgotten": forgotten, "visits": part.visits, "steps": part.steps}
    return counts | {"seconds": seconds, "peak_bytes": memory.peak, "growth_bytes": memory.growth}


def first_steps(trace: Trace, steps: int) -> Trace:
    """The beginning of a trace, as one epoch: to be timed, not to be believed."""
    visits = int(trace.bounds[steps])
    return dataclasses.replace(
        trace,
        bounds=trace.bounds[: steps + 1],
        rates=trace.rates[:steps],
        clips=trace.clips[:steps],
        epoch_steps=torch.tensor([0, steps]),
        samples=dataclasses.replace(trace.samples, length=visits),
        features=dataclasses.replace(trace.features, length=visits),
    )


# --- many small requests at once


def removals(*, quick: bool) -> dict[str, Any]:
    """Requests of one sample each: all in one call, and some of them one by one."""
    count, single = (4, 2) if quick else (200, 20)
    subset, samples, recipe = _resnet20(2 if quick else 100, 1 if quick else 20)
    origin = fastntk.fit(subset.model, subset, samples, recipe, trace=True)
    places = torch.linspace(0, len(samples) - 1, count).long().tolist()
    groups = [[samples.ids[place]] for place in places]
    fastntk.unlearn(origin, ids=groups[0], method="path-replay", depth="head")  # what is done once only
    together = timed(lambda: fastntk.removals(origin, groups))

    def one_by_one() -> None:
        for group in groups[:: max(1, count // single)][:single]:
            fastntk.unlearn(origin, ids=group, method="path-replay", depth="head")

    alone = timed(one_by_one) / single * count
    return {"groups": count, "timed_alone": single, "together": together, "one_by_one": alone, "ratio": alone / together}


# --- tables


def table(result: dict[str, Any]) -> str:
    return "\n\n".join([_slowdown_table(result), _sizes_table(result["sizes"]), _large_table(result["large"]), _removals(result)])


def _slowdown_table(result: dict[str, Any]) -> str:
    lines = [
        [
            case["title"],
            f"{case['seconds']['plain']:.2f}",
            *(f"{case['ratio'][where]:.3f} ({min(each):.3f} to {max(each):.3f})" for where, each in case["ratios"].items()),
            byte_size(case["recorded_bytes"]),
            f"{case['recorded_bytes'] / case['expected_bytes']:.3f}",
        ]
        for case in result["slowdown"]
    ]
    head = ["fit", "plain, CPU seconds", "× with a trace in memory", "× in a folder", "trace", "over the formula"]
    return markdown(head, lines) + f"\n\nWanted: at most {SLOWDOWN_WANTED}. Median (range) of ratios within a round, CPU seconds."


def _sizes_table(entries: list[dict[str, Any]]) -> str:
    lines = [
        [
            entry["setting"],
            f"{entry['visits']:,}",
            f"{entry['tuned']:,}",
            "half" if entry["half"] else "single",
            "yes" if entry["gradients"] else "no",
            entry["size"],
        ]
        for entry in entries
    ]
    return markdown(["setting", "visits", "tuned", "features in precision", "body's path", "trace"], lines)


def _large_table(large: dict[str, Any]) -> str:
    whole = large["visits"] == large["samples"] * large["epochs"]
    how = "all steps" if whole else f"from {large['steps']} steps, proportional"
    title = f"{large['samples']:,} samples × {large['epochs']} epochs × {large['features']} features, {large['classes']} classes"
    imagenet = large["imagenet"]
    per_visit = 1e6 * large["seconds"] / large["visits"]
    lines = [
        ["trace on disk", byte_size(large["bytes"]), f"half precision, batches of {large['batch']}, random features"],
        ["peak memory of the process", byte_size(large["peak_bytes"]), f"wanted below {byte_size(int(MEMORY_WANTED))}"],
        [
            "head replayed without " + str(large["forgotten"]),
            duration(large["whole_seconds"]),
            f"{how}; {per_visit:.0f} µs a visit",
        ],
        [
            f"ImageNet, {imagenet['epochs']} epochs, by these rates",
            duration(3600 * imagenet["hours"]),
            f"{byte_size(imagenet['bytes'])} on disk",
        ],
    ]
    return markdown([title, "", ""], lines)


def _removals(result: dict[str, Any]) -> str:
    part = result["removals"]
    return (
        f"{part['groups']} removals of one image (ResNet-20, depth head): {part['together']:.1f} s in one call, "
        f"{part['one_by_one']:.1f} s one by one (from {part['timed_alone']}): {part['ratio']:.1f} times cheaper "
        f"(wanted: at least {SPEEDUP_WANTED:g})."
    )


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    print(json.dumps(replayed_head(Path(sys.argv[1]), int(sys.argv[2]))))
