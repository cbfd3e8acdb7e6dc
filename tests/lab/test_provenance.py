"""The line on a page that says which commits and which code its figures come from."""

from __future__ import annotations

from typing import Any

from lab.provenance import provenance


def entry(commit: str | None, code: dict[str, str] | None = None) -> dict[str, Any]:
    return {"environment": {"commit": commit}} | ({} if code is None else {"code": code})


def test_one_commit_and_one_code() -> None:
    same = [entry("a" * 40, {"data": "1"}), entry("a" * 40, {"data": "1", "baselines": "2"})]
    assert provenance(same) == "Provenance: all 2 measurements are of commit `aaaaaaaaaa` and one state of the code.\n"


def test_several_commits_are_counted_and_so_are_unknown_ones() -> None:
    text = provenance([*[entry("a" * 40, {"data": "1"})] * 3, entry("b" * 40, {"data": "1"}), entry(None, {"data": "1"})])
    assert text.startswith("**Provenance: not all of one commit.** Of 5 measurements, 3 at `aaaaaaaaaa`, 1 at `bbbbbbbbbb`, ")
    assert "1 at an unknown commit" in text
    assert text.endswith("The code that decides figures was the same in all of them.\n")


def test_a_changed_tree_is_a_state_of_its_own() -> None:
    text = provenance([entry("a" * 40, {"data": "1"}), entry("a" * 40 + "+changes", {"data": "1"})])
    assert "1 at `aaaaaaaaaa`, 1 at `aaaaaaaaaa+changes`." in text


def test_other_code_and_no_code_are_said() -> None:
    text = provenance([entry("a" * 40, {"data": "1", "models": "1"}), entry("a" * 40, {"data": "2", "models": "1"})])
    assert text == "Provenance: 2 measurements, 2 at `aaaaaaaaaa`. They were made by different code in data.\n"
    text = provenance([entry("a" * 40, {"data": "1"}), entry("a" * 40)])
    assert "Of 1 the code is not known: they are older than its digests." in text


def test_parts_with_an_environment_of_their_own_are_measurements_too() -> None:
    record = {"rows": {"head": entry("a" * 40, {"data": "1"}), "all": entry("b" * 40, {"data": "1"})}, "seed": 0}
    assert "Of 2 measurements" in provenance([record])
    assert "one run, at commit" in provenance([entry("a" * 40, {"data": "1"}) | {"audit": entry(None)}])
    assert provenance([]) == provenance([{"seed": 1}]) == "Provenance: nothing was run.\n"
