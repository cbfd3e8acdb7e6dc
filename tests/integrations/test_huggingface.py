"""The callback in a Hugging Face Trainer, against the same Trainer without it, and without the samples."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from paired_batches import CLASSES, IDS, SIZE, N, Paired
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fastntk
from fastntk.models import logits
from fastntk.models.torchvision_ops import ensure_operators

ensure_operators()
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'fastntk[hf]'")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate: pip install 'fastntk[hf]'")
from fastntk.integrations.huggingface import RecordCallback  # noqa: E402

FULL = {
    "learning_rate": 0.02,
    "weight_decay": 0.1,
    "warmup_steps": 3,
    "label_smoothing_factor": 0.1,
    "max_grad_norm": 0.3,
    "gradient_accumulation_steps": 2,
}


class Images(Dataset[dict[str, Any]]):
    """Small images with an id, and a column that no model takes."""

    def __init__(self, dtype: torch.dtype = torch.float32, ids: Sequence[Any] = IDS, column: str = "id") -> None:
        self.pixels = torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
        self.labels, self.ids, self.column = torch.arange(N) % CLASSES, ids, column

    def __len__(self) -> int:
        return N

    def __getitem__(self, k: int) -> dict[str, Any]:
        return {"pixel_values": self.pixels[k], "label": int(self.labels[k]), self.column: self.ids[k], "camera": "left"}


class RowDropout(nn.Module):
    """Dropout whose mask depends on the sample alone, so that trainings with and without others can be compared."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        masks = []
        for row in x:
            generator = torch.Generator().manual_seed(int(1e6 * float(row.detach().double().abs().sum())) % 2**31)
            masks.append(torch.rand(row.shape, generator=generator) > 0.3)
        return x * torch.stack(masks) / 0.7


def network(dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    torch.manual_seed(3)
    options = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            **options, image_size=8, patch_size=4, num_labels=CLASSES, initializer_range=0.3, attn_implementation="sdpa", **config
        )
    )
    return model.to(dtype)


class PairedTrainer(transformers.Trainer):  # type: ignore[misc, name-defined]
    gone: Sequence[int] = ()

    def get_train_dataloader(self) -> Any:
        loader = DataLoader(self.train_dataset, batch_sampler=Paired(self.gone), collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


def arguments(folder: Path, **options: Any) -> Any:
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "use_cpu": True}
    return transformers.TrainingArguments(
        str(folder / "out"), **quiet | {"num_train_epochs": 3, "per_device_train_batch_size": SIZE} | options
    )


def trained(folder: Path, callback: Any, *, model: Any, gone: Sequence[int] = (), plain: bool = False, **options: Any) -> Any:
    kind = transformers.Trainer if plain else PairedTrainer
    trainer_options = {key: options.pop(key) for key in ("train_dataset", "compute_loss_func") if key in options}
    data = trainer_options.pop("train_dataset", None) or Images(next(model.parameters()).dtype)
    callbacks = [] if callback is None else [callback]
    trainer = kind(model, arguments(folder, **options), train_dataset=data, callbacks=callbacks, **trainer_options)
    trainer.gone = gone
    trainer.train()
    return trainer.model.eval()


def two_ways(
    folder: Path, gone: Sequence[int], *, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[float, float, Any]:
    """How far a request ends from the Trainer without these samples, how far that is from the training, and the run."""

    def model() -> Any:
        net = network(dtype)
        net.vit.layernorm = nn.Sequential(net.vit.layernorm, RowDropout())
        return net

    callback = RecordCallback("head", loss=options.pop("loss", None))
    trained(folder, callback, model=model(), **options)
    run = callback.run
    result = fastntk.unlearn(run, ids=[IDS[k] for k in gone], method="path-replay", depth="head")
    other = model()
    subset = fastntk.tune(other, "head")
    trained(folder, None, model=other, gone=gone, **options)
    wanted = subset.get()
    return float((run.subset.get() + result.delta - wanted).norm()), float((run.subset.get() - wanted).norm()), run


def own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    margins = nn.functional.multi_margin_loss(outputs.logits, labels, p=2, reduction="sum")
    return margins / num_items_in_batch


SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {"learning_rate": 0.02},
    "all at once": FULL,
    "clipping that no step but those without the samples reaches": {"learning_rate": 0.02, "max_grad_norm": 2.4},
    "no clipping": {"learning_rate": 0.02, "max_grad_norm": 0.0},
    "accumulation": {"learning_rate": 0.02, "gradient_accumulation_steps": 2},
    "accumulation that does not divide the epoch": FULL | {"gradient_accumulation_steps": 3},
    "SGD": {"optim": "sgd", "optim_args": "momentum=0.9", "learning_rate": 0.1, "lr_scheduler_type": "cosine"},
}


