"""Every example runs as it stands, offline, and what it writes is loaded by the framework alone and computes the same."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fastntk
from fastntk.models.torchvision_ops import ensure_operators

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "digit_folder")
Play = Callable[[str], tuple[Path, str, dict[str, Any]]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
    """Run an example in this process; return its folder, what it printed, and its names."""
    ensure_operators()
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(name: str) -> tuple[Path, str, dict[str, Any]]:
        work = tmp_path / name
        monkeypatch.setattr(sys, "argv", [f"{name}.py", str(work)])
        names = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return work, capsys.readouterr().out, names

    return run


def check_report(text: str, *, forgotten: int, retained: int) -> None:
    """The printed accuracies: what was forgotten is known less than before, what stays about as well as before."""
    figures = re.findall(r"(forgotten|retained): (\d+) images, accuracy before (\d+)%, now (\d+)%", text)
    assert figures
    for part, count, before, now in figures:
        assert int(count) == {"forgotten": forgotten, "retained": retained}[part]
        if part == "forgotten":
            assert int(now) < int(before)
        else:
            assert int(now) > int(before) - 10


def same_state(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *, except_for: set[str]) -> None:
    """Equal names and shapes; equal values but for those named, among which something has changed."""
    assert list(state) == list(other)
    assert all(state[name].shape == other[name].shape for name in state)
    changed = {name for name in state if not torch.equal(state[name], other[name])}
    assert changed
    assert changed <= except_for


def test_timm(play: Play) -> None:
    pytest.importorskip("timm")
    work, text, names = play("timm_finetuned_elsewhere")
    check_report(text, forgotten=14, retained=106)
    assert text.count("All weights outside the tuned subset are the pre-trained ones") == 2
    start, tuned = (torch.load(work / f"{name}.pt", weights_only=True) for name in ("start", "finetuned"))
    model = names["timm"].create_model(names["NAME"], num_classes=10, img_size=32)
    subset = set(fastntk.tune(model, "norm+head").names)
    same_state(start, tuned, except_for=subset)
    for method in ("fast-ntk", "tangent-replay"):
        same_state(tuned, torch.load(work / f"{method}.pt", weights_only=True), except_for=subset)


def test_hugging_face(play: Play) -> None:
    transformers = pytest.importorskip("transformers")
    work, text, _ = play("huggingface_folder")
    check_report(text, forgotten=12, retained=108)
    assert "All weights outside the tuned subset are the pre-trained ones" in text
    load = transformers.AutoModelForImageClassification.from_pretrained
    tuned, served = load(work / "finetuned"), load(work / "unlearned")
    assert served.config.id2label[3] == "digit-3"
    subset = set(fastntk.tune(served, "norm+head").names)
    same_state(tuned.state_dict(), served.state_dict(), except_for=subset)
    names = [set(load_file(work / name / "model.safetensors")) for name in ("finetuned", "unlearned")]
    assert names[0] == names[1]


def test_cnn(play: Play) -> None:
    work, text, names = play("torchvision_style_cnn")
    check_report(text, forgotten=12, retained=108)
    assert "estimated anew from the retained samples" in text
    model = names["small_net"]()
    subset = set(fastntk.tune(model, "norm+head").names)
    statistics = {name for name, _ in model.named_buffers()}
    states = [torch.load(work / f"{name}.pt", weights_only=True) for name in ("finetuned", "unlearned")]
    same_state(*states, except_for=subset | statistics)
    assert not torch.equal(states[0]["1.running_mean"], states[1]["1.running_mean"])


def test_prompts(play: Play) -> None:
    pytest.importorskip("timm")
    work, text, _ = play("prompts_serving")
    check_report(text, forgotten=12, retained=108)
    assert any("prefix_prompt" in name for name in load_file(work / "unlearned.safetensors"))


def test_own_loop(play: Play) -> None:
    work, text, names = play("own_loop")
    check_report(text, forgotten=20, retained=175)
    names["small_net"]().load_state_dict(torch.load(work / "unlearned.pt", weights_only=True))


def test_hf_trainer(play: Play) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'fastntk[hf]'")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate: pip install 'fastntk[hf]'")
    work, text, _ = play("hf_trainer")
    check_report(text, forgotten=20, retained=175)
    transformers.AutoModelForImageClassification.from_pretrained(work / "unlearned")


def test_peft_lora(play: Play) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'fastntk[hf]'")
    pytest.importorskip("peft", reason="needs peft: pip install 'fastntk[peft]'")
    work, text, _ = play("peft_lora")
    check_report(text, forgotten=20, retained=175)
    adapter = load_file(work / "unlearned" / "adapter_model.safetensors")
    assert any("lora_A" in name for name in adapter)
    assert any("classifier" in name for name in adapter)


def test_each_is_short_and_known() -> None:
    assert NAMES == [
        "hf_trainer",
        "huggingface_folder",
        "own_loop",
        "peft_lora",
        "prompts_serving",
        "timm_finetuned_elsewhere",
        "torchvision_style_cnn",
    ]
    for name in NAMES:
        assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) < 60, name


def test_the_lines_that_the_documentation_adds_are_those_of_the_examples() -> None:
    page = (EXAMPLES.parent / "docs" / "howto-record.md").read_text("utf-8")
    blocks = re.findall(r"\(`examples/(\w+)\.py`[^`]*(?:`[^`\n]*`[^`]*)*?```diff\n(.*?)```", page, re.S)
    assert [name for name, _ in blocks] == ["own_loop", "hf_trainer", "peft_lora"]
    for name, block in blocks:
        lines = {line.partition("  #")[0].strip() for line in (EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()}
        added = [line[1:].strip() for line in block.splitlines() if line.startswith("+")]
        assert len(added) >= 2
        assert set(added) <= lines, name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_runs_from_a_shell(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path / "work")]
    process = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "retained" in process.stdout
