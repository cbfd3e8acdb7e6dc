"""What README, overview and limits claim: each is on its page, has something behind it, and its figures are the records."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.comparison import BASELINES, BUDGET, comparison
from lab.comparison_page import separation
from lab.packed import OWN_BATCHES, RETRAIN, record_file
from lab.packed_table import multiple, wider
from lab.path_rows import PathRecords
from lab.path_targets import BEST
from lab.rows import Row, records_of, row_of
from lab.settings import EXPERIMENTS, PACKED
from torch import nn
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import fastntk
from fastntk.base.schema import read_json
from fastntk.cli.app import app
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.reproduce.cells import RESNET, cells_of
from fastntk.reproduce.compare import compare
from fastntk.reproduce.records import setting_folder
from fastntk.reproduce.setting import PATH_AUTO

ROOT = Path(__file__).parents[2]
PAGES = {"README": ROOT / "README.md", "overview": ROOT / "docs" / "index.md", "limits": ROOT / "docs" / "limits.md"}
WHOLE = ("the picture", "the table of three trainings, and the demo's tables")
"""Claims that are no words of the page."""
RESULTS = ROOT / "results"


def claims() -> list[tuple[str, str, list[str]]]:
    """Words, page, and what is behind them."""
    rows = re.findall(
        r"^\| (.*?) \| (README|overview|limits) \| (.*?) \|$", (ROOT / "docs" / "claims.md").read_text("utf-8"), re.M
    )
    return [(words, page, re.findall(r"`([^`]+)`", behind)) for words, page, behind in rows]


def prose(page: Path) -> str:
    """The page in one line, its generated blocks left out."""
    text = re.sub(r"<!-- (\w+):start -->.*?<!-- \1:end -->", "", page.read_text("utf-8"), flags=re.S)
    return " ".join(text.split())


@pytest.mark.parametrize(("words", "page", "behind"), claims(), ids=[words[:40] for words, _, _ in claims()])
def test_a_claim_is_on_its_page_and_rests_on_something(words: str, page: str, behind: list[str]) -> None:
    assert words in WHOLE or words in prose(PAGES[page])
    assert behind
    for reference in behind:
        file, _, name = reference.partition("::")
        assert (ROOT / file).is_file(), reference
        assert not name or re.search(rf"^def {name}\(", (ROOT / file).read_text("utf-8"), re.M), reference


@pytest.mark.parametrize("page", PAGES)
def test_every_number_is_in_the_list(page: str) -> None:
    text = prose(PAGES[page])
    for words, where, _ in claims():
        text = text.replace(words, "") if where == page else text
    text = re.sub(r"```.*?```|\]\([^)]*\)|https?://\S+|arXiv [\d.]+|!\[[^\]]*\]|Apache-2.0", "", text)
    assert re.findall(r"[^ ]*\d[^ ]*", text) == []


def compared(label: str, *, request: int = 0) -> Row:
    setting = comparison(RESULTS)[request]
    method = next(method for method in setting.methods if method.label == label)
    row = row_of(setting, setting.requests[0], method, folder=setting_folder(RESULTS, setting.name))
    assert row is not None
    return row


def path_row(setting: str, label: str, *, request: int = 0) -> tuple[float, float]:
    """Cost of a first request, and the larger distance to other Retrains."""
    (found,) = [each for each in EXPERIMENTS["path"] if each.name == setting]
    row = PathRecords.read(found, out=RESULTS).row(label, found.requests[request])
    assert row is not None
    assert row.first.mean is not None
    return row.first.mean, max(figure.mean or 0.0 for figure in row.others.values())


def setting_of_the_picture() -> bool:
    return (RESNET.model, RESNET.images_per_class, RESNET.tune, BUDGET, len(BASELINES)) == ("resnet20", 100, "norm+head", 25, 12)


def the_yardstick_is_the_stricter_one() -> bool:
    """Of two, by the scatter among its Retrains and by the replays' distances in it."""
    (setting,) = PACKED
    found = read_json(record_file(setting, RESULTS))["requests"].values()
    rows = [row.label for row in setting.methods]
    places = ("forget", "holdout")

    def at(request: dict[str, Any], row: str, kind: str) -> float:
        return max(multiple(request, row, kind, place).mean or 0.0 for place in places)

    looser = all(wider(request, place) > 2 for request in found for place in places)
    head = all(at(request, "head", OWN_BATCHES) < at(request, "head", RETRAIN) for request in found)
    return looser and head and all(at(request, row, OWN_BATCHES) < 1.4 for request in found for row in rows)


