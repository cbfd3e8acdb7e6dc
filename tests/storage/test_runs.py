"""Runs on disk: what comes back is what was saved, byte for byte, and what was touched is refused with the reason."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastntk
from fastntk.base.atomic import check_output, new_file, write_file
from fastntk.base.errors import InputError
from fastntk.models import card_of, logits
from fastntk.models.card import fingerprint_of
from fastntk.models.torchvision_ops import import_optional
from fastntk.storage.data import source_samples
from fastntk.storage.manifest import MANIFEST, SEAL, read_manifest, seal
from fastntk.storage.runs import load_run, save_run


def some_samples(count: int = 12, *, size: int = 32, classes: int = 3) -> fastntk.Samples:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 3, size, size, generator=generator)
    names = [f"class {label}" for label in range(classes)]
    return fastntk.Samples(inputs, torch.arange(count) % classes, [f"id-{i}" for i in range(count)], names)


class OwnNet(nn.Module):
    """A user's module with a buffer, tied weights and float64 values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(12)
        self.fc = nn.Linear(12, 3)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(self.norm(self.second(self.first(x.flatten(1)))))
        return out


def resnet_run() -> fastntk.Run:
    model = fastntk.build_model("resnet20", num_classes=3, weights="cifar100")
    return fastntk.fit(model, fastntk.tune(model, "norm+head"), some_samples(), fastntk.Recipe(epochs=1, batch_size=6))


def timm_run() -> fastntk.Run:
    model = fastntk.build_model("timm:vit_tiny_patch16_224", num_classes=3, image_size=32)
    subset = fastntk.tune(model, "prompts+head", prompt_length=4, prompt_blocks=2, seed=3)
    return fastntk.fit(model, subset, some_samples(6), fastntk.Recipe(epochs=1, batch_size=6, lr=5e-3))


def hf_run(folder: Path) -> fastntk.Run:
    transformers = import_optional("transformers", extra="hf")
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**shape, image_size=32, patch_size=16)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    model = fastntk.build_model(f"hf:{folder}", num_classes=3, weights="pretrained")
    subset = fastntk.tune(model, "prompts+norm+head", prompt_length=2, prompt_blocks=1)
    run = fastntk.fit(model, subset, some_samples(6), fastntk.Recipe(epochs=1))
    shutil.rmtree(folder)  # a run has to load although the folder it was built from is gone
    return run


def own_run() -> fastntk.Run:
    generator = torch.Generator().manual_seed(5)
    samples = fastntk.Samples(torch.randn(9, 3, 2, 2, generator=generator, dtype=torch.float64), torch.arange(9) % 3)
    model = OwnNet()
    recipe = fastntk.Recipe(epochs=1, bn_stats="update")
    return fastntk.fit(model, fastntk.tune(model, "first.*+norm+head"), samples, recipe)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[fastntk.Run, Path]:
    run = resnet_run()
    return run, run.save(tmp_path_factory.mktemp("saved") / "run")


@pytest.fixture
def copy(saved: tuple[fastntk.Run, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[1], tmp_path / "copy"))


def same(run: fastntk.Run, again: fastntk.Run) -> None:
    """Every byte of the state, the anchor and the logits, and everything else that a run says."""
    assert fingerprint_of(again.model) == fingerprint_of(run.model)
    assert again.subset.names == run.subset.names
    assert torch.equal(again.anchor, run.anchor)
    assert again.anchor.dtype == run.anchor.dtype
    assert again.recipe == run.recipe
    assert again.history == run.history
    assert again.source == run.source
    assert card_of(again.model) == card_of(run.model)
    trainable = {name for name, parameter in again.model.named_parameters() if parameter.requires_grad}
    assert trainable == set(run.subset.names)
    with torch.no_grad():
        inputs = run.data.inputs
        assert torch.equal(logits(again.model, inputs), logits(run.model.eval(), inputs))


