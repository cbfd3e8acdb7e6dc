"""CITATION.cff: readable, of this version, and naming the paper. Its schema was checked with cffconvert when it was written."""

from __future__ import annotations

from pathlib import Path

import yaml

import fastntk

CITATION = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text("utf-8"))


def test_the_citation_is_of_this_version() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["version"] == fastntk.__version__
    assert CITATION["license"] == "Apache-2.0"
    assert {"title", "message", "authors"} <= set(CITATION)


def test_the_citation_names_the_paper() -> None:
    (paper,) = CITATION["references"]
    assert paper["title"] == "Fast-NTK: Parameter-Efficient Unlearning for Large-Scale Models"
    assert [author["family-names"] for author in paper["authors"]] == ["Li", "Hsu", "Chen", "Marculescu"]
    assert [identifier["value"] for identifier in paper["identifiers"]] == ["arXiv:2312.14923"]