@pytest.mark.parametrize("gone", [[0, 3, 6, 9], [4]], ids=["some", "one"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_replay_of_a_trainers_head_is_that_trainer_without_the_samples(name: str, gone: list[int], tmp_path: Path) -> None:
    missed, moved, _ = two_ways(tmp_path, gone, **SETTINGS[name])
    assert moved > 1e-3
    assert missed < 1e-8 * max(1.0, moved)


def test_what_the_record_says(tmp_path: Path) -> None:
    _, _, run = two_ways(tmp_path, [4], **FULL)
    facts = run.trace.facts
    assert (facts.loss, facts.smoothing, facts.average) == ("cross-entropy", 0.1, "step")
    assert (run.trace.steps, run.trace.epochs, run.trace.visits) == (6, 3, 60)
    assert sorted((group.names, group.options["weight_decay"]) for group in facts.groups) == [
        (("classifier.bias",), 0.0),
        (("classifier.weight",), 0.1),
    ]
    assert facts.max_norm == 0.3
    assert set(run.listed.ids) == set(IDS)


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    loss = functools.partial(nn.functional.multi_margin_loss, p=2)
    options = {"learning_rate": 0.02, "compute_loss_func": own_loss}
    missed, moved, run = two_ways(tmp_path, [0, 3, 6], loss=loss, **options)
    assert run.trace.facts.loss == "own"
    assert moved > 1e-3
    assert missed < 1e-8 * max(1.0, moved)
    missed, moved, run = two_ways(tmp_path / "accumulated", [0, 3, 6], loss=loss, gradient_accumulation_steps=2, **options)
    assert run.trace.facts.average == "step"
    assert missed < 1e-8 * max(1.0, moved)


@pytest.mark.filterwarnings("error:max_norm=")
def test_bf16(tmp_path: Path) -> None:
    missed, moved, _ = two_ways(tmp_path, [0, 3, 6, 9], dtype=torch.float32, bf16=True, **FULL)
    assert moved > 1e-3
    assert missed < 0.1 * moved


def hub(ids: Sequence[Any] = IDS) -> Any:
    """The same images as a data set of the package datasets."""
    datasets = pytest.importorskip("datasets")
    data = Images()
    columns = {"pixel_values": data.pixels.tolist(), "label": data.labels.tolist(), "id": ids, "camera": ["left"] * N}
    return datasets.Dataset.from_dict(columns)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["torch", "datasets", "integers"])
def test_the_callback_changes_no_byte(kind: str, workers: int, tmp_path: Path) -> None:
    """A Trainer as it comes: it shuffles, drops columns, and dropout is on."""
    if kind == "integers" and workers:
        pytest.skip("the same code as strings")
    states = []
    for callback in (None, RecordCallback("norm+head", trace=tmp_path / "trace")):
        model = network(hidden_dropout_prob=0.1)
        fastntk.tune(model, "norm+head")
        data = Images() if kind == "torch" else hub(IDS if kind == "datasets" else range(100, 100 + N))
        options = FULL | {"dataloader_num_workers": workers, "train_dataset": data}
        states.append(trained(tmp_path, callback, model=model, plain=True, **options).state_dict())
    assert callback is not None
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    run = callback.run
    assert set(run.listed.ids) == ({str(k) for k in range(100, 100 + N)} if kind == "integers" else set(IDS))
    labels = dict(zip(run.listed.ids, run.listed.labels.tolist()))
    assert [labels[str(name)] for name in (range(100, 100 + N) if kind == "integers" else IDS)] == [k % CLASSES for k in range(N)]
    result = fastntk.unlearn(run, ids=[], method="path-replay", depth="head")
    assert float(result.delta.abs().max()) < 1e-5
    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_evaluation_in_between_is_not_part_of_the_path(tmp_path: Path) -> None:
    callback = RecordCallback("head")
    trainer = transformers.Trainer(
        network(), arguments(tmp_path, eval_strategy="epoch"), train_dataset=hub(), eval_dataset=hub(), callbacks=[callback]
    )
    trainer.train()
    trainer.evaluate()
    assert trainer.args.remove_unused_columns
    assert callback.run.trace.visits == 3 * N


def test_the_path_ends_at_the_best_checkpoint(tmp_path: Path) -> None:
    callback = RecordCallback("head")
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}  # so it is the first
    options = arguments(tmp_path, eval_strategy="epoch", **best | {"save_strategy": "epoch", "learning_rate": 0.02})
    trainer = transformers.Trainer(network(), options, train_dataset=Images(), eval_dataset=Images(), callbacks=[callback])
    with pytest.warns(UserWarning, match="those after step 4 of 12"):
        trainer.train()
    assert callback.run.trace.visits == N
    result = fastntk.unlearn(callback.run, ids=[IDS[3]], method="path-replay", depth="head")
    assert result.details["replay_miss"] < 1e-5