def vits_are_cheap() -> bool:
    rows = [path_row(name, "head", request=k) for name in ("vit-caltech-20x50", "vit-caltech-50x20") for k in (0, 1)]
    adapted = read_json(RESULTS / "recorded" / "lora.json")["requests"].values()
    recovered = [statistics.fmean(request["rows"]["head"]["recovered"]) for request in adapted if request["forgotten"] > 1]
    return all(cost < 0.01 and distance < 1.05 for cost, distance in rows) and max(recovered) < 0.75


def deltagrad_is_the_nearest() -> bool:
    return others_are_nearer_than_the_head() and 0.7 < (compared("deltagrad", request=1).ratio_with_rows.mean or 0.0) < 0.8


def auto_ends_farther() -> bool:
    """In the cells of the paper's CNNs, and on the README's ResNet-20."""
    cells = [comparison.cell for comparison in compare("table1", cells_of("table1", real=False), out=RESULTS)]
    rows = [
        row_of(cell.setting, cell.setting.requests[0], PATH_AUTO, folder=setting_folder(RESULTS, cell.setting.name))
        for cell in cells
    ]
    farthest = max(row.multiple("others", place).mean or 0.0 for row in rows if row for place in ("forget", "holdout"))
    return f"{farthest:.1f}" == "2.4" and f"{path_row('resnet20-100', 'auto')[1]:.1f}" == "1.5"


def cnns_are_not() -> bool:
    head, best = path_row("resnet20-100", "head"), path_row("resnet20-100", BEST)
    whole = [path_row(name, "all")[0] for name in ("resnet20-100", "resnet20-200", "resnet20-500", "mobilenetv2-100")]
    near = (
        head[1] > 1.5
        and best[1] < 1.25
        and all(0.85 < path_row(name, BEST)[0] < 1.15 for name in ("resnet20-100", "resnet20-500"))
    )
    return near and path_row("mobilenetv2-100", BEST)[0] > 1.15 and 0.35 < min(whole) < max(whole) < 0.6


def replays_of_cnns_are_found_out() -> bool:
    rows = read_json(RESULTS / "calibration" / "report.json")["rows"]
    found = [row for row in rows if row["candidate"] == "path-replay, head" and row["request"] == "random-10pct-draw0"]
    of_demo = read_json(RESULTS / "demo" / "demo.json")["requests"][0]["rows"]
    digit = [row["verdict"] for row in of_demo if row["method"].startswith("path-replay")]
    shares = len(found) == 3 and all(row["levels"] == {"memory left": row["draws"]} for row in found)
    return shares and digit == ["differs from retrain"] * 2


def farther(label: str, *, request: int) -> float:
    """The larger of both distances to other Retrains."""
    return max(compared(label, request=request).multiple("others", place).mean or 0.0 for place in ("forget", "holdout"))


def area(label: str, *, request: int) -> float:
    """U-LiRA."""
    setting = comparison(RESULTS)[request]
    known = {
        each.label: records_of(setting, setting.requests[0], each, folder=setting_folder(RESULTS, setting.name))
        for each in setting.methods
        if each.label in (label, "retrain")
    }
    attack = separation(known[label], known["retrain"])
    assert attack is not None
    return attack.auc or 0.0


def others_are_nearer_than_the_head() -> bool:
    head, share = "path-replay, head", 1
    if not all(farther("fast-ntk", request=request) < farther(head, request=request) for request in (0, share)):
        return False
    for label in ("deltagrad", "tangent-replay"):
        costs = [compared(label, request=request).ratio_with_rows.mean or 0.0 for request in (0, share)]
        nearer = all(farther(label, request=request) < farther(head, request=request) for request in (0, share))
        told = (
            area(label, request=0) > area(head, request=0) + 0.1 and area(label, request=share) < area(head, request=share) - 0.1
        )
        if not (nearer and told and all(0.45 < cost < 1 for cost in costs)):
            return False
    rest = [row.label for row in comparison(RESULTS)[share].methods if row.method not in ("full", "retrain", "deltagrad")]
    return farther("deltagrad", request=share) < min(farther(label, request=share) for label in rest)


def audits_cost_more() -> bool:
    cost = read_json(RESULTS / "audit" / "resnet20-100-class-0.json")["cost"]
    said = (ROOT / "docs" / "faq.md").read_text("utf-8")
    seconds = round(cost["audit_seconds"]), round(cost["retrain_seconds"])
    return cost["audit_seconds"] > 2 * cost["retrain_seconds"] and all(f"{each} s" in said for each in seconds)


def sizes() -> bool:
    largest = max(setting.images_per_class or 0 for setting in EXPERIMENTS["path"] if setting.model == "resnet20")
    assert 10 * largest == 5000
    ensure_operators()
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        vit = timm.create_model("vit_small_patch14_dinov2")
    return round(sum(parameter.numel() for parameter in vit.parameters()) / 1e6) == 22


