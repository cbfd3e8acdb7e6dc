"""Copies of what is to be forgotten among what stays: exact ones, those that look alike, and what a plan says of them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fastntk
import fastntk.data.duplicates as duplicates
from fastntk.base.errors import InputError
from fastntk.cli.app import app
from fastntk.data import ForgetRequest, Samples
from fastntk.data.duplicates import Copies, find_copies
from fastntk.data.transforms import prepare
from fastntk.models.card import InputSpec

SPEC = InputSpec(32, (0.5,) * 3, (0.25,) * 3)


def smooth(seed: int) -> Image.Image:
    """A picture with large shapes, as photographs have."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((64, 64), Image.Resampling.BICUBIC)


def saved_again(image: Image.Image) -> Image.Image:
    stream = io.BytesIO()
    image.resize((48, 48), Image.Resampling.BILINEAR).point(lambda value: min(255, int(1.1 * value))).save(stream, "JPEG")
    return Image.open(stream)


@pytest.fixture
def samples() -> Samples:
    """0…19 are different; "again" is 0 saved again, "copy" is 1 to the last bit with another label."""
    images = [smooth(seed) for seed in range(20)]
    inputs = torch.stack([prepare(image, SPEC) for image in (*images, saved_again(images[0]), images[1])])
    return Samples(inputs, [*[0, 1] * 10, 0, 0], ids=[*map(str, range(20)), "again", "copy"])


def test_exact_and_near_copies_are_named(samples: Samples) -> None:
    split = ForgetRequest(ids=["0", "1", "2"]).resolve(samples)
    assert find_copies(samples, split) == Copies(("copy",))
    assert find_copies(samples, split, check="near") == Copies(("copy",), ("again",))
    clean = ForgetRequest(ids=["0", "1", "2", "copy", "again"]).resolve(samples)
    assert find_copies(samples, clean, check="near") == Copies((), ())


def test_exact_copies_are_those_of_an_obvious_search(samples: Samples) -> None:
    inputs = samples.inputs[torch.randint(0, len(samples), (60,))]
    many = Samples(inputs, [0] * 60)
    split = ForgetRequest(ids=range(25)).resolve(many)
    slow = [str(i) for i in split.retain.tolist() if any(torch.equal(inputs[i], inputs[j]) for j in split.forget.tolist())]
    copies = find_copies(many, split)
    assert slow
    assert copies is not None
    assert list(copies.exact) == slow


def test_the_size_of_chunks_does_not_matter(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    split = ForgetRequest(ids=["0", "1", "2"]).resolve(samples)
    whole = find_copies(samples, split, check="near")
    monkeypatch.setattr(duplicates, "_CHUNK", 3)
    monkeypatch.setattr(duplicates, "_PAIRS", 1)
    assert find_copies(samples, split, check="near") == whole


def test_what_is_no_picture_has_exact_copies_only() -> None:
    vectors = Samples(torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]), [0, 1, 1])
    split = ForgetRequest(ids=[0]).resolve(vectors)
    assert find_copies(vectors, split) == Copies(("1",))
    with pytest.raises(InputError, match=r"among pictures \(n, channels, H, W\), not \(3, 2\)"):
        find_copies(vectors, split, check="near")
    with pytest.raises(InputError, match="unknown check for duplicates 'alike': expected 'exact' or 'near'"):
        find_copies(vectors, split, check="alike")  # type: ignore[arg-type]
    assert find_copies(None, split) is None
    with pytest.raises(InputError, match="no images at hand"):
        find_copies(None, split, check="near")


def test_a_plan_says_it_first(samples: Samples) -> None:
    model = fastntk.build_model("resnet20", num_classes=2)
    subset = fastntk.tune(model, "head")
    run = fastntk.Run(model, subset, subset.get(), samples)
    plan = fastntk.plan(run, ids=["0", "1"], method="fast-ntk", duplicates="near")
    first, second = str(plan).splitlines()[:2]
    assert first.startswith("1 of the samples that stay are exact copies of some to be forgotten: copy. Erasing one copy erases")
    assert second.startswith("1 look like a sample to be forgotten: again.")
    assert plan.details()["copies"] == {"exact": {"count": 1, "first": ["copy"]}, "near": {"count": 1, "first": ["again"]}}
    result = fastntk.unlearn(run, ids=["0", "1"], plan=plan)  # a plan with copies in it is executed as any other
    assert result.details["method"] == "fast-ntk"


def test_the_command_says_it_too(tmp_path: Path) -> None:
    pixels = np.stack([np.asarray(smooth(seed).resize((32, 32))) for seed in (0, 1, 2, 3, 4, 0)])
    np.savez(tmp_path / "a.npz", x=pixels, y=[0, 1, 0, 1, 0, 1])
    options = ["--tune", "head", "--epochs", "1", "--no-trace"]
    made = CliRunner().invoke(
        app, ["finetune", "resnet20", "--data", f"{tmp_path / 'a.npz'}", *options, "--out", f"{tmp_path / 'run'}"]
    )
    assert made.exit_code == 0, made.output
    words = ["plan", str(tmp_path / "run"), "--method", "fast-ntk", "--ids"]
    said = CliRunner().invoke(app, [*words, "0"])
    assert (
        "1 of the samples that stay are exact copies of some to be forgotten: 5. Erasing one copy erases nothing" in said.output
    )
    assert "look" not in said.output.partition("Erasing")[2]
    said = CliRunner().invoke(app, [*words, "1", "--duplicates", "near"])
    assert "No sample that stays is an exact copy" in said.output
    assert "None looks like one either" in said.output
    wrong = CliRunner().invoke(app, [*words, "1", "--duplicates", "all"])
    assert wrong.exit_code == 2
    assert "expected exact or near" in wrong.output


def test_photographs_are_told_apart(shared) -> None:  # type: ignore[no-untyped-def]
    """Of 1 000 real pictures, all but a few copies are found and nearly nothing else."""
    samples = fastntk.load_source(shared("data/cifar10-5k.npz"), spec=SPEC, images_per_class=100)
    images = [Image.fromarray(((x * 0.25 + 0.5) * 255).round().byte().permute(1, 2, 0).numpy()) for x in samples.inputs[:100]]
    again = torch.stack([prepare(saved_again(image), SPEC) for image in images])
    both = Samples(torch.cat([samples.inputs, again]), [0] * 1100)
    copies = find_copies(both, ForgetRequest(ids=range(100)).resolve(both), check="near")
    assert copies is not None
    assert copies.near is not None
    assert sum(int(name) >= 1000 for name in copies.near) >= 95
    assert sum(int(name) < 1000 for name in copies.near) <= 2
