"""Blocks of pages that are generated from records, between two marks."""

from __future__ import annotations

from fastntk.base.errors import InputError

MARKS = "results"


def filled(page: str, block: str, *, marks: str = MARKS) -> str:
    """The page with everything between the marks of this name replaced."""
    start, end = f"<!-- {marks}:start -->", f"<!-- {marks}:end -->"
    if page.count(start) != 1 or page.count(end) != 1:
        raise InputError(f"The page needs one {start} and one {end}, between which the results go.")
    return page[: page.index(start) + len(start)] + "\n" + block + page[page.index(end) :]