def test_a_result_is_a_checkpoint_again(tmp_path: Path) -> None:
    callback = RecordCallback("norm+head")
    trained(tmp_path, callback, model=network(), plain=True, **FULL)
    result = fastntk.unlearn(callback.run, ids=[IDS[3]])
    second = fastntk.unlearn(result.as_run(), ids=[IDS[5], IDS[6]])
    second.model.save_pretrained(tmp_path / "served")
    served = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "served").eval()
    images = Images().pixels
    assert torch.equal(logits(served, images), logits(second.model.eval(), images))
    assert not torch.equal(logits(served, images), logits(callback.run.model.eval(), images))


def test_what_is_not_frozen_is_the_subset_where_none_is_given(tmp_path: Path) -> None:
    callback, model = RecordCallback(), network()
    names = fastntk.tune(model, "norm+head").names
    trained(tmp_path, callback, model=model, plain=True)
    assert callback.run.subset.names == names


# Wrong use


class Selective(transformers.Trainer):  # type: ignore[misc, name-defined]
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = model(pixel_values=inputs["pixel_values"], labels=inputs["labels"]).loss
        return loss


def test_trainings_that_are_not_one_path_are_refused(tmp_path: Path) -> None:
    def refused(
        message: str, callback: Any = None, *, data: Any = None, kind: Any = transformers.Trainer, **options: Any
    ) -> None:
        model = network()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        resume = options.pop("resume", None)
        callback = callback or RecordCallback("head")
        trainer = kind(model, arguments(tmp_path, **options), train_dataset=data or Images(), callbacks=[callback])
        with pytest.raises(fastntk.InputError, match=message):
            trainer.train(resume_from_checkpoint=resume)
        with pytest.raises(fastntk.InputError):
            _ = callback.run
        if resume is None:
            assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())

    refused("auto_find_batch_size", auto_find_batch_size=True)
    refused(r"'id'; an example of the training set has columns .*key", data=Images(column="key"))
    refused("had the label", data=Images(ids=["same"] * N))
    refused("not that of loss", RecordCallback("head", loss=nn.functional.multi_margin_loss))
    refused("head .* is not tuned", RecordCallback("norm"))
    refused(r"model\(\*\*inputs\)", kind=Selective)
    refused("another model", RecordCallback(fastntk.tune(network(), "head")))
    trainer = transformers.Trainer(
        network(), arguments(tmp_path, save_strategy="epoch"), train_dataset=Images(), callbacks=[RecordCallback("head")]
    )
    trainer.train()
    refused("goes on from a checkpoint at step 4", resume=str(tmp_path / "out" / "checkpoint-4"))
    with pytest.raises(fastntk.InputError, match="recorded a training already"):
        trainer.train()


