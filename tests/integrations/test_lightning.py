"""The callback in a Lightning training, against the same training without it, and without the samples."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from paired_batches import CLASSES, IDS, N, Paired
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fastntk
from fastntk.models.torchvision_ops import ensure_operators

ensure_operators()
pytest.importorskip("lightning", reason="needs lightning: pip install 'fastntk[lightning]'")
from fastntk.integrations.lightning import RecordCallback  # noqa: E402

SMOOTH = nn.CrossEntropyLoss(label_smoothing=0.1)


class Images(Dataset[Any]):
    def __init__(self, *, form: str = "tuple") -> None:
        self.pixels = torch.randn(N, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.form = form

    def __len__(self) -> int:
        return N

    def __getitem__(self, k: int) -> Any:
        if self.form == "dict":
            return {"image": self.pixels[k], "label": k % CLASSES, "id": IDS[k]}
        return (self.pixels[k], k % CLASSES, IDS[k])[: 2 if self.form == "pair" else 3]


def module_of(package: Any, *, spec: str | None = None, optimizers: int = 1) -> Any:
    """A module of ``package``, with a network inside."""

    class Module(package.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.net = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, CLASSES)).double()

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.net(images)
            return logits

        def training_step(self, batch: Any, number: int) -> Tensor:
            images, targets = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch[:2]
            return SMOOTH(self(images), targets)

        def configure_optimizers(self) -> Any:
            tuned = [parameter for parameter in self.parameters() if parameter.requires_grad]
            made = [torch.optim.AdamW(tuned, lr=0.05, weight_decay=0.1) for _ in range(optimizers)]
            schedule = torch.optim.lr_scheduler.LambdaLR(made[0], lambda step: min(1.0, (step + 1) / 4))
            return made, [{"scheduler": schedule, "interval": "step"}]

    module = Module()
    if spec is not None:
        fastntk.tune(module, spec)
    return module


def trained(package: Any, callback: Any, folder: Path, *, gone: Sequence[int] = (), module: Any = None, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    module = module_of(package, spec="head") if module is None else module
    data, fit = options.pop("data", None) or Images(), options.pop("fit", {})
    callbacks = [*([] if callback is None else [callback]), *options.pop("callbacks", [])]
    settings = quiet | {"max_epochs": 3, "accelerator": "cpu", "default_root_dir": folder} | options
    trainer = package.Trainer(**settings, callbacks=callbacks)
    trainer.fit(module, DataLoader(data, batch_sampler=Paired(gone)), **fit)
    return module


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def package(request: pytest.FixtureRequest) -> Any:
    if importlib.util.find_spec(request.param.partition(".")[0]) is None:
        pytest.skip(f"{request.param} is not installed")
    return importlib.import_module(request.param)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipping": {"gradient_clip_val": 0.2},
    "clipping that no step but those without the samples reaches": {"gradient_clip_val": 1.0},
    "clipping by a norm that is named": {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "norm"},
    "accumulation": {"accumulate_grad_batches": 2},
    "accumulation that does not divide the epoch": {"accumulate_grad_batches": 3},
    "both": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.2},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_replay_of_the_head_is_the_training_without_the_samples(name: str, package: Any, tmp_path: Path) -> None:
    callback = RecordCallback("head", loss=SMOOTH)
    trained(package, callback, tmp_path, module=module_of(package), **SETTINGS[name])
    run, gone = callback.run, [0, 3, 6, 9]
    result = fastntk.unlearn(run, ids=[IDS[k] for k in gone], method="path-replay", depth="head")
    other = trained(package, None, tmp_path, gone=gone, **SETTINGS[name])
    wanted = run.subset.on(other).get()
    assert float((run.subset.get() - wanted).norm()) > 1e-2
    assert float((run.subset.get() + result.delta - wanted).norm()) < 1e-10
    assert run.trace.steps == (6 if "accumulate_grad_batches" in SETTINGS[name] else 12)


@pytest.mark.filterwarnings("error:max_norm=")
@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, None),
        ({"gradient_clip_val": 0}, None),
        ({"gradient_clip_val": 7.0, "gradient_clip_algorithm": "value"}, None),
        ({"gradient_clip_val": 7}, 7.0),
        ({"gradient_clip_val": 0.2, "accumulate_grad_batches": 2}, 0.2),
    ],
)
def test_the_limit_of_clipping_is_the_trainers(options: Any, limit: float | None, package: Any, tmp_path: Path) -> None:
    callback = RecordCallback("head", loss=SMOOTH)
    trained(package, callback, tmp_path, module=module_of(package), **options)
    assert callback.run.trace.facts.max_norm == limit


def test_the_callback_changes_nothing_else(package: Any, tmp_path: Path) -> None:
    """The same bytes, in the weights and in what a checkpoint holds; no file, no hook left."""
    checkpoints, modules = [], []
    for callback in (None, RecordCallback("norm+head", loss=SMOOTH)):
        keep = package.callbacks.ModelCheckpoint(tmp_path / str(len(modules)), save_last=True)
        module = module_of(package, spec="norm+head")
        options = {"enable_checkpointing": True, "callbacks": [keep], **SETTINGS["both"]}
        modules.append(trained(package, callback, tmp_path / "root", module=module, **options))
        checkpoints.append(torch.load(keep.last_model_path, weights_only=False))
    first, second = (module.state_dict() for module in modules)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert checkpoints[0].keys() == checkpoints[1].keys()
    assert not any("RecordCallback" in key for key in checkpoints[1]["callbacks"])
    assert not (tmp_path / "root").exists() or not list((tmp_path / "root").iterdir())
    assert not modules[1].net[-1]._forward_pre_hooks
    assert modules[1].training == modules[0].training


def test_a_network_inside_the_module_and_batches_as_dicts(package: Any, tmp_path: Path) -> None:
    callback = RecordCallback("head", loss=SMOOTH, network="net")
    module = trained(package, callback, tmp_path, module=module_of(package), data=Images(form="dict"))
    assert callback.run.model is module.net
    assert set(callback.run.listed.ids) == set(IDS)
    result = fastntk.unlearn(callback.run, ids=[IDS[3]])
    module.net.load_state_dict(result.model.state_dict())


def test_a_function_of_the_batch(package: Any, tmp_path: Path) -> None:
    names = {tuple(row.tolist()): name for row, name in zip(Images().pixels, IDS)}

    def look_up(batch: Any) -> tuple[list[str], Tensor]:
        return [names[tuple(row.tolist())] for row in batch[0]], batch[1]

    callback = RecordCallback("head", loss=SMOOTH, batch=look_up)
    trained(package, callback, tmp_path, data=Images(form="pair"))
    assert set(callback.run.listed.ids) == set(IDS)


def test_wrong_use(package: Any, tmp_path: Path) -> None:
    def refused(message: str, callback: Any = None, **options: Any) -> None:
        module = options.pop("module", None) or module_of(package)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        with pytest.raises(fastntk.InputError, match=message):
            trained(package, callback or RecordCallback("head", loss=SMOOTH), tmp_path, module=module, **options)
        assert "fit" in options or all(torch.equal(before[name], value) for name, value in module.state_dict().items())

    refused("ids and targets: .* got a list of 2", data=Images(form="pair"))
    refused("not that of loss", RecordCallback("head", loss=nn.functional.multi_margin_loss))
    refused("is not tuned", RecordCallback("norm", loss=SMOOTH))
    refused("network='nix'.: Module has no such attribute .* it has net", RecordCallback("head", loss=SMOOTH, network="nix"))
    used = RecordCallback("head", loss=SMOOTH)
    trained(package, used, tmp_path)
    refused("recorded a training already", used)
    keep = package.callbacks.ModelCheckpoint(tmp_path / "kept", save_last=True)
    trained(package, None, tmp_path, enable_checkpointing=True, callbacks=[keep], max_epochs=1)
    refused(
        "goes on from a checkpoint at step 4", module=module_of(package, spec="head"), fit={"ckpt_path": keep.last_model_path}
    )


def test_a_training_that_breaks_off_leaves_what_it_had(package: Any, tmp_path: Path) -> None:
    class Stops(package.Callback):  # type: ignore[misc, name-defined]
        def on_before_zero_grad(self, trainer: Any, *args: Any) -> None:
            if trainer.global_step == 5:
                raise ZeroDivisionError

    callback = RecordCallback("head", loss=SMOOTH)
    with pytest.raises(ZeroDivisionError):
        trained(package, callback, tmp_path, callbacks=[Stops()])
    assert callback.run.trace.steps == 5
