"""Traces in the folders of runs and results: what comes back is what was saved, what does not belong is refused, and a result is
the run of the next request, with or without images.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import fastntk
from fastntk.base.digest import tensor_digest
from fastntk.base.errors import InputError
from fastntk.data import ForgetRequest
from fastntk.models.card import input_spec
from fastntk.storage.data import DataGoneError, source_samples
from fastntk.storage.manifest import MANIFEST, SEAL, read_manifest, seal
from fastntk.storage.results import load_result, save_result
from fastntk.storage.runs import load_run, save_run
from fastntk.training.network import working_copy
from fastntk.training.trace import Trace
from fastntk.training.trace_folder import HEADER, LISTED
from fastntk.training.trace_writer import TraceWriter, without_images
from fastntk.unlearning.result import Unlearned

CLASSES = ["ape", "bee", "cat"]


class Net(nn.Module):
    """A body of one layer and a head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Linear(5, 4)
            self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(torch.tanh(self.body(x)))
        return out


def some_samples(*, names: bool = True) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(5)
    ids = [f"person-{i:03}" for i in range(12)]
    return fastntk.Samples(torch.randn(12, 5, generator=generator), torch.arange(12) % 3, ids, CLASSES if names else None)


def some_run(seed: int = 0, *, trace: bool | Path | None = True, names: bool = True) -> fastntk.Run:
    model = Net(seed)
    return fastntk.fit(
        model,
        fastntk.tune(model, "all"),
        some_samples(names=names),
        fastntk.Recipe(epochs=2, batch_size=5, seed=seed),
        trace=trace,
    )


def shortened(trace: Trace, keep: Tensor, trained: Tensor) -> Trace:
    """A trace of the retained samples' visits: what a method rewrites, without the arithmetic."""
    facts = dataclasses.replace(trace.facts, trained=tensor_digest(trained), requests=trace.facts.requests + 1)
    assert trace.gradients is not None
    writer = TraceWriter(
        features=facts.features,
        body=trace.gradients.shape[0],
        width=len(trained),
        dtype=trained.dtype,
        half=False,
        gradients=True,
    )
    number = torch.cumsum(keep.int(), 0) - 1
    starts = trace.epoch_steps.tolist()
    for step in range(trace.steps):
        if step in starts:
            writer.epoch(trained)
        start, stop = int(trace.bounds[step]), int(trace.bounds[step + 1])
        stay = keep[trace.visited[start:stop]]
        visits, features = trace.visited[start:stop][stay], trace.features.read(start, stop)[stay] + 0.25
        writer.step(number[visits], features, torch.ones(trace.gradients.shape[0]) * step, rate=float(trace.rates[step, 0]))
    writer.epoch(trained)
    return writer.finish(facts, without_images(trace.listed.subset(keep.nonzero().flatten())))[0]


def forget(run: fastntk.Run, *, traced: bool = True, **request: Any) -> Unlearned:
    """A result whose weights are the run's, a little shifted."""
    split = ForgetRequest(**request).resolve(run.listed)
    model = working_copy(run)
    run.subset.on(model).set(run.subset.get() + 0.01)
    new = run.subset.on(model).get()
    trace = shortened(run.trace, split.keep, new) if traced and run.trace is not None else None
    details = {"outside_subset": {"message": "x"}}
    return Unlearned(run, model, new - run.subset.get(), "path-replay", split, 0.1, details, trace=trace)


def same(one: Trace, other: Trace) -> bool:
    small = all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("bounds", "rates", "clips", "epoch_steps"))
    series = one.series.keys() == other.series.keys()
    series = series and all(torch.equal(part.to_memory(), other.series[name].to_memory()) for name, part in one.series.items())
    listed = (one.listed.ids, one.listed.classes, one.listed.num_classes) == (
        other.listed.ids,
        other.listed.classes,
        other.listed.num_classes,
    )
    return small and series and listed and one.facts == other.facts and one.summary() == other.summary()


