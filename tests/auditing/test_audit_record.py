"""The whole record: its types, what it never holds, and what it leaves alone."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import jsonschema
import pytest
import torch

import fastntk
from fastntk.auditing import PredictionCache, accuracy, parse_record, schema, to_dict, total_variation
from fastntk.auditing.calibration import LEVEL
from fastntk.auditing.evidence import findings
from fastntk.auditing.figures import BY_NAME, value_of
from fastntk.auditing.sections import cost
from fastntk.base.errors import InputError
from fastntk.data import Samples
from fastntk.training.network import predict


def valid(record: dict[str, Any]) -> None:
    checker = jsonschema.Draft202012Validator(schema())
    problems = [f"{list(error.absolute_path)}: {error.message[:200]}" for error in checker.iter_errors(record)]
    assert not problems
    assert to_dict(parse_record(record)) == record
    assert json.loads(json.dumps(record, allow_nan=False)) == record


@pytest.fixture(scope="module")
def result(toy):
    return fastntk.unlearn(toy.run, ids=toy.ids(20), method="tangent-replay")


@pytest.fixture(scope="module")
def record(toy, result, tmp_path_factory):
    wanted = ["forget_accuracy<=retrain+100", "total_variation_forget<=0"]
    cache = tmp_path_factory.mktemp("cache")
    return fastntk.audit(
        toy.run,
        result,
        holdout=toy.holdout,
        reference="retrain",
        retrains=2,
        require=wanted,
        ensemble=8,
        ensemble_kind="real",
        cache=cache,
    )


def test_the_schema_is_one_and_the_record_fits_it(record) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    valid(record)
    broken = copy.deepcopy(record)
    del broken["accuracy"]["forget"]["unlearned"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema())


def test_every_figure_that_can_be_required_is_there(record) -> None:
    absent = {name for name, figure in BY_NAME.items() if value_of(parse_record(record), figure, "unlearned") is None}
    # No whole class was forgotten, so the hold-out set is not split by class.
    assert absent == {"holdout_forgotten_classes_accuracy", "holdout_kept_classes_accuracy"}


def test_figures_are_those_of_the_models(toy, result, record) -> None:
    retrain = fastntk.unlearn(toy.run, ids=toy.ids(20), method="retrain")
    forgotten = retrain.forgotten
    for name, model in (("full", toy.run.model), ("unlearned", result.model), ("retrain", retrain.model)):
        outputs = predict(model, forgotten.inputs)
        assert record["accuracy"]["forget"][name] == accuracy(outputs, forgotten.labels)
        table = torch.tensor(record["flow"][name])
        assert int(table.diagonal().sum()) == round(20 * accuracy(outputs, forgotten.labels))
        assert sum(record["loss_histogram"][name]["holdout"]) == len(toy.holdout)
    p, q = (predict(model, toy.holdout.inputs).double().softmax(1) for model in (result.model, retrain.model))
    assert record["distances"]["same_seed"]["total_variation"]["holdout"] == pytest.approx(total_variation(p, q))
    assert record["reference"] == {"made": True, "seed": 0, "other_seeds": [1, 2]}
    assert [item["passed"] for item in record["requirements"]] == [True, False]
    assert record["membership"]["population"]["full"]["auc"] > record["membership"]["population"]["retrain"]["auc"]


def test_no_id_is_anywhere_in_it(toy, record) -> None:
    text = json.dumps(record)
    assert not [name for name in (*toy.run.data.ids, *toy.holdout.ids) if name in text]
    assert "samples" not in record


def test_nothing_is_touched_and_the_same_seed_gives_the_same_record(toy, result, record) -> None:
    run = toy.run
    run.model.train()
    states = [copy.deepcopy(model.state_dict()) for model in (run.model, result.model)]
    generator = torch.random.get_rng_state()
    try:
        options = {"reference": "retrain", "holdout": toy.holdout}
        first, second = (fastntk.audit(run, result, **options) for _ in range(2))
        assert run.model.training
    finally:
        run.model.eval()
    assert torch.equal(generator, torch.random.get_rng_state())
    for state, model in zip(states, (run.model, result.model)):
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    changing = ("created", "cost", "verdict", "record_sha256")  # the verdict's text names the cost
    assert {k: v for k, v in first.items() if k not in changing} == {k: v for k, v in second.items() if k not in changing}
    assert first["verdict"]["level"] == second["verdict"]["level"]
    assert first["accuracy"] == record["accuracy"]


def test_retrain_audited_against_itself_is_like_retrain(toy) -> None:
    retrained = [fastntk.unlearn(toy.run, ids=toy.ids(20), method="retrain", seed=seed) for seed in (0, 1)]
    record = fastntk.audit(toy.run, retrained[0], holdout=toy.holdout, reference=retrained)
    valid(record)
    same = record["distances"]["same_seed"]
    assert same["total_variation"] == {"forget": 0.0, "holdout": 0.0}
    assert (same["weights"], same["recovered"], same["tug_of_war"]) == (0.0, 1.0, 1.0)
    assert record["verdict"]["level"] == "like retrain"
    assert record["cost"]["ratio_to_retrain"] == 1.0


def test_nothing_done_leaves_memory(toy) -> None:
    nothing = fastntk.unlearn(toy.run, ids=toy.ids(20), method="full")
    record = fastntk.audit(toy.run, nothing, holdout=toy.holdout, reference="retrain", probes=False)
    valid(record)
    assert record["verdict"]["level"] == "memory left"
    assert record["distances"]["same_seed"]["recovered"] == 0.0
    assert record["relearn"]["unlearned"] == record["relearn"]["full"]
    assert "probes" not in record


def test_without_a_reference_the_record_says_so(toy, result) -> None:
    bare = dataclasses.replace(toy.run, recipe=None)
    record = fastntk.audit(bare, dataclasses.replace(result, run=bare), holdout=toy.holdout)
    valid(record)
    assert record["reference"] == {"made": False, "seed": None, "other_seeds": []}
    assert "distances" not in record
    assert "retrain" not in record["accuracy"]["forget"]
    assert record["verdict"]["level"] == ("not to be trusted" if record["details"]["validity"]["reasons"] else "no reference")


def test_a_class_request_splits_the_hold_out_set(toy) -> None:
    reference = fastntk.unlearn(toy.run, classes=["bee"], method="retrain")
    record = fastntk.audit(toy.run, reference, holdout=toy.holdout, reference=reference)
    valid(record)
    assert record["request"]["whole_classes"] == ["bee"]
    assert record["accuracy"]["holdout_forgotten_classes"]["retrain"] == 0.0
    share = float((toy.holdout.labels == 1).double().mean())
    parts = (record["accuracy"][f"holdout_{part}_classes"]["full"] for part in ("forgotten", "kept"))
    assert sum(w * a for w, a in zip((share, 1 - share), parts)) == pytest.approx(record["accuracy"]["holdout"]["full"])
    assert record["membership"]["population"] is None
    assert "whole classes were forgotten" in record["membership"]["note"]
    assert any("No population attack" in sentence for sentence in record["limits"])
    with pytest.raises(InputError, match="requests of whole classes have none"):
        fastntk.audit(toy.run, reference, holdout=toy.holdout, reference=reference, require="attack_auc<=retrain+0.1")


def test_of_a_class_and_single_samples_the_attack_looks_at_the_single_ones(toy) -> None:
    data = toy.run.data
    ids = [name for name, label in zip(data.ids, data.labels.tolist()) if label == 1]
    others = [name for name in data.ids if name not in ids][:15]
    mixed = fastntk.unlearn(toy.run, ids=[*ids, *others], method="full")
    record = fastntk.audit(toy.run, mixed, holdout=toy.holdout, probes=False, relearn_cap=2)
    assert record["request"]["whole_classes"] == ["bee"]
    sizes = {"forgotten": 15, "holdout": int((toy.holdout.labels != 1).sum())}
    assert record["membership"]["sizes"] == sizes


def test_the_noise_of_the_difference_to_retrain_is_in_the_record(toy) -> None:
    nothing = fastntk.unlearn(toy.run, ids=toy.ids(20), method="full")
    record = fastntk.audit(toy.run, nothing, holdout=toy.holdout, reference="retrain", retrains=0, probes=False, relearn_cap=2)
    attacks = record["membership"]["population"]
    assert "difference_standard_error" not in attacks["retrain"]
    noise = attacks["unlearned"]["difference_standard_error"]
    assert 0 < noise == attacks["full"]["difference_standard_error"]
    difference = attacks["unlearned"]["auc"] - attacks["retrain"]["auc"]
    for error, told in ((0.9 * difference / LEVEL, True), (1.1 * difference / LEVEL, False)):
        attacks["unlearned"]["difference_standard_error"] = error
        record.pop("record_sha256", None)
        assert ("population attack" in {item.test for item in findings(parse_record(record))}) == told


def test_outputs_that_are_no_numbers_still_give_a_record(toy) -> None:
    broken = fastntk.unlearn(toy.run, ids=toy.ids(20), method="full")
    broken.subset.set(torch.full((toy.run.subset.numel,), torch.finfo(toy.run.anchor.dtype).max))
    record = fastntk.audit(toy.run, broken, holdout=toy.holdout, reference="retrain", retrains=0)
    valid(record)
    assert record["loss"]["forget"]["unlearned"] is None
    assert record["membership"]["population"]["unlearned"] is None
    assert record["verdict"]["level"] == "differs from retrain"
    assert any("not numbers" in reason for reason in record["verdict"]["reasons"])


def test_outputs_that_are_no_numbers_are_never_right() -> None:
    labels = torch.tensor([0, 0, 1])
    assert accuracy(torch.full((3, 2), torch.nan), labels) == 0.0
    assert accuracy(torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [0.0, 1.0]]), labels) == pytest.approx(2 / 3)


def test_weights_that_are_no_numbers_are_refused(toy) -> None:
    broken = fastntk.unlearn(toy.run, ids=toy.ids(20), method="full")
    name, parameter = next(iter(broken.subset.parameters.items()))
    with torch.no_grad():
        parameter.view(-1)[:3] = torch.nan
    with pytest.raises(InputError, match=rf"unlearned model has 3 weights that are no numbers.*{name} \(3\)"):
        fastntk.audit(toy.run, broken, holdout=toy.holdout)
    run = dataclasses.replace(broken.as_run(), samples=toy.run.data)
    with pytest.raises(InputError, match=r"run's model has 3 weights that are no numbers"):
        fastntk.unlearn(run, ids=toy.ids(4), method="full")


def test_few_samples_give_no_attack_but_a_record(toy) -> None:
    few = fastntk.unlearn(toy.run, ids=toy.ids(4), method="full")
    record = fastntk.audit(toy.run, few, holdout=toy.holdout, probes=False, relearn_cap=2)
    valid(record)
    assert record["membership"]["population"] is None
    assert any("No attack" in sentence for sentence in record["limits"])


def refused(toy, result, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        fastntk.audit(toy.run, result, **({"holdout": toy.holdout} | options))
    return str(error.value)


def test_what_does_not_belong_together_is_refused(toy, result) -> None:
    run = toy.run
    other = fastntk.unlearn(run, ids=toy.ids(19), method="retrain")
    assert "same request" in refused(toy, result, reference=other)
    assert "only a Retrain can be the reference" in refused(toy, result, reference=result)
    other_seed = fastntk.unlearn(run, ids=toy.ids(20), method="retrain", seed=5)
    assert "own seed 0" in refused(toy, result, reference=other_seed)
    retrained = fastntk.unlearn(run, ids=toy.ids(20), method="retrain")
    assert "different seeds" in refused(toy, result, reference=[retrained, retrained])
    assert "None, 'retrain' or a result" in refused(toy, result, reference="retrian")
    assert "empty list" in refused(toy, result, reference=[])
    other_run = dataclasses.replace(result, run=dataclasses.replace(run, anchor=run.anchor + 1))
    assert "another run" in refused(toy, other_run)
    assert "forgot no samples" in refused(toy, fastntk.unlearn(run, ids=[], method="full"))
    bare = dataclasses.replace(run, recipe=None)
    with pytest.raises(InputError, match="the run has none"):
        fastntk.audit(bare, dataclasses.replace(result, run=bare), holdout=toy.holdout, reference="retrain")


def test_hold_out_sets_that_do_not_fit_are_refused(toy, result) -> None:
    unseen = toy.holdout
    assert "got list" in refused(toy, result, holdout=[1])
    assert "is empty" in refused(toy, result, holdout=unseen.subset([]))
    assert "shape (5,)" in refused(toy, result, holdout=Samples(unseen.inputs[:, :5], unseen.labels))
    assert "Labels must be 0…2" in refused(toy, result, holdout=Samples(unseen.inputs, unseen.labels + 1))
    renamed = Samples(unseen.inputs, unseen.labels, classes=["bee", "ant", "cat"])
    assert "names its classes" in refused(toy, result, holdout=renamed)
    two = (unseen.labels < 2).nonzero().flatten()
    fewer = Samples(unseen.inputs[two], unseen.labels[two], classes=["ant", "cat"])
    assert "names its classes ('ant', 'cat'), the run (" in refused(toy, result, holdout=fewer)
    assert "90 of 90 hold-out samples are training samples" in refused(toy, result, holdout=toy.run.data)


def test_requirements_are_refused_before_any_work(toy, result) -> None:
    assert "needs a Retrain" in refused(toy, result, require=["recovered>=0.9"])
    assert "several seeds" in refused(toy, result, reference="retrain", retrains=0, require=["weights<=spread"])
    assert "cannot be read" in refused(toy, result, require="nonsense")
    assert "at least 8 models" in refused(toy, result, reference="retrain", ensemble=2)
    assert "relearn_threshold must be finite and > 0" in refused(toy, result, reference="retrain", relearn_threshold=0.0)


def test_the_cost_says_whether_rows_were_made_before(toy: Any) -> None:
    request = {"ids": toy.ids(3), "method": "fast-ntk"}
    alone = fastntk.unlearn(toy.run, **request)
    served = fastntk.unlearn(toy.run, linearisation=fastntk.linearise_run(toy.run), **request)
    without_rows = fastntk.unlearn(toy.run, ids=toy.ids(3), method="retrain")
    assert [cost(result, None, audit_seconds=0.0).rows_made_before for result in (alone, served, without_rows)] == [
        False,
        True,
        False,
    ]


def test_each_retrain_has_its_own_distances_and_their_means_are_the_old_figures(record) -> None:
    distances = record["distances"]
    assert set(distances["by_seed"]) == {"0", "1", "2"}
    assert set(distances["retrain_pairs"]) == {"0-1", "0-2", "1-2"}
    assert distances["by_seed"]["0"] == distances["same_seed"]
    for mean, parts in (
        ("other_seeds", [distances["by_seed"][seed] for seed in ("1", "2")]),
        ("retrain_spread", distances["retrain_pairs"].values()),
    ):
        for name in ("weights", "recovered", "tug_of_war"):
            assert distances[mean][name] == pytest.approx(sum(part[name] for part in parts) / len(parts))


def test_several_audits_share_predictions_and_get_the_same_figures(toy, result, monkeypatch) -> None:
    from fastntk.auditing import comparisons, predictions

    passes, relearned = [], []
    relearn = comparisons.relearn
    monkeypatch.setattr(comparisons, "relearn", lambda *args, **kwargs: relearned.append(1) or relearn(*args, **kwargs))
    observe = predictions.observe
    monkeypatch.setattr(
        predictions, "observe", lambda *args, **kwargs: passes.append(kwargs["title"]) or observe(*args, **kwargs)
    )
    retrained = [fastntk.unlearn(toy.run, ids=toy.ids(20), method="retrain", seed=seed) for seed in (0, 1)]
    nothing = fastntk.unlearn(toy.run, ids=toy.ids(20), method="full")
    shared = PredictionCache()
    options = {"holdout": toy.holdout, "reference": retrained, "relearn_cap": 1}
    alone = [fastntk.audit(toy.run, item, **options) for item in (result, nothing, retrained[1])]
    assert len(passes) == 3 * 3 * 6  # audits, sets, models: full, unlearned, two Retrains, pre-trained, random
    assert len(relearned) == 3 * 3  # audits, models: full, unlearned, Retrain
    passes.clear()
    relearned.clear()
    together = [fastntk.audit(toy.run, item, **options, predictions=shared) for item in (result, nothing, retrained[1])]
    assert len(relearned) == 4  # the result, Full (which the second is), two Retrains
    # The second is Full; the third is a Retrain that was evaluated without features.
    assert [title.split(":")[0] for title in passes] == [
        name for name in ("full", "unlearned", "retrain", "other retrain", "pre-trained", "random", "unlearned") for _ in range(3)
    ]
    assert shared.hits == (3 * 6 - 7) + (3 * 3 - 4)
    changing = ("created", "cost", "verdict", "record_sha256")
    for separate, cached in zip(alone, together):
        assert {k: v for k, v in separate.items() if k not in changing} == {k: v for k, v in cached.items() if k not in changing}
    passes.clear()
    fastntk.audit(toy.run, fastntk.unlearn(toy.run, ids=toy.ids(19), method="full"), holdout=toy.holdout, predictions=shared)
    assert passes  # other sets, nothing to share


def test_the_data_is_digested_once(toy, result, monkeypatch) -> None:
    digested = []
    digest = Samples.digest
    monkeypatch.setattr(Samples, "digest", lambda samples: digested.append(len(samples)) or digest(samples))
    fastntk.audit(toy.run, result, holdout=toy.holdout, reference="retrain", relearn_cap=1)
    assert digested.count(len(toy.run.data)) == 1
    assert len(digested) == 1


def test_classes_of_an_earlier_request_are_not_among_those_that_stay(toy) -> None:
    """Nobody expects the second result to know them."""
    first = fastntk.unlearn(toy.run, classes=["ant"], method="retrain").as_run()
    labels = toy.holdout.labels
    for request, whole in (({"classes": ["bee"]}, ["bee"]), ({"ids": [first.data.ids[0]]}, [])):
        second = fastntk.unlearn(first, method="retrain", **request)
        record = fastntk.audit(first, second, holdout=toy.holdout, relearn_cap=1, probes=False)
        assert record["request"]["whole_classes"] == whole
        stays = (labels == 2) if whole else (labels != 0)
        predicted = second.model(toy.holdout.inputs).argmax(1)
        expected = float((predicted[stays] == labels[stays]).double().mean())
        assert record["accuracy"]["holdout_kept_classes"]["unlearned"] == pytest.approx(expected)
