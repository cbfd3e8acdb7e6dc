"""The key beside a result: kept through failures and replacements, needed for guesses, and absent from older folders."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
import torch
from torch import nn

import fastntk
from fastntk.auditing.cache import cached
from fastntk.base.digest import key_name, new_key
from fastntk.base.errors import InputError
from fastntk.storage.data import check_data
from fastntk.storage.keys import key_file, read_key, remove_key, stored_key
from fastntk.storage.manifest import SEAL, read_manifest, seal
from fastntk.storage.results import load_result, save_result
from fastntk.storage.runs import load_run


@pytest.fixture
def run() -> fastntk.Run:
    torch.manual_seed(0)
    samples = fastntk.Samples(torch.randn(9, 4), torch.arange(9) % 3, ids=[f"person-{n}" for n in range(9)])
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    return fastntk.fit(model, fastntk.tune(model, "all"), samples, fastntk.Recipe(epochs=1, batch_size=3))


def reseal(folder: Path, manifest: dict[str, object]) -> None:
    manifest[SEAL] = seal(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_result_is_paired_by_its_key_and_the_next_one_keeps_it(run: fastntk.Run, tmp_path: Path) -> None:
    first = fastntk.unlearn(run, ids=["person-2", "person-7"], method="full")
    save_result(first, tmp_path / "first")
    again = load_result(tmp_path / "first", run)
    assert again.split.forget.tolist() == [2, 7]
    assert again.key == first.key
    assert again.ids_digest == first.ids_digest == first.details["request"]["ids_digest"]
    chained = fastntk.unlearn(again, ids=["person-1"], method="full")
    assert chained.key == first.key
    loaded = load_run(tmp_path / "first", model=first.model)
    assert loaded.key == first.key
    assert (
        fastntk.unlearn(fastntk.Run(run.model, run.subset, run.anchor, run.data, key=loaded.key), ids=["person-1"]).key
        == first.key
    )
    other = fastntk.unlearn(run, ids=["person-2", "person-7"], method="full")
    assert other.ids_digest != first.ids_digest


def test_the_digest_of_what_is_retained_is_keyed_too(run: fastntk.Run, tmp_path: Path) -> None:
    result = fastntk.unlearn(run, ids=["person-2"], method="full")
    save_result(result, tmp_path / "result")
    manifest = read_manifest(tmp_path / "result")
    assert result.retained.ids_digest() not in json.dumps(manifest)
    other = fastntk.Samples(run.data.inputs[:8], run.data.labels[:8], ids=[f"other-{n}" for n in range(8)])
    with pytest.raises(InputError, match="other ids"):
        check_data(manifest, other, key=result.key)
    with pytest.raises(InputError, match="other pixels or labels"):  # without the key ids cannot be compared, the data still is
        check_data(manifest, other)


def test_results_of_older_releases_are_paired_as_before(run: fastntk.Run, tmp_path: Path) -> None:
    save_result(fastntk.unlearn(run, ids=["person-2", "person-7"], method="full"), tmp_path / "old")
    key_file(tmp_path / "old").unlink()
    manifest = read_manifest(tmp_path / "old")
    manifest["data"]["ids_digest"] = run.data.subset([0, 1, 3, 4, 5, 6, 8]).ids_digest()
    del manifest["data"]["key"], manifest["extra"]["request"]["key"]
    texts = [f"{run.data.digest()}:person-{number}" for number in (2, 7)]
    manifest["extra"]["request"]["forgotten"] = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    reseal(tmp_path / "old", manifest)
    assert load_result(tmp_path / "old", run).split.forget.tolist() == [2, 7]


def test_weights_that_are_no_numbers_are_refused_on_loading(run: fastntk.Run, tmp_path: Path) -> None:
    with torch.no_grad():
        run.model[1].bias[:2] = torch.tensor([torch.nan, torch.inf])  # type: ignore[index, union-attr, operator]
    with pytest.raises(InputError, match=r"weights that are no numbers .*1\.bias \(2\)"):
        load_run(run.save(tmp_path / "run"), model=run.model)


def test_keys_outlive_failures_and_replacements(tmp_path: Path) -> None:
    folder, first, second = tmp_path / "deep" / "result", new_key(), new_key()
    with pytest.raises(RuntimeError), stored_key(folder, first):
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with stored_key(folder, first):
        pass
    with pytest.raises(RuntimeError), stored_key(folder, second):
        raise RuntimeError
    assert key_file(folder).read_text().split() == [first.hex()]
    with stored_key(folder, second):
        pass
    assert [read_key(folder, key_name(key)) for key in (first, second)] == [first, second]
    remove_key(folder, key_name(first))
    assert key_file(folder).read_text().split() == [second.hex()]
    remove_key(folder, key_name(second))
    assert not key_file(folder).exists()


def test_a_file_that_holds_no_keys_is_refused(tmp_path: Path) -> None:
    key_file(tmp_path / "result").write_text("not hexadecimal")
    with pytest.raises(InputError, match="is no file of keys"):
        read_key(tmp_path / "result", "x")


def test_models_in_the_cache_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / "ensembles").mkdir(mode=0o755)  # as an older release made it
        path = tmp_path / "ensembles" / "digest" / "base-1.safetensors"
        cached(path, lambda: {"full": torch.ones(2)}, names=("full",))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]
