"""A made-up audit record with every section in it; the figures are small enough to check by eye."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fastntk.auditing.calibration import RULES
from fastntk.report import sections

flow_module = importlib.import_module("fastntk.report.flow")
MODELS = ("full", "unlearned", "retrain")
CLASSES = ["cat", "dog", "fox"]


def sha(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def _by_model(full: Any, unlearned: Any, retrain: Any) -> dict[str, Any]:
    return dict(zip(MODELS, (full, unlearned, retrain)))


def _distance(forget: float, holdout: float) -> dict[str, Any]:
    both = {"forget": forget, "holdout": holdout}
    agreement = {"forget": 1 - forget, "holdout": 1 - holdout}
    return {"total_variation": both, "jensen_shannon": both, "agreement": agreement, "weights": 0.5, "recovered": None} | {
        "tug_of_war": 0.9
    }


def _attack(auc: float) -> dict[str, Any]:
    curve = {"fpr": [0.0, 0.5, 1.0], "tpr": [0.0, auc, 1.0]}
    return {"auc": auc, "auc_standard_error": 0.03, "tpr_at_1pct_fpr": 0.02, "roc": curve}


def _population(auc: float) -> dict[str, Any]:
    return _attack(auc) | {"by_feature": {"loss": auc, "confidence": auc, "entropy": 0.5, "margin": 0.5}}


def _record() -> dict[str, Any]:
    histogram = {"retain": [8, 2, 0, 0], "forget": [0, 1, 2, 1], "holdout": [2, 1, 1, 0]}
    return {
        "schema": "fastntk-audit/1",
        "created": "2026-11-16T09:30:00+00:00",
        "fastntk": "0.1.0",
        "environment": {"python": "3.11.7", "torch": "2.13.0", "platform": "Linux", "threads": 1},
        "subject": {
            "model": "resnet20",
            "weights": "cifar100",
            "tuned": 2026,
            "tuned_share": 0.0075,
            "parameters": 269722,
            "classes": CLASSES,
            "samples": 14,
            "holdout": 4,
            "run": {"data": sha("data"), "tuned": sha("tuned"), "anchor": sha("anchor")},
            "result": {"tuned": sha("after")},
            "recipe": {"epochs": 8, "lr": 0.002, "bn_stats": "frozen"},
            "method": "tangent-replay",
            "options": {"polish": 1},
        },
        "request": {"forget": 4, "retain": 10, "whole_classes": ["cat"], "ids_digest": sha("ids")},
        "details": {
            "validity": {"verdict": "ok"},
            "outside_subset": {"message": "All weights outside the tuned subset are the pre-trained ones."},
            "batch_norm_statistics": "untouched",
        },
        "reference": {"made": True, "seed": 0, "other_seeds": [1, 2]},
        "accuracy": {
            "retain": _by_model(0.9, 0.8, 0.9),
            "forget": _by_model(1.0, 0.0, 0.25),
            "holdout": _by_model(0.75, 0.5, 0.5),
            "holdout_kept_classes": _by_model(0.5, 0.5, 0.5),
        },
        "loss": {"retain": _by_model(0.2, 0.3, 0.2), "forget": _by_model(0.1, 4.0, 3.5), "holdout": _by_model(0.5, 1.5, 1.6)},
        "relearn": _by_model(
            {"epochs": 0, "censored": False, "threshold": 0.05, "cap": 5, "curve": [0.04]},
            {"epochs": 3, "censored": False, "threshold": 0.05, "cap": 5, "curve": [4.0, 1.0, 0.1, 0.01]},
            {"epochs": None, "censored": True, "threshold": 0.05, "cap": 5, "curve": [3.5, 2.5, 1.5, 1.0, None, 0.5]},
        ),
        "probes": {
            "own_head": {model: {"retain": 0.9, "forget": 0.5, "holdout": 0.5} for model in MODELS},
            "linear_probe": {m: {"retain": 1.0, "forget": 0.75, "holdout": 0.5} for m in (*MODELS, "pretrained", "random")},
            "note": "random: built anew",
        },
        "distances": {
            "same_seed": _distance(0.02, 0.01),
            "other_seeds": _distance(0.05, 0.04),
            "retrain_spread": _distance(0.04, 0.03),
            "full": _distance(0.8, 0.3),
        },
        "membership": {
            "population": _by_model(_population(0.9), _population(0.55), _population(0.5)),
            "sizes": {"forgotten": 4, "holdout": 4},
            "note": None,
            "u_lira": {
                "ensemble": {
                    "kind": "tangent",
                    "size": 8,
                    "seeds": [1, 2, 3, 4, 5, 6, 7, 8],
                    "seconds": 12.0,
                    "reused": 0,
                    "estimated_seconds": 10.0,
                },
                **_by_model(_attack(1.0), _attack(0.54), _attack(0.5)),
            },
            "klom": {model: {"mean": 0.4, "p95": 1.5} for model in MODELS},
        },
        "flow": {
            "classes": CLASSES,
            "full": [[4, 0, 0], [0, 0, 0], [0, 0, 0]],
            "unlearned": [[0, 3, 1], [0, 0, 0], [0, 0, 0]],
            "retrain": [[1, 2, 1], [0, 0, 0], [0, 0, 0]],
        },
        "loss_histogram": {"edges": [0.0, 1.0, 2.0, 4.0, 8.0], **dict.fromkeys(MODELS, histogram)},
        "samples": [
            {
                "digest": sha(f"sample {number}"),
                "label": "cat",
                **_by_model("cat", "dog", "dog" if number else "cat"),
                "loss": _by_model(0.1, 4.0, 3.5),
            }
            for number in range(4)
        ],
        "cost": {
            "seconds": 2.0,
            "retrain_seconds": 8.0,
            "ratio_to_retrain": 0.25,
            "peak_memory_bytes": 512_000_000,
            "stages": {"rows": 1.5, "total": 2.0},
            "audit_seconds": 30.0,
        },
        "definitions": {
            "accuracy.forget": {
                "title": "Accuracy on forgotten samples",
                "definition": "Share of samples classified correctly.",
                "better": "like retrain",
                "unit": "fraction",
            },
            "relearn.epochs": {
                "title": "Epochs",
                "definition": "Until the loss is low.",
                "better": "like retrain",
                "unit": "epochs",
            },
        },
        "verdict": {
            "level": "like retrain",
            "text": ["It predicts like Retrain."],
            "reasons": ["all distances are small"],
            "rules": RULES,
        },
        "requirements": [
            {"text": "forget_accuracy<=retrain+1", "left": 0.0, "right": 26.0, "passed": True, "note": None},
            {"text": "holdout_accuracy>=90", "left": 50.0, "right": 90.0, "passed": False, "note": None},
        ],
        "limits": ["This is evidence, not a certificate."],
    }


_DRAWN: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each plot once for all tests: the same figures give the same plot, and most pages differ in one section."""

    def remembered(name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
        def call(*figures: Any, **options: Any) -> Any:
            key = json.dumps([name, figures, options], default=msgspec.to_builtins)
            if key not in _DRAWN:
                _DRAWN[key] = draw(*figures, **options)
            return _DRAWN[key]

        return call

    for module in (sections, flow_module):
        for name in ("accuracy_bars", "flow_bars", "loss_steps", "relearn_curves", "roc_curves", "distance_bars", "cost_bars"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, remembered(name, getattr(module, name)))


@pytest.fixture
def record() -> dict[str, Any]:
    return copy.deepcopy(_record())


@pytest.fixture
def changed() -> Callable[[dict[str, Any], str, Any], dict[str, Any]]:
    """A copy of a record with one value replaced, or taken away where ``value`` is ``...``."""

    def change(record: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
        record = json.loads(json.dumps(record))
        place: Any = record
        *parents, last = path.split("|" if "|" in path else ".")
        for name in parents:
            place = place[int(name) if isinstance(place, list) else name]
        if value is ...:
            del place[last]
        else:
            place[int(last) if isinstance(place, list) else last] = value
        return record

    return change


@pytest.fixture
def bare(record: dict[str, Any]) -> dict[str, Any]:
    """The same with nothing but what every record has, and no Retrain."""
    del record["probes"], record["distances"], record["accuracy"]["holdout_kept_classes"]
    parts = (record["relearn"], record["flow"], record["loss_histogram"], *record["accuracy"].values(), *record["loss"].values())
    for part in (*parts, *record["samples"], *(sample["loss"] for sample in record["samples"])):
        del part["retrain"]
    return record | {
        "reference": {"made": False, "seed": None, "other_seeds": []},
        "membership": {},
        "cost": record["cost"] | {"retrain_seconds": None, "ratio_to_retrain": None},
        "requirements": [],
        "verdict": {"level": "no reference", "text": ["Nothing to compare with."], "reasons": []},
    }


@pytest.fixture
def read_page() -> Callable[[str], Any]:
    from html.parser import HTMLParser

    class Page(HTMLParser):
        """Every start tag with its attributes, and the text."""

        void = frozenset(("meta", "link", "img", "br"))

        def __init__(self) -> None:
            super().__init__()
            self.tags: list[tuple[str, dict[str, str]]] = []
            self.stack: list[str] = []
            self.text = ""

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append((tag, {name: value or "" for name, value in attrs}))
            if tag not in self.void:
                self.stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.stack, f"</{tag}> closes nothing"
            assert self.stack.pop() == tag, f"</{tag}> closes something else"

        def handle_data(self, data: str) -> None:
            self.text += data

        def all(self, tag: str) -> list[dict[str, str]]:
            return [attributes for name, attributes in self.tags if name == tag]

    def read(html: str) -> Page:
        page = Page()
        page.feed(html)
        page.close()
        assert not page.stack, f"never closed: {page.stack}"
        return page

    return read