@pytest.mark.parametrize("kept", ["memory", "disk"])
def test_a_trace_comes_back_and_stays_on_disk(kept: str, tmp_path: Path) -> None:
    run = some_run(trace=True if kept == "memory" else tmp_path / "recorded")
    save_run(run, tmp_path / "run")
    loaded = load_run(tmp_path / "run", samples=some_samples(), model=Net())
    assert run.trace is not None
    assert loaded.trace is not None
    assert same(run.trace, loaded.trace)
    assert all(isinstance(part.data, Path) for part in loaded.trace.series.values())
    manifest = read_manifest(tmp_path / "run")
    assert {key: value for key, value in manifest["trace"].items() if key != "sha256"} == run.trace.summary()
    save_run(loaded, tmp_path / "again")
    assert read_manifest(tmp_path / "again")["trace"] == manifest["trace"]


def test_a_taken_trace_is_moved_and_the_same(tmp_path: Path) -> None:
    run = some_run(trace=tmp_path / "recorded")
    memory = some_run(trace=True).trace
    save_run(run, tmp_path / "run", take_trace=True)
    loaded = load_run(tmp_path / "run", model=Net()).trace
    assert memory is not None
    assert loaded is not None
    assert same(memory, loaded)
    assert list((tmp_path / "recorded").iterdir()) == []


def test_runs_without_a_trace_and_those_of_0_1_load_as_before(tmp_path: Path) -> None:
    save_run(some_run(trace=None), tmp_path / "run")
    manifest = read_manifest(tmp_path / "run")
    assert manifest["trace"] is None
    assert not (tmp_path / "run" / "trace").exists()
    del manifest["trace"]
    manifest[SEAL] = seal(manifest)
    (tmp_path / "run" / MANIFEST).write_text(json.dumps(manifest))
    assert load_run(tmp_path / "run", samples=some_samples(), model=Net()).trace is None


def edit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def foreign(folder: Path) -> None:
    """Put the trace of another run in place."""
    save_run(some_run(seed=1), folder.parent / "other")
    shutil.rmtree(folder / "trace")
    shutil.copytree(folder.parent / "other" / "trace", folder / "trace")


