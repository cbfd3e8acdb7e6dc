"""Plots against the figures they were given: lengths of bars, corners of lines, words in the description."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from fastntk.auditing.record_figures import Attack, Relearning, Roc
from fastntk.report.evidence_plots import relearn_curves, roc_curves
from fastntk.report.plots import accuracy_bars, flow_bars, loss_steps
from fastntk.report.svg import COLOUR, WIDTH, Plot, drawing, finish
from fastntk.report.words import clean, date, duration, figure, join, percent, samples, size, value, whole


def shapes(plot: Plot, variable: str) -> list[list[tuple[float, float]]]:
    """The corners of every path that is drawn in one of the page's colours."""
    elements = []
    root = ElementTree.fromstring(str(plot.svg))
    hatches = set(root.findall(".//defs//path"))
    for element in root.iter("path"):
        if element in hatches:
            continue
        if f"stroke: var(--plot-{variable})" in element.get("style", ""):
            numbers = [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?", element.get("d", ""))]
            elements.append(list(zip(numbers[::2], numbers[1::2])))
    return elements


def width(path: list[tuple[float, float]]) -> float:
    return max(x for x, _ in path) - min(x for x, _ in path)


def test_bars_are_as_long_as_their_figures() -> None:
    plot = accuracy_bars({"full": 1.0, "unlearned": 0.25, "retrain": 0.5, "other": None}, name="a", title="Forgotten")
    full, unlearned, retrain = (max(map(width, shapes(plot, model))) for model in ("full", "unlearned", "retrain"))
    assert unlearned / full == pytest.approx(0.25, rel=1e-4)
    assert retrain / full == pytest.approx(0.5, rel=1e-4)
    assert plot.words == "Forgotten: Before 100.0\u00a0%, After 25.0\u00a0% and Retrain 50.0\u00a0% classified correctly."


def test_flow_bars_keep_to_their_shares() -> None:
    table = [("cat", {"full": 1.0, "unlearned": 0.0}), ("dog", {"full": 0.0, "unlearned": 0.5})]
    plot = flow_bars(table, name="f", title="Now classified as")
    longest = {model: sorted(map(width, shapes(plot, model)))[-1] for model in ("full", "unlearned")}
    assert longest["unlearned"] / longest["full"] == pytest.approx(0.5, rel=1e-4)
    assert "Before: 100\u00a0% cat and 0\u00a0% dog; After: 0\u00a0% cat and 50\u00a0% dog." in plot.words


def test_roc_lines_pass_through_their_points() -> None:
    curve = Roc(fpr=(0.0, 0.25, 1.0), tpr=(0.0, 0.5, 1.0))
    attacks = {"unlearned": Attack(auc=0.75, auc_standard_error=0.1, tpr_at_1pct_fpr=0.0, roc=curve)}
    line = max(shapes(roc_curves(attacks, name="r", title="Attack"), "unlearned"), key=len)
    (x0, y0), (x1, y1), (x2, y2) = line
    assert (x1 - x0) / (x2 - x0) == pytest.approx(0.25, rel=1e-4)
    assert (y1 - y0) / (y2 - y0) == pytest.approx(0.5, rel=1e-4)


def test_relearning_says_more_than_the_cap_where_it_never_ended() -> None:
    curves = {
        "full": Relearning(epochs=0, censored=False, curve=(0.01,), threshold=0.05, cap=3),
        "retrain": Relearning(epochs=None, censored=True, curve=(4.0, None, 2.0, 1.0), threshold=0.05, cap=3),
    }
    plot = relearn_curves(curves, name="l", title="Again")
    assert plot.words == "Epochs until the loss is below 0.05: Before 0 and Retrain more than 3."
    assert "nan" not in str(plot.svg).lower()


def test_losses_are_described_by_their_middle() -> None:
    plot = loss_steps(
        {"forget": [0.0, 0.1, 0.9], "retain": [1.0, 0.0, 0.0]}, [0.0, 0.5, 2.0, None], name="h", title="After", top=1
    )
    assert "the middle one lies between 2 and ∞" in plot.words
    assert "the middle one lies between 0 and 0.5" in plot.words
    even = loss_steps({"forget": [1.0, 0.0]}, [0.0, 1.0, 2.0], name="h", title="After", top=1)
    assert ">0.5<" in str(even.svg) or ">0.8<" in str(even.svg) or ">1<" in str(even.svg)


def test_settings_stay_here_and_stand_ins_do_not_leak() -> None:
    before = dict(mpl.rcParams)
    with drawing(50) as (canvas, axes):
        for number, colour in enumerate(COLOUR.values()):
            axes.plot([0, 1], [0, number], color=colour)
        plot = finish(canvas, "x", title="<b>", words="a & b")
    assert dict(mpl.rcParams) == before
    assert not re.search(r"#0102[0-9a-f]{2}", str(plot.svg))
    assert "&lt;b&gt;" in str(plot.svg)
    assert "a &amp; b" in str(plot.svg)
    assert f'viewBox="0 0 {WIDTH} 50"' in str(plot.svg)
    assert "font-family" not in str(plot.svg)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (percent(0.98765), "98.8 %"),
        (percent(None), "–"),
        (figure(0), "0"),
        (figure(None), "–"),
        (figure(0.012), "0.0120"),
        (figure(1.5, 2), "1.5"),
        (figure(123.4), "123"),
        (figure(12345.6), "12 346"),
        (figure(7.95e-5), "7.95 × 10⁻⁵"),
        (figure(-2.5e9), "-2.50 × 10⁹"),
        (whole(269722), "269 722"),
        (duration(0.414), "0.41 s"),
        (duration(35.2), "35 s"),
        (duration(250), "4.2 min"),
        (duration(9000), "2.5 h"),
        (size(803_840_000), "804 MB"),
        (size(12), "12 bytes"),
        (date("2026-11-16T01:30:00+02:00"), "15 November 2026, 23:30 UTC"),
        (date("2026-11-16T01:30:00"), "16 November 2026, 01:30"),
        (date("yesterday"), "yesterday"),
        (samples(1), "1 sample"),
        (join(["a", "b", "c"]), "a, b and c"),
        (join([]), ""),
        (clean("abc\x07d"), "abc\ufffdd"),
        (clean("abcdef", most=4), "abc…"),
        (value({"bn_stats": "frozen", "deep": [1, 2.5, None, True]}), "bn stats frozen, deep 1, 2.5, none, yes"),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert text.replace("\u00a0", " ").replace("\u202f", " ") == expected