def test_several_processes_are_refused() -> None:
    from types import SimpleNamespace

    from fastntk.integrations.huggingface import _check

    with pytest.raises(fastntk.InputError, match="2 processes or GPUs"):
        _check(SimpleNamespace(world_size=2, n_gpu=1), SimpleNamespace(global_step=0))


def test_a_callback_added_later_and_one_with_model_init(tmp_path: Path) -> None:
    trainer = transformers.Trainer(network(), arguments(tmp_path), train_dataset=hub())
    fastntk.tune(trainer.model, "head")
    trainer.add_callback(RecordCallback())
    with pytest.raises(fastntk.InputError, match=r"instead of adding it later"):
        trainer.train()
    trainer = transformers.Trainer(
        model_init=lambda: network(), args=arguments(tmp_path), train_dataset=Images(), callbacks=[RecordCallback("head")]
    )
    with pytest.raises(fastntk.InputError, match="inside model_init"):
        trainer.train()


class Stops(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Changes the weights half-way, or ends the training."""

    def __init__(self, error: type[BaseException] | None) -> None:
        self.error = error

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **kwargs: Any) -> None:
        if state.global_step == 5:
            if self.error:
                raise self.error
            with torch.no_grad():
                model.classifier.weight.mul_(2)


def test_a_training_that_breaks_off_leaves_what_it_had(tmp_path: Path) -> None:
    callback = RecordCallback("head")
    callbacks = [callback, Stops(KeyboardInterrupt)]
    trainer = transformers.Trainer(network(), arguments(tmp_path), train_dataset=Images(), callbacks=callbacks)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert callback.run.trace.steps == 5
    assert not trainer.model._forward_pre_hooks


def test_what_goes_wrong_later_never_stops_the_training(tmp_path: Path) -> None:
    callback = RecordCallback("head")
    trainer = transformers.Trainer(network(), arguments(tmp_path), train_dataset=Images(), callbacks=[callback, Stops(None)])
    with pytest.warns(UserWarning, match="stopped recording after step 5"):
        trainer.train()
    assert trainer.state.global_step == 12
    with pytest.raises(fastntk.InputError, match="could not be recorded"):
        _ = callback.run


def test_lora_in_a_trainer(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft: pip install 'fastntk[peft]'")

    def adapted() -> Any:
        base = network()
        layers = [name for name, _ in base.named_modules() if name.endswith(("query", "value", "q_proj", "v_proj"))]
        torch.manual_seed(4)
        config = peft.LoraConfig(r=2, lora_dropout=0.1, target_modules=layers, modules_to_save=["classifier"])
        return peft.get_peft_model(base, config)

    callback = RecordCallback("lora+head")
    states = [trained(tmp_path, each, model=adapted(), plain=True, **FULL).state_dict() for each in (None, callback)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert callback.run.trace.facts.average == "step"
    result = fastntk.unlearn(callback.run, ids=[IDS[3]], method="path-replay", depth="head")
    result.model.save_pretrained(tmp_path / "adapter")
    served = peft.PeftModel.from_pretrained(network(), tmp_path / "adapter").eval()
    assert torch.equal(logits(served, Images().pixels), logits(result.model.eval(), Images().pixels))


def test_a_training_that_broke_off_leaves_the_model_free(tmp_path: Path) -> None:
    """A cell of a notebook that failed, and is run again."""
    model = network()
    with pytest.raises(fastntk.InputError, match="column 'id'"):
        trained(tmp_path, RecordCallback("norm+head"), model=model, train_dataset=Images(column="key"))
    copy.deepcopy(model)
    callback = RecordCallback("norm+head")
    trained(tmp_path, callback, model=model)
    assert callback.run.trace.epochs == 3