def first_requests(file: str) -> list[dict[str, float]]:
    """Wall seconds, and CPU time over a Retrain's, of each first request at a depth, in the records behind the tables."""
    records = [read_json(path)["timings"] for path in sorted((RESULTS / "records").glob(f"*/*/path-replay-{file}-seed*.json"))]
    shown = [{"seconds": each["method"]["wall"], "ratio": each["ratio_to_retrain"]["cpu"]["with_rows"]} for each in records]
    for path in sorted((RESULTS / "path").glob("*/seed*.json")):
        requests = read_json(path).get("rows", {}).get(file, {"requests": {}})["requests"].values()
        shown += [{"seconds": each["cost"]["wall"], "ratio": each["ratio"]["cpu"]} for each in requests]
    assert len(shown) > 80
    return shown


def heads_take_seconds() -> bool:
    """The slowest was on a busy machine."""
    chains = [read_json(path)["depths"]["head"]["steps"] for path in sorted((RESULTS / "path" / "chain").glob("seed*.json"))]
    seconds = [step["seconds"]["chained"] for steps in chains for step in steps]
    seconds += [each["seconds"] for each in first_requests("head")]
    return max(seconds) < 10 and statistics.median(seconds) < 1


def auto_takes_a_fifth() -> bool:
    """At the most, and on the CNNs nearly that."""
    ratios = sorted(each["ratio"] for each in first_requests("auto"))
    return ratios[-1] < 0.28 and 0.15 < ratios[len(ratios) // 2] < 0.25


FIGURES: dict[str, Callable[[], bool]] = {
    "forget any image in seconds": heads_take_seconds,
    "took less than ten seconds": heads_take_seconds,
    "goes as deep as about a fifth": auto_takes_a_fifth,
    "ResNet-20, 100 images a class": setting_of_the_picture,
    "in the same batches": the_yardstick_is_the_stricter_one,
    "Cheap requests come near": vits_are_cheap,
    "On CNNs a cheap request": lambda: cnns_are_not() and replays_of_cnns_are_found_out(),
    "On a CNN whose norm layers were tuned": cnns_are_not,
    "DeltaGrad, on the same record": deltagrad_is_the_nearest,
    "`auto` ends farther": auto_ends_farther,
    "on a random 10 %": replays_of_cnns_are_found_out,
    "The comparison, an audit, trains Retrains": audits_cost_more,
    "so an audited request costs more": audits_cost_more,
    "In [the comparison](comparison.md), DeltaGrad": others_are_nearer_than_the_head,
    "Measured on two CPU cores": sizes,
    "Two CPU cores": sizes,
}


@pytest.mark.parametrize("start", FIGURES)
def test_figures(start: str) -> None:
    listed = [words for words, _, behind in claims() if "tests/docs/test_claims.py::test_figures" in behind]
    assert all(any(words.startswith(known) for known in FIGURES) for words in listed)
    assert any(words.startswith(start) for words in listed)
    assert FIGURES[start]()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def test_the_sizes_of_traces_in_the_faq() -> None:
    sizes = {each["setting"]: each for each in read_json(RESULTS / "bench" / "trace.json")["result"]["sizes"]}
    shown = [round(sizes[name]["nbytes"] / 1e6) for name in ("resnet20-100", "vit-caltech-20x50", "mobilenetv2-100")]
    assert f"{min(shown)} to {max(shown)} MB for a thousand images" in (ROOT / "docs" / "faq.md").read_text("utf-8")


def test_the_readmes_loop_runs_as_written() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3))
    ids = [f"anna/{number:03d}.jpg" for number in range(1, 13)]
    rows = [(torch.randn(3, 2, 2), number % 3, name) for number, name in enumerate(ids)]
    names: dict[str, object] = {
        "fastntk": fastntk,
        "torch": torch,
        "model": model,
        "loss": nn.CrossEntropyLoss(),
        "loader": DataLoader(rows, batch_size=4),  # type: ignore[arg-type]
    }
    (loop,) = blocks(ROOT / "README.md", "python")
    exec(compile(loop, "README.md", "exec"), names)
    result = names["result"]
    assert isinstance(result, fastntk.Unlearned)
    assert result.forgotten.ids == ("anna/001.jpg", "anna/002.jpg")


def test_get_started_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "start.md"
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, "docs/start.md", "exec"), names)
    assert names["second"].forgotten.ids == ("11", "25")  # type: ignore[attr-defined]
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("fastntk ")]
    assert len(lines) == 5
    for line in lines:
        # Relearning and probes take most of an audit's time; other tests look at them.
        short = ["--relearn-cap", "5", "--no-probes"] if line.startswith("fastntk audit") else []
        outcome = CliRunner().invoke(app, line.split()[1:] + short)
        assert outcome.exit_code == 0, f"{line}\n{outcome.output}"
    assert (tmp_path / "results" / "first" / "report.html").is_file()