@pytest.mark.parametrize("kind", ["resnet", "timm", "hf", "own"])
def test_a_loaded_run_is_the_saved_one(kind: str, tmp_path: Path) -> None:
    run = {"resnet": resnet_run, "timm": timm_run, "own": own_run, "hf": lambda: hf_run(tmp_path / "vit")}[kind]()
    run = dataclasses.replace(run, source={"data": "somewhere"})
    folder = run.save(tmp_path / "run")
    if kind == "own":
        with pytest.raises(InputError, match=r"build_model did not make.*model="):
            load_run(folder)
    model = OwnNet() if kind == "own" else None
    again = fastntk.Run.load(folder, run.samples, model=model)
    same(run, again)
    assert again.samples is run.samples
    if kind == "own":
        assert again.model.get_parameter("first.weight") is again.model.second.weight  # still tied
    save_run(again, tmp_path / "second")
    for part in ("tuned", "anchor", "base"):
        name = f"{part}.safetensors"
        assert (folder / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_the_same_seed_gives_the_same_bytes(saved: tuple[fastntk.Run, Path], tmp_path: Path) -> None:
    folder = resnet_run().save(tmp_path / "again")

    def essence(path: Path) -> dict[str, Any]:
        manifest = json.loads((path / MANIFEST).read_text())
        for epoch in manifest["history"]:
            del epoch["seconds"]
        return {key: value for key, value in manifest.items() if key not in ("created", SEAL)}

    assert essence(folder) == essence(saved[1])


def test_global_random_state_survives_loading(saved: tuple[fastntk.Run, Path]) -> None:
    before = torch.get_rng_state()
    load_run(saved[1])
    assert torch.equal(before, torch.get_rng_state())


def test_the_manifest_keeps_no_ids_nor_labels(saved: tuple[fastntk.Run, Path]) -> None:
    text = (saved[1] / MANIFEST).read_text()
    assert "id-" not in text
    assert '"labels"' not in text
    assert saved[0].data.digest() in text


def test_a_loaded_run_without_data_says_how_to_supply_it(saved: tuple[fastntk.Run, Path]) -> None:
    run = load_run(saved[1])
    assert run.samples is None
    with pytest.raises(InputError, match="without its data"):
        _ = run.data


def edit_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit_manifest(folder: Path, *, sealed: bool = False, **changes: Any) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest.update(changes)
    if sealed:
        manifest[SEAL] = seal(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


ENTRY = {"bytes": 1, "sha256": "0" * 64}
DAMAGE = {
    "truncated": (lambda f: os.truncate(f / "base.safetensors", 1000), r"base.* has 1000 bytes.*truncated"),
    "edited": (lambda f: edit_byte(f / "tuned.safetensors"), r"tuned.safetensors was changed: its SHA-256"),
    "missing file": (lambda f: (f / "anchor.safetensors").unlink(), r"anchor.safetensors is missing"),
    "swapped": (lambda f: shutil.copy(f / "anchor.safetensors", f / "tuned.safetensors"), r"tuned.* was changed"),
    "missing manifest": (lambda f: (f / MANIFEST).unlink(), r"has no manifest.json"),
    "half a manifest": (lambda f: os.truncate(f / MANIFEST, 200), r"manifest.json cannot be read"),
    "edited manifest": (lambda f: edit_manifest(f, recipe=None), r"changed after it was written"),
    "other version": (lambda f: edit_manifest(f, version=2), r"format version 2; this fastntk reads version 1"),
    "other format": (lambda f: edit_manifest(f, format="x"), r"not a manifest of fastntk"),
    "not an object": (lambda f: (f / MANIFEST).write_text("[]"), r"not a manifest of fastntk"),
    "other kind": (lambda f: edit_manifest(f, sealed=True, kind="ensemble"), r"holds a 'ensemble'; expected 'run' or 'result'"),
    "unknown tuned name": (lambda f: edit_manifest(f, sealed=True, subset=["fc.weight"]), r"differ in .*bn1"),
    "no files": (lambda f: edit_manifest(f, sealed=True, files={}), r"does not list tuned.safetensors"),
    "foreign path": (lambda f: edit_manifest(f, sealed=True, files={"../x.safetensors": ENTRY}), r"cannot vouch for"),
    "nothing": (shutil.rmtree, r"there is no such folder"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused_with_the_reason(damage: str, copy: Path) -> None:
    act, message = DAMAGE[damage]
    act(copy)
    with pytest.raises(InputError, match=message):
        load_run(copy)


def test_a_wrong_architecture_is_refused_and_left_alone(saved: tuple[fastntk.Run, Path]) -> None:
    other = fastntk.build_model("resnet20", num_classes=4)
    before = fingerprint_of(other)
    with pytest.raises(InputError, match=r"does not fit.*another shape: fc.bias, fc.weight"):
        load_run(saved[1], model=other)
    with pytest.raises(InputError, match=r"does not fit.*the model lacks: bn1"):
        load_run(saved[1], model=OwnNet())
    assert fingerprint_of(other) == before


def test_prompts_do_not_stay_in_a_model_that_does_not_fit(tmp_path: Path) -> None:
    run = timm_run()
    folder = run.save(tmp_path / "run")
    other = fastntk.build_model("timm:vit_tiny_patch16_224", num_classes=4, image_size=32)
    with pytest.raises(InputError, match=r"another shape: head\.bias"):
        load_run(folder, model=other)
    assert not [name for name in other.state_dict() if "prompt" in name]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.subset(range(11)), "11 samples, the run had 12"),
        (lambda s: s.subset([1, 0, *range(2, 12)]), "other ids"),
        (lambda s: fastntk.Samples(s.inputs + 1, s.labels, s.ids, s.classes), "other pixels or labels"),
        (lambda s: fastntk.Samples(s.inputs, s.labels.flip(0), s.ids, s.classes), "other pixels or labels"),
        (lambda s: fastntk.Samples(s.inputs[..., :16], s.labels, s.ids, s.classes), "inputs of shape"),
        (lambda s: fastntk.Samples(s.inputs, s.labels, s.ids, ["a", "b", "c"]), "other class names"),
    ],
)
def test_other_data_is_refused(change: Any, reason: str, saved: tuple[fastntk.Run, Path]) -> None:
    with pytest.raises(InputError, match=f"data changed since.*{reason}"):
        load_run(saved[1], samples=change(saved[0].data))


def test_data_is_loaded_again_from_its_source(tmp_path: Path) -> None:
    model = fastntk.build_model("resnet20", num_classes=2)
    source = {"data": "digits@train", "images_per_class": 3, "only_classes": "2"}
    samples = fastntk.load_source("digits@train", spec=card_of(model).input, images_per_class=3, only_classes=2)
    run = fastntk.Run(model, fastntk.tune(model, "head"), fastntk.tune(model, "head").get(), samples, source=source)
    manifest = read_manifest(run.save(tmp_path / "run"))
    assert source_samples(manifest).digest() == samples.digest()
    with pytest.raises(InputError, match="data changed since"):
        source_samples({**manifest, "source": {**source, "images_per_class": 4}})
    with pytest.raises(InputError, match="does not say where"):
        source_samples({**manifest, "source": None})


def test_other_kinds_use_the_same_folder(saved: tuple[fastntk.Run, Path], tmp_path: Path) -> None:
    folder = save_run(saved[0], tmp_path / "result", kind="result", extra={"method": "retrain"})
    assert read_manifest(folder)["extra"] == {"method": "retrain"}
    same(saved[0], load_run(folder, samples=saved[0].data, kinds=("run", "result")))
    with pytest.raises(InputError, match="holds a 'result'"):
        load_run(folder, kinds=("run",))


def test_an_existing_folder_is_refused_and_overwritten_only_if_ours(saved: tuple[fastntk.Run, Path], copy: Path) -> None:
    before = (copy / MANIFEST).read_bytes()
    with pytest.raises(InputError, match="exists already"):
        save_run(saved[0], copy)
    assert (copy / MANIFEST).read_bytes() == before
    save_run(saved[0], copy, overwrite=True)
    load_run(copy)
    foreign = copy.parent / "photos"
    foreign.mkdir()
    (foreign / "cat.jpg").write_text("meow")
    with pytest.raises(InputError, match="does not look like something this command wrote"):
        save_run(saved[0], foreign, overwrite=True)
    assert (foreign / "cat.jpg").read_text() == "meow"
    assert sorted(path.name for path in copy.parent.iterdir()) == ["copy", "photos"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full"), SystemExit])
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_interrupted_write_leaves_things_as_they_were(
    error: Any, overwrite: bool, saved: tuple[fastntk.Run, Path], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    original = Path.write_bytes

    def failing(self: Path, data: Any) -> int:
        if written:
            raise error
        written.append(self)
        return original(self, data)

    monkeypatch.setattr(Path, "write_bytes", failing)
    target = copy if overwrite else copy.parent / "deep" / "er" / "run"
    with pytest.raises(BaseException, match="disk full" if isinstance(error, OSError) else None):
        save_run(saved[0], target, overwrite=overwrite)
    monkeypatch.undo()
    assert len(written) == 1
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]
    load_run(copy)


def test_a_failed_last_rename_puts_the_old_folder_back(
    saved: tuple[fastntk.Run, Path], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = os.rename, []

    def second_fails(source: Any, target: Any) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError("disk on fire")
        original(source, target)

    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(OSError, match="disk on fire"):
        save_run(saved[0], copy, overwrite=True)
    monkeypatch.undo()
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]
    load_run(copy)


def test_files_are_atomic_too(tmp_path: Path) -> None:
    target = write_file(tmp_path / "new" / "a.txt", b"one")
    with pytest.raises(InputError, match="exists already"):
        write_file(target, b"two")
    with contextlib.suppress(RuntimeError), new_file(target, overwrite=True) as work:
        work.write_text("half")
        raise RuntimeError
    assert target.read_bytes() == b"one"
    write_file(target, b"two", overwrite=True)
    assert target.read_bytes() == b"two"
    assert [path.name for path in target.parent.iterdir()] == ["a.txt"]


def test_outputs_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        check_output(tmp_path / "file" / "run")
    with pytest.raises(InputError, match="reserved for unfinished work"):
        check_output(tmp_path / ".run.tmp-host-1-abcd")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists already"):
        check_output(tmp_path / "link")
    check_output(tmp_path / "not" / "yet" / "there")
    assert not (tmp_path / "not").exists()


def test_state_that_is_not_a_tensor_is_refused(tmp_path: Path) -> None:
    class Odd(OwnNet):
        def get_extra_state(self) -> dict[str, int]:
            return {"count": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    model = Odd()
    subset = fastntk.tune(model, "head")
    samples = fastntk.Samples(torch.zeros(3, 12, dtype=torch.float64), [0, 1, 2])
    with pytest.raises(InputError, match="no plain tensor: _extra_state"):
        fastntk.Run(model, subset, subset.get(), samples).save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
