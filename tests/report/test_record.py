"""Which records are read, and what is said about the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastntk.base.errors import InputError
from fastntk.report import check_record, read_record, record_digest

Record = dict[str, Any]


def changed(record: Record, path: str, value: Any) -> Record:
    """The record with one value replaced, or taken away where ``value`` is ``...``."""
    place: Any = record
    *parents, last = path.split(".")
    for name in parents:
        place = place[int(name) if isinstance(place, list) else name]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return record


def test_a_record_is_read_from_a_folder_or_by_name(record: Record, tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(record, indent=1))
    assert read_record(tmp_path) == read_record(tmp_path / "audit.json") == record


def test_fields_of_later_releases_are_let_through(record: Record) -> None:
    record["subject"]["colour"] = record["novelty"] = {"a": 1}
    assert check_record(record)["novelty"] == {"a": 1}


def test_the_digest_is_of_the_content(record: Record) -> None:
    again = json.loads(json.dumps(dict(reversed(list(record.items()))), indent=3))
    assert record_digest(again) == record_digest(record)
    assert record_digest(changed(again, "subject.samples", 15)) != record_digest(record)


WRONG: list[tuple[str, Any, str]] = [
    ("subject", ..., "the record has no field 'subject'"),
    ("subject.model", ..., "subject has no field 'model'"),
    ("subject.samples", "many", "subject.samples: expected a whole number ≥ 0, found 'many'"),
    ("request.forget", -1, "request.forget: expected a whole number"),
    ("request.forget", True, "request.forget: expected a whole number"),
    ("accuracy.forget.full", 98.7, "accuracy.forget.full: expected a fraction from 0 to 1, found 98.7"),
    ("accuracy.forget", [1], "accuracy.forget: expected an object"),
    ("verdict.level", "fine", "verdict.level: expected one of 'like retrain'"),
    ("verdict.text", "fine", "verdict.text: expected a list"),
    ("relearn.full.curve", [0.1, "low"], "relearn.full.curve[1]: expected a finite number"),
    ("relearn.full.threshold", ..., "relearn.full has no field 'threshold'"),
    ("membership.population.full.auc", 2, "membership.population.full.auc: expected a fraction"),
    ("membership.u_lira.full.auc", None, "membership.u_lira.full.auc: expected a fraction"),
    ("membership.population.full.roc.tpr", [0.0], "fpr and tpr differ in length"),
    ("distances.same_seed.weights", "far", "distances.same_seed.weights: expected a finite number"),
    ("flow.full", [[1, 2]], "flow.full: expected 3 × 3 counts"),
    ("loss_histogram.full.forget", [1], "loss_histogram.full.forget: expected 4 counts for 5 edges"),
    ("samples.0", "id 17", "samples[0]: expected an object"),
    ("samples.0.digest", ..., "samples[0] has no field 'digest'"),
    ("cost.seconds", float("nan"), "cost.seconds: expected a finite number"),
    ("requirements.0.passed", "yes", "requirements[0].passed: expected true or false"),
    ("definitions.accuracy", {"title": "x"}, "definitions.accuracy has no field 'definition'"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=[path for path, _, _ in WRONG])
def test_malformed_records_are_refused_by_place(record: Record, path: str, value: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_record(changed(record, path, value))
    assert str(caught.value).startswith("malformed audit record: ")
    assert message in str(caught.value)
    assert "fastntk audit" in str(caught.value)


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
