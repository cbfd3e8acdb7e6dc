"""The page: well-formed, self-contained, accessible, the same every time, and it says what is not there."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import typer.main

import fastntk
from fastntk.base.errors import InputError
from fastntk.cli.app import app
from fastntk.report import record_digest, render, write_report

SECTIONS = [
    "request", "accuracy", "flow", "losses", "relearn", "membership", "distances", "probes", "samples", "cost",
    "requirements", "definitions", "limits", "record",
]  # fmt: skip
OPTIONAL = [
    ("probes", "Linear probes"),
    ("membership.population", "The attack on membership"),
    ("membership.u_lira", "U-LiRA and KLoM"),
    ("membership.klom", ""),
    ("membership.sizes", ""),
    ("distances.retrain_spread", "The spread between Retrains"),
    ("distances.other_seeds", ""),
    ("accuracy.holdout_kept_classes", ""),
    ("flow.retrain", "was not made"),
    ("loss_histogram.retrain", "was not made"),
    ("relearn.retrain", "was not made"),
    ("samples.0.retrain", ""),
    ("accuracy.forget.retrain", ""),
    ("loss.forget.retrain", ""),
]
NULL = [
    ("probes.linear_probe", ""),
    ("probes.linear_probe.random", ""),
    ("membership.population", "The attack on membership"),
    ("membership.population.unlearned", ""),
    ("membership.u_lira.retrain", ""),
    ("membership.klom.full", ""),
    ("distances.same_seed.total_variation.forget", ""),
    ("loss.forget.unlearned", ""),
    ("samples.0.loss.unlearned", ""),
    ("relearn.unlearned.epochs", ""),
    ("cost.retrain_seconds", "was not made"),
    ("cost.peak_memory_bytes", ""),
    ("subject.recipe", ""),
    ("subject.weights", ""),
    ("requirements.0.left", ""),
]
PNG = b"\x89PNG\r\n\x1a\nnot really a picture"
Record = dict[str, Any]
Reader = Callable[[str], Any]


def words(page: Any) -> str:
    return re.sub(r"\s+", " ", page.text)


def test_the_page_is_well_formed_and_in_order(record: Record, read_page: Reader) -> None:
    page = read_page(render(record))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [attributes["id"] for attributes in page.all("section")] == ["verdict", *SECTIONS]
    for _, attributes in page.tags:
        if attributes.get("href", "#").startswith("#") and "href" in attributes:
            assert attributes["href"][1:] in ids
        for reference in attributes.get("aria-labelledby", "").split():
            assert reference in ids
        for address in re.findall(r"url\(#([^)]+)\)", " ".join(attributes.values())):
            assert address in ids


def test_nothing_is_fetched_and_nothing_runs(record: Record, read_page: Reader) -> None:
    html = render(record)
    page = read_page(html)
    assert "http:" not in html
    assert "https:" not in html
    assert not {"script", "iframe", "object", "embed", "form"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert [attributes["href"] for attributes in page.all("link")] == ["data:,"]


def test_it_can_be_read_without_eyes(record: Record, read_page: Reader) -> None:
    page = read_page(render(record))
    assert page.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    plots = page.all("svg")
    assert len(plots) == 3 + 1 + 3 + 1 + 2 + 2 + 1
    assert all(plot["role"] == "img" and len(plot["aria-labelledby"].split()) == 2 for plot in plots)
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(head.get("scope") in ("col", "row") for head in page.all("th"))
    assert {tag for tag, _ in page.tags} >= {"header", "nav", "main", "footer", "title", "desc"}
    scrolling = [attributes for attributes in page.all("div") if "scroll" in attributes.get("class", "")]
    assert all(each["tabindex"] == "0" and each["aria-label"] for each in scrolling)


def test_rows_that_were_made_before_are_said_to_be_left_out(record: Record, read_page: Reader) -> None:
    sentence = "as long as Retrain, not counting the Jacobian rows"
    assert sentence not in words(read_page(render(record)))
    record["cost"]["rows_made_before"] = True
    assert sentence in words(read_page(render(record)))


def test_figures_arrive_on_the_page(record: Record, read_page: Reader) -> None:
    text = words(read_page(render(record))).replace("\u00a0", " ")
    for part in (
        "Unlearning report: request to forget 4 samples",
        "Verdict: like retrain",
        "It predicts like Retrain.",
        "all distances are small",
        "Forget 4 samples of 14 (28.6 %)",
        "before 100.0 %, Retrain 25.0 %",
        "before 0, Retrain more than 5",
        "16 November 2026, 09:30 UTC",
        "none are classified correctly, but mostly “dog” (75.0 %) and “fox” (25.0 %)",
        "Retrain: 25.0 % are classified correctly, the others mostly “dog” (50.0 %)",
        "0.50 times as far from the Retrain of its own seed, and 1.2 times as far from those of other seeds",
        "above 2.13 is more than chance",
        "rests on 3 Retrains: on the 4 forgotten samples",
        "Unlearning took 0.25 times as long as Retrain.",
        "an ensemble of 8 tangent models",
        "✓ passed",
        "✗ failed",
        "1 of 2",
        "512 MB",
        "Share of samples classified correctly.",
        "This is evidence, not a certificate.",
        "Area under the curve, where 0.5 is guessing: Before 0.90, After 0.55 and Retrain 0.50.",
        record["subject"]["run"]["tuned"],
        record["subject"]["result"]["tuned"],
        record_digest(record),
        *record["subject"]["recipe"]["bn_stats"].split(),
    ):
        assert part in text, part


@pytest.mark.parametrize(
    "level", ["like retrain", "differs from retrain", "memory left", "not to be trusted", "cannot be told", "no reference"]
)
def test_every_verdict_has_a_headline_and_a_sign(record: Record, level: str) -> None:
    record["verdict"]["level"] = level
    html = render(record)
    assert f"Verdict: {level}" in html
    assert re.search(r'<section class="verdict (good|warn|bad|open)"', html)
    assert ('verdict good"' in html) == (level == "like retrain")


def test_a_bare_record_says_what_was_not_computed_and_how_to_get_it(bare: Record, read_page: Reader) -> None:
    page = read_page(render(bare))
    assert [attributes["id"] for attributes in page.all("section")] == ["verdict", *SECTIONS]
    text = words(page)
    assert text.count("Not computed.") == 10
    assert "--reference retrain" in text
    assert "nothing: Retrain was not made" in text
    assert len(page.all("svg")) == 3 + 1 + 2 + 1


@pytest.mark.parametrize(("path", "missing", "value"), [(*pair, ...) for pair in OPTIONAL] + [(*pair, None) for pair in NULL])
def test_any_optional_part_may_be_missing(
    record: Record, changed: Any, read_page: Reader, path: str, missing: str, value: Any
) -> None:
    assert "Not computed." not in read_page(render(record)).text
    text = words(read_page(render(changed(record, path, value))))
    assert "None" not in text
    assert "UNSET" not in text
    assert ("Not computed." in text) == bool(missing)
    assert missing in text


def test_without_retrain_nothing_is_said_of_it(record: Record, read_page: Reader) -> None:
    record["reference"] = {"made": False, "seed": None, "other_seeds": []}
    del record["distances"]
    for part in (record["relearn"], record["flow"], record["loss_histogram"], *record["accuracy"].values()):
        del part["retrain"]
    for sample in record["samples"]:
        del sample["retrain"]
    text = words(read_page(render(record)))
    assert "nothing: Retrain was not made" in text
    assert text.count("Retrain, the model that never saw the forgotten samples, was not made") >= 4


def test_hints_name_options_that_exist(bare: Record) -> None:
    known = {option for each in typer.main.get_command(app).commands["audit"].params for option in each.opts}  # type: ignore[attr-defined]
    hinted = re.findall(r"<code>(fastntk audit RUN RESULT[^<]*)</code>", render(bare))
    assert hinted
    assert {word for hint in hinted for word in hint.split() if word.startswith("--")} <= known


EVIL = "<script>alert(1)</script>\"'&amp;"


def test_names_cannot_become_markup(record: Record, read_page: Reader) -> None:
    names = [EVIL, "cost: $5 or $6", "狐\x00\x1b[31m"]
    record = json.loads(json.dumps(record).replace("@", ""))
    record["flow"]["classes"] = record["subject"]["classes"] = names
    record["request"]["whole_classes"] = [EVIL]
    record["subject"]["model"] = record["subject"]["options"]["polish"] = EVIL
    record["verdict"]["text"] = record["verdict"]["reasons"] = record["limits"] = [EVIL]
    record["definitions"][f"x{EVIL}.y"] = {"title": EVIL, "definition": EVIL, "unit": EVIL, "better": "lower"}
    record["requirements"][0]["text"] = record["requirements"][0]["note"] = EVIL
    record["cost"]["stages"][EVIL] = 1.0
    html = render(record)
    assert "<script" not in html
    page = read_page(html)
    assert not page.all("script")
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert EVIL in page.text
    assert "cost: $5 or $6" in page.text
    assert "\x1b" not in html
    assert "\x00" not in html


def test_requests_of_single_samples_over_many_classes_get_one_plot(record: Record, read_page: Reader) -> None:
    names = [f"class {number}" for number in range(5)]
    own = [[int(row == column) for column in range(5)] for row in range(5)]
    off = [[int(column == (row + 1) % 5) for column in range(5)] for row in range(5)]
    record["flow"] = {"classes": names, "full": own, "unlearned": off, "retrain": off}
    page = read_page(render(record))
    text = words(page).replace("\u00a0", " ")
    assert "After: 0 % their own label and 100 % something else" in text
    assert [plot for plot in page.all("svg") if plot["aria-labelledby"].startswith("plot-flow-")] == [
        {**page.all("svg")[3], "aria-labelledby": "plot-flow-all-title plot-flow-all-desc"}
    ]


def test_the_same_record_gives_the_same_bytes_in_another_process_without_torch(record: Record, tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text(json.dumps(record))
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nsvg.fonttype: path\nlines.linewidth: 9\n")
    code = (
        "import sys, pathlib; from fastntk.report import read_record, write_report; assert 'torch' not in sys.modules;"
        "write_report(read_record('audit.json'), pathlib.Path('page.html')); assert 'torch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "MPLCONFIGDIR": str(tmp_path), "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "page.html").read_bytes() == render(record).encode()  # from the typed record and from the dictionary
    shuffled = dict(reversed(list(record.items())))
    assert render(shuffled) == render(record)


def test_pictures_are_shown_only_when_given_and_with_a_warning(record: Record, read_page: Reader) -> None:
    without = render(record)
    assert "<img" not in without
    assert "asked to be forgotten" not in without
    page = read_page(render(record, thumbnails=[PNG]))
    assert [image["src"][:22] for image in page.all("img")] == ["data:image/png;base64,"]
    assert page.all("img")[0]["alt"] == "Forgotten sample 1"
    assert "This file holds pictures that were asked to be forgotten." in page.text
    with pytest.raises(InputError, match="Picture 2 of 2 is not a PNG file"):
        render(record, thumbnails=[PNG, b"<svg onload=alert(1)>"])


def test_nothing_of_a_single_sample_is_shown_though_an_older_record_has_it(record: Record) -> None:
    record["samples"][1]["loss"]["unlearned"] = 3.14159
    html = render(record)
    assert record["samples"][1]["digest"] not in html
    assert "3.14" not in html


def test_a_record_of_older_rules_is_shown_with_both_verdicts_and_not_in_green(record: Record, read_page: Reader) -> None:
    del record["verdict"]["rules"]
    assert 'verdict good"' in render(record)  # old and new rules agree
    record["accuracy"]["retain"]["unlearned"] = 0.1
    html = render(record)
    assert 'verdict warn"' in html
    assert "judged by other rules (1, now 2) as “like retrain”; by the present ones it is “differs from retrain”" in html
    assert "does not follow from its figures" not in html


@pytest.mark.parametrize("spoil", ["level", "requirement"])
def test_a_judgement_that_the_figures_do_not_give_is_never_green(record: Record, spoil: str) -> None:
    assert 'verdict good"' in render(record)
    if spoil == "level":
        record["accuracy"]["retain"]["unlearned"] = 0.1  # of 10 samples, 8 fewer than Retrain
    else:
        record["requirements"][1]["passed"] = True
    html = render(record)
    assert 'verdict bad"' in html
    assert "does not follow from its figures" in html
    assert "✓ The model now predicts" not in html


def test_the_page_may_load_nothing_and_run_nothing(record: Record, read_page: Reader) -> None:
    (policy,) = [tag["content"] for tag in read_page(render(record)).all("meta") if tag.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    assert rules == {"style-src": "'unsafe-inline'", "img-src": "data:"}


def test_writing_is_atomic_and_replaces_only_when_asked(record: Record, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "page.html"
    assert fastntk.write_report(record, target) == target
    assert target.read_text("utf-8") == render(record)
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="exists already"):
        write_report(record, target)
    record["verdict"]["level"] = "memory left"
    write_report(record, target, overwrite=True)
    assert "Verdict: memory left" in target.read_text("utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(scheme: str) -> None:
    style = resources.files("fastntk.report").joinpath("style.css").read_text("utf-8")
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)", 1)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    if scheme == "dark":
        colours |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark.split("\n}", 1)[0]))
    pairs = [(ink, back) for ink in ("ink", "soft", "link") for back in ("page", "panel")]
    pairs += [(ink, f"{tone}-back") for tone in ("good", "warn", "bad", "open") for ink in (tone, "ink", "soft")]
    for ink, back in pairs:
        assert contrast(colours[ink], colours[back]) >= 4.5, (scheme, ink, back)
    for mark in ("full", "unlearned", "retrain", "forget", "other", "soft"):  # plots need 3 : 1, their words are in ink
        assert contrast(colours[f"plot-{mark}"], colours["page"]) >= 3, (scheme, mark)


def contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_parameters_that_were_left_are_named(record: Record, read_page: Reader) -> None:
    record["details"] |= {"moved": ["fc.weight", "fc.bias"], "left": ["bn1.weight", "bn1.bias"]}
    text = words(read_page(render(record)))
    assert "2 tensors moved, 2 were left where the forgotten samples helped to put them" in text
    assert "bn1.weight" in text


def test_a_page_replaces_pages_only(record: dict[str, Any], tmp_path: Path) -> None:
    weights = tmp_path / "tuned.safetensors"
    weights.write_bytes(b"three weeks of training")
    with pytest.raises(InputError, match="does not start as a report of fastntk"):
        write_report(record, weights, overwrite=True)
    assert weights.read_bytes() == b"three weeks of training"
    page = write_report(record, tmp_path / "page.html")
    write_report(record, page, overwrite=True)


def test_a_request_of_whole_classes_says_why_there_is_no_population_attack(record: dict[str, Any]) -> None:
    record["membership"] |= {"population": None, "note": "no population attack: whole classes were forgotten"}
    text = render(record)
    assert "No population attack: whole classes were forgotten." in text
    assert "The attack on membership" not in text


def test_membership_figures_of_this_release(record: dict[str, Any]) -> None:
    """Beside the older record of the other tests: paired noise, shift, KLoM by set and where it saturates."""
    membership = record["membership"]
    membership["population"]["unlearned"]["difference_standard_error"] = 0.047
    membership["u_lira"]["shift"] = {m: {"median": -1.5, "standard_error": 0.25} for m in ("full", "unlearned", "retrain")}
    membership["u_lira"]["ensemble"]["variation"] = "seed-only"
    gaussian = {"mean": 40.0, "median": 31.5, "p95": 90.0}
    apart = {"mean": 9.87, "p95": 10.2, "p99": 10.3, "disjoint": 0.97, "gaussian": gaussian}
    near = apart | {"mean": 4.56, "disjoint": 0.1}
    by_model = {"full": apart, "unlearned": near, "retrain": near}
    membership["klom"] = by_model | {
        "retained": by_model,
        "models": 8,
        "bins": 20,
        "ceiling": 11.5,
        "note": "8 models are too few",
    }
    text = render(record)
    for words in ("± 0.047", "-1.50 ± 0.25", "It is seed-only", "4.56", "31.5", "KLoM: 8 models are too few", "retained samples"):
        assert words in text, words
    assert "apart (saturated)" in text
    assert "9.87" not in text.partition("<script")[0].replace(json.dumps(record), "")