def resealed_foreign(folder: Path) -> None:
    """The same, and somebody made the manifest agree with it."""
    foreign(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["trace"] = json.loads((folder.parent / "other" / MANIFEST).read_text())["trace"]
    manifest[SEAL] = seal(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another run's": (foreign, r"is not what this run was saved with: .* of another run"),
    "another run's, sealed": (resealed_foreign, r"does not belong to these weights"),
    "edited features": (lambda f: edit(f / "trace" / "features.bin"), r"features.bin was changed"),
    "edited list": (lambda f: edit(f / "trace" / LISTED), r"listed.json was changed"),
    "edited header": (lambda f: edit(f / "trace" / HEADER), r"is not what this run was saved with"),
    "truncated": (lambda f: os.truncate(f / "trace" / "gradients.bin", 8), r"gradients.bin has 8 bytes.*truncated"),
    "a file missing": (lambda f: (f / "trace" / "samples.bin").unlink(), r"samples.bin is missing"),
    "all missing": (lambda f: shutil.rmtree(f / "trace"), r"trace.json is missing: this run was saved with a trace"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_trace_that_does_not_belong_is_refused_with_the_reason(damage: str, tmp_path: Path) -> None:
    save_run(some_run(), tmp_path / "run")
    act, message = DAMAGE[damage]
    act(tmp_path / "run")
    with pytest.raises(InputError, match=message):
        load_run(tmp_path / "run", model=Net())
    assert load_run(tmp_path / "run", model=Net(), trace=False).trace is None


def test_a_run_without_its_samples_is_saved_again_as_it_was(tmp_path: Path) -> None:
    save_run(some_run(), tmp_path / "run")
    loaded = load_run(tmp_path / "run", model=Net())
    assert loaded.listed.ids == some_samples().ids
    save_run(loaded, tmp_path / "again")
    for part in ("data", "trace", "source", "recipe"):
        assert read_manifest(tmp_path / "again")[part] == read_manifest(tmp_path / "run")[part]
    assert load_run(tmp_path / "again", samples=some_samples(), model=Net()).data.digest() == some_samples().digest()


def test_a_run_that_never_had_samples_vouches_for_ids_only(tmp_path: Path) -> None:
    run = dataclasses.replace(some_run(), samples=None)
    save_run(run, tmp_path / "run")
    data = read_manifest(tmp_path / "run")["data"]
    assert data["digest"] is None
    assert data["shape"] is None
    load_run(tmp_path / "run", samples=some_samples(), model=Net())
    with pytest.raises(InputError, match="other ids"):
        load_run(
            tmp_path / "run", samples=fastntk.Samples(torch.zeros(12, 5), torch.arange(12) % 3, classes=CLASSES), model=Net()
        )
    result = forget(run, ids=["person-003"])
    save_result(result, tmp_path / "result")
    with_data = load_run(tmp_path / "run", samples=some_samples(), model=Net())
    for paired in (run, with_data):
        assert torch.equal(load_result(tmp_path / "result", paired).split.forget, result.split.forget)


@pytest.mark.parametrize("samples", [True, False], ids=["samples", "trace alone"])
@pytest.mark.parametrize("names", [True, False], ids=["named", "unnamed"])
def test_a_result_is_the_run_of_the_next_request(samples: bool, names: bool, tmp_path: Path) -> None:
    """The last class goes; labels, names and the number of classes are those of before, over two requests."""
    save_run(some_run(names=names), tmp_path / "run")
    data = some_samples(names=names)
    run = load_run(tmp_path / "run", samples=data if samples else None, model=Net())
    first = forget(run, classes=[2])
    save_result(first, tmp_path / "first")
    assert first.trace is not None
    paired = load_result(tmp_path / "first", run).trace
    assert paired is not None
    assert same(first.trace, paired)
    # Made anew, such samples of 2 classes know nothing of a third.
    rest = data.subset((data.labels != 2).nonzero().flatten())
    rest = fastntk.Samples(rest.inputs, rest.labels, rest.ids, rest.classes)
    shutil.rmtree(tmp_path / "run")
    second = fastntk.Run.load(tmp_path / "first", rest if samples else None, model=Net())
    assert second.trace is not None
    assert same(first.trace, second.trace)
    assert second.listed.ids == rest.ids
    assert torch.equal(second.listed.labels, rest.labels)
    assert second.listed.classes == (tuple(CLASSES) if names else None)
    assert second.listed.num_classes == 3
    save_result(forget(second, ids=["person-003"]), tmp_path / "second")
    third = load_run(tmp_path / "second", model=Net())
    assert third.listed.num_classes == 3
    assert third.trace is not None
    assert third.trace.facts.requests == 2
    assert "person-003" not in third.listed.ids
    known = read_manifest(tmp_path / "second")["data"]["digest"]
    assert known == (
        second.data.subset([i for i, name in enumerate(rest.ids) if name != "person-003"]).digest() if samples else None
    )
    with pytest.raises(InputError, match="8 samples, the run had 7"):
        load_run(tmp_path / "second", samples=rest, model=Net())


def test_a_result_without_a_trace_is_a_run_too(tmp_path: Path) -> None:
    run = some_run(trace=None)
    result = forget(run, classes=["bee"])
    save_result(result, tmp_path / "result")
    loaded = load_run(tmp_path / "result", samples=result.retained, model=Net())
    assert loaded.trace is None
    assert loaded.data.num_classes == 3
    assert torch.equal(loaded.subset.get(), result.subset.get())


def test_nothing_of_the_forgotten_is_in_the_files_of_a_result(tmp_path: Path) -> None:
    """Ids, and what the shortened trace dropped: the visits' features, the gradients of their steps, in several dtypes."""
    run = some_run()
    result = forget(run, ids=["person-003", "person-007"])
    save_result(result, tmp_path / "result")
    save_run(run, tmp_path / "run")
    needles = traces_of(run, result)
    assert found(needles, tmp_path / "result") == []
    assert found(needles, tmp_path / "run")  # the search finds what is there


def traces_of(run: fastntk.Run, result: Unlearned) -> list[bytes]:
    """What must not be found: forgotten ids, features of their visits, gradients of the steps that met them."""
    trace, gone = run.trace, result.split.forget
    assert trace is not None
    assert trace.gradients is not None
    rows = torch.isin(trace.visited, gone).nonzero().flatten().tolist()
    steps = sorted({int(torch.searchsorted(trace.bounds, row, right=True)) - 1 for row in rows})
    vectors = [trace.features[row] for row in rows] + [trace.gradients[step] for step in steps]
    kinds = (torch.float16, torch.float32, torch.float64)
    needles = [vector.to(kind).numpy().tobytes() for vector in vectors for kind in kinds]
    ids = [run.listed.ids[position] for position in gone.tolist()]
    return needles + [name.encode() for name in ids] + [json.dumps(name).encode() for name in ids]


def found(needles: list[bytes], folder: Path) -> list[tuple[str, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [(path.name, needle) for path in files for needle in needles if needle in path.read_bytes()]


# Sources: an image folder whose files vanish one after another.


def picture_folder(root: Path) -> Path:
    generator = torch.Generator().manual_seed(1)
    for name in CLASSES:
        (root / name).mkdir(parents=True)
        for number in range(4):
            pixels = torch.randint(0, 255, (32, 32, 3), generator=generator, dtype=torch.uint8).numpy()
            Image.fromarray(pixels).save(root / name / f"{name}-{number}.png")
    return root


@pytest.fixture(scope="module")
def photo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[fastntk.Run, Path]:
    root = picture_folder(tmp_path_factory.mktemp("photos") / "photos")
    model = fastntk.build_model("resnet20", num_classes=3, weights="cifar100")
    samples = fastntk.data.load_source(root, spec=input_spec(model), images_per_class=3)
    run = fastntk.fit(model, fastntk.tune(model, "head"), samples, fastntk.Recipe(epochs=1, batch_size=4), trace=True)
    return run, root


@pytest.fixture
def photos(photo_run: tuple[fastntk.Run, Path], tmp_path: Path) -> tuple[fastntk.Run, Path]:
    """A run on a copy of the folder, for this test to delete from."""
    run, root = photo_run
    shutil.copytree(root, tmp_path / "photos")
    source = {"data": str(tmp_path / "photos"), "images_per_class": 3, "only_classes": None}
    return dataclasses.replace(run, source=source), tmp_path / "photos"


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("how", ["untouched", "folder gone", "folder emptied"])
def test_the_retained_samples_are_found_again(traced: bool, how: str, photos: tuple[fastntk.Run, Path], tmp_path: Path) -> None:
    run, root = photos
    run = run if traced else dataclasses.replace(run, trace=None)
    first = forget(run, classes=["bee"])
    save_result(first, tmp_path / "first")
    if how == "folder gone":
        shutil.rmtree(root / "bee")
    elif how == "folder emptied":
        for path in (root / "bee").iterdir():
            path.unlink()

    def reload(folder: Path) -> fastntk.Run:
        loaded = load_run(folder)
        ids = None if loaded.trace is None else loaded.trace.listed.ids
        return load_run(folder, samples=source_samples(read_manifest(folder), ids=ids, key=loaded.key))

    again = reload(tmp_path / "first")
    assert again.data.digest() == first.retained.digest()
    assert again.data.labels.tolist() == [0, 0, 0, 2, 2, 2]
    assert again.data.classes == tuple(CLASSES)
    second = forget(again, ids=["cat/cat-1.png"])
    save_result(second, tmp_path / "second")
    if traced:
        (root / "cat" / "cat-1.png").unlink()  # the first three of the class are others now; the trace knows which it were
    assert reload(tmp_path / "second").data.digest() == second.retained.digest()


def test_vanished_and_changed_data_are_told_apart(photos: tuple[fastntk.Run, Path], tmp_path: Path) -> None:
    run, root = photos
    save_result(forget(run, classes=["bee"]), tmp_path / "first")
    manifest, ids = read_manifest(tmp_path / "first"), load_run(tmp_path / "first").listed.ids
    shutil.copy(root / "ape" / "ape-0.png", root / "ape" / "ape-1.png")
    with pytest.raises(InputError, match="other pixels or labels") as changed:
        source_samples(manifest, ids=ids)
    assert not isinstance(changed.value, DataGoneError)
    (root / "ape" / "ape-1.png").unlink()
    with pytest.raises(DataGoneError, match=r"1 of the 6 samples of this run are not in .*ape-1.png"):
        source_samples(manifest, ids=ids)
    shutil.rmtree(root)
    with pytest.raises(DataGoneError, match="cannot be opened"):
        source_samples(manifest, ids=ids)
