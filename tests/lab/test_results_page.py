"""docs/results.md: what the committed records give, byte for byte; statements that follow the figures."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from committed import ROOT, committed
from lab.agreement import agreement, probe_agreement
from lab.expectation import expectation_table
from lab.glance_table import glance_table
from lab.length_table import length_table
from lab.marks import filled
from lab.parameters import VITS, convolutions, shares, transformer
from lab.results_page import results_page
from lab.settings import LENGTH

from fastntk.models import build_model
from fastntk.models.torchvision_ops import ensure_operators
from fastntk.reproduce import paper
from fastntk.reproduce.cells import cells_of
from fastntk.reproduce.compare import ACCURACIES, COST, DISTANCES, PROBES, RELEARN, Comparison, Entry, Ours
from fastntk.reproduce.summary import Figure


@pytest.mark.filterwarnings("ignore:the installed torchvision")
def test_committed_page_is_what_the_records_give(tmp_path: Path) -> None:
    """`make tables` again, byte for byte."""
    ensure_operators()
    pytest.importorskip("timm")
    for name, content in results_page(out=committed(tmp_path)).items():
        assert content == (ROOT / "docs" / name).read_bytes(), f"docs/{name} is not what the records give: make tables"


@pytest.mark.filterwarnings("ignore:the installed torchvision")
def test_the_instructions_hold_what_plan_expects() -> None:
    ensure_operators()
    pytest.importorskip("timm")
    page = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    assert filled(page, expectation_table()) == page


@pytest.mark.parametrize("name", ["resnet110", "mobilenetv2_x0_5"])
def test_the_formulas_count_every_convolution_and_norm(name: str) -> None:
    model = build_model(name, num_classes=10)
    kinds = convolutions(model)
    sizes = {key: value.numel() for key, value in model.named_parameters()}
    matrices = sum(value.numel() for value in model.parameters() if value.ndim == 4)
    head = sum(value.numel() for value in list(model.parameters())[-2:])
    assert sum(kind.conv * kind.count for kind in kinds) == matrices
    assert sum(kind.norm * kind.count for kind in kinds) == sum(sizes.values()) - matrices - head


@pytest.mark.filterwarnings("ignore:the installed torchvision")
def test_a_block_has_12_squares_and_not_11() -> None:
    ensure_operators()
    pytest.importorskip("timm")
    for name in VITS:
        block = transformer(name)
        assert block.matrices == 12 * block.width**2
        assert block.whole == 12 * block.width**2 + 13 * block.width
        assert block.prompts == 10 * block.width
    differing = [share.model for share in shares() if round(100 * share.ratio, 2) != share.published]
    assert differing == ["mobilenetv2"]


def comparison(figures: dict[str, tuple[float, float, float, float]], *, censored: int = 0) -> Comparison:
    """ResNet-20's first cell with these retain, forget and hold-out accuracies and relearn epochs."""
    cell = next(cell for cell in cells_of("table1", real=False) if cell.model == "resnet20")
    published = paper.published_table("table1")
    metrics = (*ACCURACIES, RELEARN)
    entries = []
    for label, values in figures.items():
        ours: dict[str, Ours | None] = {m.key: Ours(Figure(value, 1.0, 3)) for m, value in zip(metrics, values)}
        ours["relearn"] = Ours(Figure(values[3], 1.0, 3), censored, 100)
        theirs = {m.key: published.figure(m.published, label, cell.column) for m in metrics if m.published}
        entries.append(Entry(label, 3, 5, ours, theirs, 0.4))
    return Comparison("table1", published.columns[cell.column], cell, metrics, tuple(entries))


GOOD = {
    "max-loss": (60.0, 0.0, 50.0, 30.0),
    "random-label": (61.0, 0.0, 49.0, 10.0),
    "fast-ntk": (74.0, 0.0, 59.0, 20.0),
    "retrain": (75.0, 0.0, 60.0, 22.0),
}


def line(text: str, start: str) -> str:
    return next(row for row in text.splitlines() if row.startswith(start))


