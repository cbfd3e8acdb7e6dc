"""Digests of the code: words do not count, constants do; a baseline more leaves other methods' records as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fastntk.base.errors import InputError
from fastntk.reproduce import code
from fastntk.reproduce.code import AUDITING, BASELINES, PACKAGE, TRAINING, changed_rooms, code_of, source_digest
from fastntk.unlearning.registry import METHODS

SOURCE = '''"""A module."""

RATE = 0.1
"""What it is."""


def step(value: float, *, rate: float = 2.0) -> float:
    """One step."""
    if value < 0:
        raise ValueError(f"No: {value}.")
    return value - rate * RATE  # down
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', '"""Another text."""'),
        ('"""What it is."""\n', ""),
        ("  # down", "  # a comment, and more of it"),
        ("value - rate * RATE", "(value\n        - rate * RATE)"),
        ("No: {value}.", "Expected a number from 0, got {value}."),
        (" -> float", " -> int"),
        ("value: float,", "value: int,"),
    ],
)
def test_words_change_nothing(old: str, new: str) -> None:
    assert old in SOURCE
    assert source_digest(SOURCE.replace(old, new)) == source_digest(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"), [("RATE = 0.1", "RATE = 0.2"), ("= 2.0", "= 3.0"), ("value < 0", "value <= 0"), ("-", "+")]
)
def test_constants_defaults_and_formulas_do(old: str, new: str) -> None:
    text = SOURCE.replace(old, new) if old != "-" else SOURCE.replace("value - rate", "value + rate")
    assert source_digest(text) != source_digest(SOURCE)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's source once more, to be written to."""
    copy = tmp_path / "fastntk"
    shutil.copytree(PACKAGE, copy, ignore=lambda folder, names: [name for name in names if not _source(Path(folder, name))])
    monkeypatch.setattr(code, "PACKAGE", copy)
    return copy


def _source(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".py"


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text("utf-8") + text, "utf-8")
    code._room_digest.cache_clear()


def test_a_changed_constant_makes_the_records_that_depend_on_it_stale(package: Path) -> None:
    ours, theirs, weights = code_of("fast-ntk"), code_of("scrub"), code_of(rooms=TRAINING)
    assert set(ours) == set(AUDITING)
    assert set(theirs) == {*AUDITING, BASELINES}
    assert not changed_rooms(ours, code_of("fast-ntk"))
    _append(package / "auditing" / "metrics.py", "\n# a comment\n")
    assert not changed_rooms(ours, code_of("fast-ntk"))
    _append(package / "auditing" / "metrics.py", "\nLIMIT = 3\n")
    assert changed_rooms(ours, code_of("fast-ntk")) == changed_rooms(theirs, code_of("scrub")) == ("auditing",)
    assert not changed_rooms(weights, code_of(rooms=TRAINING))
    _append(package / "training" / "recipe.py", "\nLIMIT = 3\n")
    assert changed_rooms(weights, code_of(rooms=TRAINING)) == ("training",)


def test_a_new_baseline_leaves_other_methods_alone(package: Path) -> None:
    ours, theirs, retrain = code_of("path-replay"), code_of("ssd"), code_of("retrain")
    (package / "unlearning" / "baselines" / "new.py").write_text("VALUE = 1\n")
    _append(package / "unlearning" / "registry.py", "\nVALUE = 1\n")
    assert not changed_rooms(ours, code_of("path-replay"))
    assert changed_rooms(theirs, code_of("ssd")) == (BASELINES,)
    _append(package / "unlearning" / "baselines" / "retrain.py", "\nVALUE = 1\n")
    assert changed_rooms(ours, code_of("path-replay")) == ("unlearning",)
    assert changed_rooms(retrain, code_of("retrain")) == ("unlearning",)


def test_what_names_no_code_is_stale_in_every_room() -> None:
    now = code_of("full")
    for known in (None, {}, "text", 3):
        assert changed_rooms(known, now) == tuple(now)


def test_every_method_has_a_digest_and_unknown_rooms_are_refused() -> None:
    assert all(len(digest) == 12 for name in METHODS for digest in code_of(name).values())
    with pytest.raises(InputError, match="is no room of the package"):
        code_of(rooms=("kitchen",))
