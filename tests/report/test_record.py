"""Which records are read, and what is said about the others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fastntk.auditing import schema, to_dict
from fastntk.base.errors import InputError
from fastntk.report import check_record, read_record, record_digest, render

Record = dict[str, Any]


Change = Callable[[Record, str, Any], Record]
AUDITS = sorted((Path(__file__).parents[2] / "results" / "audit").glob("*.json"))


def test_a_record_is_read_from_a_folder_or_by_name(record: Record, tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(record, indent=1))
    assert read_record(tmp_path) == read_record(tmp_path / "audit.json") == check_record(record)
    assert check_record(check_record(record)) == check_record(record)


@pytest.mark.parametrize("path", AUDITS, ids=[path.stem for path in AUDITS])
def test_records_that_were_published_come_back_as_they_were(path: Path) -> None:
    content = json.loads(path.read_text("utf-8"))
    typed = read_record(path)
    assert to_dict(typed) == content
    assert record_digest(typed) == record_digest(content)
    assert typed.accuracy.forget.unlearned == content["accuracy"]["forget"]["unlearned"]


@pytest.mark.parametrize("which", ["record", "bare"])
def test_made_up_records_come_back_too_and_fit_the_schema(which: str, request: pytest.FixtureRequest) -> None:
    record = request.getfixturevalue(which)
    assert to_dict(check_record(record)) == record
    jsonschema.validate(record, schema())


def test_fields_of_later_releases_are_let_through(record: Record) -> None:
    before = check_record(record)
    record["subject"]["colour"] = record["novelty"] = {"a": 1}
    assert check_record(record) == before
    jsonschema.validate(record, schema())
    assert record_digest(record) in render(record)  # the page names the content that was given, not what was understood of it
    assert record_digest(record) != record_digest(before)


def test_the_digest_is_of_the_content(record: Record, changed: Change) -> None:
    again = json.loads(json.dumps(dict(reversed(list(record.items()))), indent=3))
    assert record_digest(again) == record_digest(record)
    assert record_digest(changed(again, "subject.samples", 15)) != record_digest(record)


# The last: whether a JSON Schema can say it; lengths that belong together and finite numbers it cannot.
WRONG: list[tuple[str, Any, str, bool]] = [
    ("subject", ..., "the record has no field 'subject'", True),
    ("cost", ..., "the record has no field 'cost'", True),
    ("limits", [], "limits: expected a list of length >= 1, found []", True),
    ("subject.model", ..., "subject has no field 'model'", True),
    ("subject.samples", "many", "subject.samples: expected a whole number, found 'many'", True),
    ("subject.run.tuned", "abc", "subject.run.tuned: expected a string matching regex", True),
    ("subject.classes", ["cat", 3, "fox"], "subject.classes[1]: expected a string, found 3", True),
    ("request.forget", -1, "request.forget: expected a whole number ≥ 0, found -1", True),
    ("request.forget", True, "request.forget: expected a whole number, found True", True),
    ("request.forget", 4.5, "request.forget: expected a whole number, found 4.5", True),
    ("reference.made", 1, "reference.made: expected true or false", True),
    ("reference.seed", -1, "reference.seed: expected a whole number ≥ 0", True),
    ("accuracy.forget.full", 98.7, "accuracy.forget.full: expected a fraction from 0 to 1, found 98.7", True),
    ("accuracy.forget.full", -0.1, "accuracy.forget.full: expected a fraction from 0 to 1, found -0.1", True),
    ("accuracy.forget.unlearned", ..., "accuracy.forget has no field 'unlearned'", True),
    ("accuracy.forget.retrain", None, "accuracy.forget.retrain: expected a finite number, found None", True),
    ("accuracy.forget", [1], "accuracy.forget: expected an object", True),
    ("accuracy.holdout", ..., "accuracy has no field 'holdout'", True),
    ("loss.forget.full", "low", "loss.forget.full: expected a finite number or null, found 'low'", True),
    ("verdict.level", "fine", "verdict.level: expected one of 'cannot be told', 'differs from retrain'", True),
    ("verdict.text", "fine", "verdict.text: expected a list", True),
    ("verdict.text", [], "verdict.text: expected a list of length >= 1", True),
    ("relearn.full.curve", [0.1, "low"], "relearn.full.curve[1]: expected a finite number", True),
    ("relearn.full.curve", [], "relearn.full.curve: expected a list of length >= 1", True),
    ("relearn.full.threshold", ..., "relearn.full has no field 'threshold'", True),
    ("membership.population.full.auc", 2, "membership.population.full.auc: expected a fraction", True),
    ("membership.population.full.by_feature.loss", ..., "by_feature has no field 'loss'", True),
    ("membership.u_lira.full.auc", None, "membership.u_lira.full.auc: expected a finite number", True),
    ("membership.u_lira.retrain", ..., "membership.u_lira has no field 'retrain'", True),
    ("membership.u_lira.ensemble.kind", "made up", "ensemble.kind: expected one of 'real', 'tangent'", True),
    ("membership.klom.retrain", ..., "membership.klom has no field 'retrain'", True),
    ("membership.population.full.roc.tpr", [0.0], "membership.population.full.roc: fpr and tpr differ in length", False),
    ("membership.population.full.roc.tpr", [0.0] * 102, "roc.tpr: expected a list of length <= 101", True),
    ("distances", ..., "the record has no field `distances`, though a Retrain was made", True),
    ("distances.same_seed.weights", "far", "distances.same_seed.weights: expected a finite number or null", True),
    ("distances.same_seed.tug_of_war", 1.5, "distances.same_seed.tug_of_war: expected a fraction", True),
    ("probes.linear_probe.full.retain", 3.0, "probes.linear_probe.full.retain: expected a fraction", True),
    ("flow.full", [[1, 2]], "flow.full: expected 3 × 3 counts", False),
    ("flow.full.0.0", -1, "flow.full[0][0]: expected a whole number ≥ 0", True),
    ("loss_histogram.full.forget", [1], "loss_histogram.full.forget: expected 4 counts for 5 edges", False),
    ("loss_histogram.edges", [0.0], "loss_histogram.full.retain: expected 0 counts for 1 edges", False),
    ("samples.0", "id 17", "samples[0]: expected an object", True),
    ("samples.0.digest", ..., "samples[0] has no field 'digest'", True),
    ("cost.seconds", float("nan"), "cost.seconds: expected a finite number, found nan", False),
    ("cost.seconds", float("inf"), "cost.seconds: expected a finite number, found inf", False),
    ("relearn.full.curve.0", float("nan"), "relearn.full.curve[0]: expected a finite number, found nan", False),
    ("accuracy.forget.full", float("nan"), "accuracy.forget.full: expected a finite number, found nan", False),
    ("cost.stages", 3, "cost.stages: expected an object, found 3", True),
    ("requirements.0.passed", "yes", "requirements[0].passed: expected true or false", True),
    ("definitions|accuracy.forget", {"title": "x"}, "definitions[...] has no field 'definition'", True),
    ("definitions|accuracy.forget|better", "more", "definitions[...].better: expected one of 'higher', 'like retrain'", True),
]


@pytest.mark.parametrize(("path", "value", "message", "in_schema"), WRONG, ids=[f"{path} {value}" for path, value, _, _ in WRONG])
def test_malformed_records_are_refused_by_place(
    record: Record, changed: Change, path: str, value: Any, message: str, in_schema: bool
) -> None:
    wrong = changed(record, path, value)
    with pytest.raises(InputError) as caught:
        check_record(wrong)
    assert str(caught.value).startswith("malformed audit record: ")
    assert message in str(caught.value)
    assert "fastntk audit" in str(caught.value)
    assert jsonschema.Draft202012Validator(schema()).is_valid(wrong) != in_schema


def test_the_report_is_loaded_without_torch() -> None:
    loaded = "import sys, fastntk.report, fastntk.auditing.verdict, fastntk.schemas"
    code = f"{loaded}; fastntk.schemas.load('audit-1'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as an audit record"),
        ("[]", "no audit record"),
        ("{}", "no audit record"),
        ('{"schema": 1}', "no audit record"),
        ('{"schema": "fastntk-audit/2"}', "has schema 'fastntk-audit/2', this fastntk reads 'fastntk-audit/1'"),
        ('{"schema": "fastntk-audit/0"}', "use the release that wrote it, or audit the result again"),
        (b"\xff\xfe", "cannot be read as an audit record"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    file = tmp_path / "audit.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_record(tmp_path)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_result_without_an_audit_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no audit\.json.*fastntk audit RUN .* --holdout SRC"):
        read_record(tmp_path)
    with pytest.raises(InputError, match="is not there"):
        read_record(tmp_path / "nowhere")
