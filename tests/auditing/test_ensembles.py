"""Ensembles: what they are made of, that they are made once, and that damage is noticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import fastntk
from fastntk.auditing.ensembles import FEWEST, check_ensemble, ensemble, ensemble_figures
from fastntk.base.errors import InputError


@pytest.fixture(scope="module")
def result(toy):
    return fastntk.unlearn(toy.run, ids=toy.ids(12), method="tangent-replay")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ensembles")


@pytest.fixture(scope="module")
def real(toy, result, folder: Path):
    return ensemble(toy.run, result, size=FEWEST, kind="real", cache=folder)


def test_real_models_are_fits_and_retrains_of_other_seeds(toy, result, real) -> None:
    run, seed = toy.run, real.seeds[2]
    retrain = fastntk.unlearn(run, ids=toy.ids(12), method="retrain", seed=seed)
    assert torch.equal(real.vectors["retrain"][2], retrain.subset.get())
    everything = fastntk.unlearn(run, ids=[], method="retrain", seed=seed)
    assert torch.equal(real.vectors["full"][2], everything.subset.get())
    other = fastntk.Run(
        everything.model, everything.subset, run.anchor, run.data, recipe=dataclasses.replace(run.recipe, seed=seed)
    )
    again = fastntk.unlearn(other, ids=toy.ids(12), method="tangent-replay")
    torch.testing.assert_close(real.vectors["unlearned"][2], again.subset.get())
    assert run.recipe.seed not in real.seeds


def test_what_was_made_is_not_made_again_and_other_methods_share_it(toy, result, real, folder: Path) -> None:
    again = ensemble(toy.run, result, size=FEWEST, kind="real", cache=folder)
    assert (real.reused, again.reused) == (0, 2 * FEWEST)
    assert all(torch.equal(again.vectors[name], real.vectors[name]) for name in real.vectors)
    full = fastntk.unlearn(toy.run, ids=toy.ids(12), method="full")
    other = ensemble(toy.run, full, size=FEWEST, kind="real", cache=folder)
    assert other.reused == FEWEST
    assert torch.equal(other.vectors["unlearned"], other.vectors["full"])


def test_another_request_shares_nothing(toy, tmp_path: Path) -> None:
    for count in (11, 12):
        other = fastntk.unlearn(toy.run, ids=toy.ids(count), method="full")
        assert ensemble(toy.run, other, size=FEWEST, kind="real", cache=tmp_path).reused == 0
    assert len(list(tmp_path.rglob("*.safetensors"))) == 4 * FEWEST
    assert len(list((tmp_path / "ensembles").iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"rubbish", None])
def test_a_damaged_file_is_noticed_and_made_again(toy, result, real, folder: Path, damage: bytes | None) -> None:
    (path,) = folder.rglob(f"base-{real.seeds[0]}.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    with pytest.warns(UserWarning, match="made again"):
        again = ensemble(toy.run, result, size=FEWEST, kind="real", cache=folder)
    assert again.reused == 2 * FEWEST - 1
    assert torch.equal(again.vectors["full"], real.vectors["full"])
    assert ensemble(toy.run, result, size=FEWEST, kind="real", cache=folder).reused == 2 * FEWEST


def test_tangent_models_at_the_own_seed_are_the_run_and_the_replay(toy, result) -> None:
    from fastntk.auditing.ensembles import _Tangent

    maker = _Tangent(toy.run, result, toy.run.recipe)
    vectors = maker.base(toy.run.recipe.seed)
    torch.testing.assert_close(vectors["full"], toy.run.subset.get())
    replayed = fastntk.unlearn(toy.run, ids=toy.ids(12), method="tangent-replay", blend=0, validate=False)
    torch.testing.assert_close(vectors["retrain"], replayed.subset.get())
    torch.testing.assert_close(maker.unlearned(0, vectors["full"]), result.subset.get())


def test_both_kinds_tell_full_from_retrain_and_not_retrain_from_itself(toy, folder: Path) -> None:
    nothing = fastntk.unlearn(toy.run, ids=toy.ids(12), method="full")
    for kind in ("real", "tangent"):
        lira, klom = ensemble_figures(toy.run, nothing, size=12, kind=kind, cache=folder / kind)
        assert lira.full.auc > 0.85, kind
        assert lira.retrain.auc == pytest.approx(0.5, abs=0.2)
        assert lira.shift.full.median > 3 * lira.shift.full.standard_error > 0
        assert abs(lira.shift.retrain.median) < lira.shift.retrain.standard_error
        assert klom.full.mean > klom.retrain.mean
        assert klom.full.gaussian.median > 3 * klom.retrain.gaussian.median
        assert (klom.models, bool(klom.retained), bool(klom.held_out)) == (6, True, False)
        assert lira.ensemble.size == len(lira.ensemble.seeds) == 12
        assert lira.ensemble.variation == "seed-only"


def test_refusals(toy, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be one of real, tangent; got 'fake'"):
        check_ensemble(toy.run, size=8, kind="fake")
    with pytest.raises(InputError, match="at least 8 models"):
        check_ensemble(toy.run, size=7, kind="real")
    bare = dataclasses.replace(toy.run, recipe=None)
    with pytest.raises(InputError, match="the run has none"):
        check_ensemble(bare, size=8, kind="real")
    updating = dataclasses.replace(toy.run, recipe=fastntk.Recipe(bn_stats="update"))
    with pytest.raises(InputError, match="BatchNorm statistics"):
        check_ensemble(updating, size=8, kind="tangent")
    replayed = fastntk.unlearn(toy.run, ids=toy.ids(12), method="tangent-replay")
    with pytest.raises(InputError, match="cannot judge tangent-replay"):
        fastntk.audit(toy.run, replayed, holdout=toy.holdout, ensemble=8, ensemble_kind="tangent")
    file = tmp_path / "file"
    file.write_text("")
    nothing = fastntk.unlearn(toy.run, ids=toy.ids(12), method="full")
    with pytest.raises(InputError, match="is not a folder"):
        ensemble(toy.run, nothing, size=8, cache=file)
