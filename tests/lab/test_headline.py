"""The README's table and the demo's: between their marks, from records, and nothing invented where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from committed import committed
from lab.demo_block import MARKS as DEMO_MARKS
from lab.demo_block import demo_block
from lab.marks import filled
from lab.path_headline import MARKS as PATH_MARKS
from lab.path_headline import path_headline
from lab.settings import UNLEARNING

from fastntk.base.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def test_only_what_is_between_the_marks_is_replaced() -> None:
    start, end = "<!-- results:start -->", "<!-- results:end -->"
    page = f"before\n{start}\nold\n{end}\nafter\n"
    assert filled(page, "new\n") == f"before\n{start}\nnew\n{end}\nafter\n"
    assert filled(filled(page, "new\n"), "new\n") == filled(page, "new\n")
    with pytest.raises(InputError, match="needs one"):
        filled("no marks", "new")


def test_no_records_no_figures(tmp_path: Path) -> None:
    from lab.augmented import AUGMENTED
    from lab.settings import PATH

    assert path_headline((*PATH, AUGMENTED), out=tmp_path) == demo_block(tmp_path) == "Not run yet.\n"


def test_committed_documents_are_what_the_records_give(tmp_path: Path) -> None:
    """`make tables` again, byte for byte, and `python -m benchmarks.report`."""
    from benchmarks.report import filled as filled_report
    from benchmarks.report import section
    from lab.attacks_page import attacks_page
    from lab.augmented import AUGMENTED
    from lab.calibration_page import calibration_page
    from lab.development_page import development_page
    from lab.path_page import path_page
    from lab.recorded_page import recorded_page
    from lab.settings import CHAIN, DEVELOPMENT, PATH, SINGLE, SINGLE_PATH
    from lab.unlearning_page import page

    results = committed(tmp_path)
    readme = (ROOT / "README.md").read_text("utf-8")
    block = path_headline((*PATH, AUGMENTED), out=results)
    assert len({line.count("|") for line in block.splitlines() if line.startswith("|")}) == 1
    assert filled(readme, block, marks=PATH_MARKS) == readme
    assert filled(readme, demo_block(results), marks=DEMO_MARKS) == readme
    text = page(UNLEARNING, single=SINGLE, out=results)
    assert text == (ROOT / "docs" / "results-unlearning.md").read_text("utf-8")
    assert development_page(DEVELOPMENT, out=results) == (ROOT / "docs" / "results-development.md").read_text("utf-8")
    text = path_page(PATH, single=SINGLE_PATH, augmented=(AUGMENTED,), chain=CHAIN, out=results)
    assert text == (ROOT / "docs" / "results-path.md").read_text("utf-8")
    pages = {"calibration": calibration_page, "results-attacks": attacks_page, "results-recorded": recorded_page}
    for name, page_of in pages.items():
        assert page_of(results) == (ROOT / "docs" / f"{name}.md").read_text("utf-8"), name
    engine = (ROOT / "docs" / "engine.md").read_text("utf-8")
    assert filled_report(engine, section(results / "bench")) == engine


def test_the_architecture_in_numbers_is_what_the_records_say() -> None:
    from lab.architecture_table import architecture_table

    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert filled(text, architecture_table(ROOT / "results")) == text