def test_statements_follow_the_figures() -> None:
    text = agreement([comparison(GOOD)])
    rows = [row.split("|") for row in text.splitlines() if row.startswith("| fast-ntk |")]
    assert [row[3].strip() for row in rows] == ["1 of 1 cells"] * 6
    assert [row[4].strip() for row in rows] == ["1 of 1 cells", "0 of 1 cells", *["1 of 1 cells"] * 4]
    assert "not in" not in text
    bad = GOOD | {"fast-ntk": (55.0, 32.0, 48.0, 9.0)}
    text = agreement([comparison(bad)])
    assert "| 0 of 1 cells |" in line(text, "| fast-ntk | accuracy on D_f is 0")
    assert "Table 1 ResNet-20 (stand-in) 10 × 100: 32.00 % (recovered 0.40)" in text
    assert "-6.00 points above the better of the two" in text
    assert "0.41 × Retrain's (recovered 0.40)" in text


def test_censored_relearning_is_not_judged() -> None:
    text = agreement([comparison(GOOD, censored=1)])
    assert line(text, "| fast-ntk | relearning").split("|")[3].strip() == "–"


def test_cells_at_a_glance() -> None:
    """Cost and distances where they are known; a dash for what was not run, no line for a cell without records."""
    known = comparison(GOOD)
    own = {
        COST.key: Ours(Figure(0.4321, 0.1, 3)),
        **{m.key: Ours(Figure(value, 0.1, 3)) for m, value in zip(DISTANCES, (1.5, 1.25))},
    }
    none: dict[str, Ours | None] = dict.fromkeys([COST.key, *(m.key for m in DISTANCES)])
    entries = tuple(replace(e, ours=e.ours | (own if e.label == "fast-ntk" else none)) for e in known.entries)
    text = glance_table([replace(known, entries=entries), replace(known, entries=())])
    header, rule, row = (each.strip("| ").split(" | ") for each in text.splitlines()[2:])
    assert len(header) == len(rule) == len(row)
    cells = dict(zip(header, row))
    assert cells.pop("cell") == "ResNet-20, 10 × 100"
    assert cells.pop("fast-ntk") == "0.432: 1.50 / 1.25"
    assert set(cells.values()) == {"–"}


def test_lengths_stand_beside_the_papers_figures(tmp_path: Path) -> None:
    assert length_table(LENGTH, out=tmp_path) == "Not run yet.\n"
    assert {setting.name for setting in LENGTH} >= {"resnet110-100-5epochs", "mobilenetv2-100-10epochs"}
    source = committed(tmp_path / "committed") / "records" / "mobilenetv2-100"
    for name in ("mobilenetv2-100", "mobilenetv2-100-5epochs"):
        shutil.copytree(source, tmp_path / "records" / name)
    header, rule, short, whole, papers, _, words = length_table(LENGTH, out=tmp_path).splitlines()
    assert len({each.count("|") for each in (header, rule, short, whole, papers)}) == 1
    assert short.startswith("| MobileNetV2 ×0.5 | 5 | 3 |")
    assert whole == short.replace("| 5 |", "| 20 |", 1)
    assert papers.startswith("| *the paper's MobileNetV2* | – | 5 | 74.42 ± 2.17 |")
    ours, theirs = (re.findall(r"(\d+\.\d+) ±", row) for row in (short, papers))
    assert len(ours) == len(theirs) == 6
    apart = max(abs(float(a) - float(b)) for a, b in zip(ours[:-1], theirs[:-1]))
    assert f"with 5 epochs every accuracy is within {apart:.1f} points of the paper's ({apart:.1f} with 20)" in words
    assert words.endswith(f"the paper's in {theirs[-1]} ± 0.40.")


def test_the_probing_table_says_which_reading_fits() -> None:
    cell = cells_of("table3", real=False)[0]
    published = paper.published_table("table3")
    theirs = {m.key: published.figure(m.published, "fast-ntk", cell.column) for m in PROBES if m.published}
    values = {"linear_probe.retain": 99.0, "linear_probe.forget": 98.0, "own_head.retain": 97.0, "own_head.forget": 0.0}
    entry = Entry("fast-ntk", 2, 2, {key: Ours(Figure(value, 0.0, 2)) for key, value in values.items()}, theirs)
    probed = Comparison("table3", published.columns[cell.column], cell, PROBES, (entry,))
    assert re.search(
        r"own head of `fast-ntk` gets 0.00 %, a linear probe 98.00 %; .* nearer to the own head", probe_agreement([probed])
    )
    assert probe_agreement([]) == "Not run yet.\n"
