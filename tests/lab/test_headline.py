"""The README's table: between its marks, from records, and nothing invented where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from committed import committed
from lab.headline import filled, headline
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
    assert headline(UNLEARNING[0], folder=tmp_path) == "Not run yet.\n"


def test_committed_documents_are_what_the_records_give(tmp_path: Path) -> None:
    """`make tables` again, byte for byte."""
    from lab.augmented import AUGMENTED
    from lab.development_page import development_page
    from lab.path_page import path_page
    from lab.settings import CHAIN, DEVELOPMENT, PATH, SINGLE, SINGLE_PATH
    from lab.unlearning_page import page

    from fastntk.reproduce.records import setting_folder

    first, results = UNLEARNING[0], committed(tmp_path)
    readme = (ROOT / "README.md").read_text("utf-8")
    table = [line for line in headline(first, folder=setting_folder(results, first.name)).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) <= 1
    assert filled(readme, headline(first, folder=setting_folder(results, first.name))) == readme
    text = page(UNLEARNING, single=SINGLE, out=results)
    assert text == (ROOT / "docs" / "results-unlearning.md").read_text("utf-8")
    assert development_page(DEVELOPMENT, out=results) == (ROOT / "docs" / "results-development.md").read_text("utf-8")
    text = path_page(PATH, single=SINGLE_PATH, augmented=(AUGMENTED,), chain=CHAIN, out=results)
    assert text == (ROOT / "docs" / "results-path.md").read_text("utf-8")


def test_the_architecture_in_numbers_is_what_the_records_say() -> None:
    from lab.architecture_table import architecture_table

    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert filled(text, architecture_table(ROOT / "results")) == text
