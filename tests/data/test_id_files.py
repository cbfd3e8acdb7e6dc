"""Patterns, text files of ids, and the table of persons."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastntk
from fastntk.base.errors import InputError
from fastntk.data import ForgetRequest, Samples, ids_in_file, ids_of_persons, matching_ids

IDS = ("cats/1.png", "cats/2.jpg", "cats/old/3.png", "dogs/1.png", "a*b", "acb", "img [1].png", "#7", "photo #3.png")


@pytest.fixture
def samples() -> Samples:
    return Samples(torch.zeros(len(IDS), 1), [0] * len(IDS), ids=IDS)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("cats/*.png", ("cats/1.png",)),
        ("cats/*", ("cats/1.png", "cats/2.jpg")),
        ("cats/**", ("cats/1.png", "cats/2.jpg", "cats/old/3.png")),
        ("**/*.png", ("cats/1.png", "cats/old/3.png", "dogs/1.png", "img [1].png", "photo #3.png")),
        ("*/[12].???", ("cats/1.png", "cats/2.jpg", "dogs/1.png")),
        ("[!c]*/1.png", ("dogs/1.png",)),
        ("[#]7", ("#7",)),
        ("a*b", ("a*b",)),
        ("a[*]b", ("a*b",)),
        ("a?b", ("a*b", "acb")),
        ("img [1].png", ("img [1].png",)),
    ],
)
def test_patterns(pattern: str, expected: tuple[str, ...], samples: Samples) -> None:
    assert matching_ids(pattern, samples) == expected


def test_patterns_beside_those_of_the_file_system(tmp_path: Path) -> None:
    names = ["a/1.png", "a/2.jpg", "a/b/1.png", "a/b/c/3.png", "b/1.png", "10.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    samples = Samples(torch.zeros(len(names), 1), [0] * len(names), ids=names)
    for pattern in ("*.png", "*/*.png", "**/*.png", "a/**/*.png", "a/*/*", "?/1.*", "**/b/*", "[ab]/*"):
        files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob(pattern) if path.is_file()}
        assert set(matching_ids(pattern, samples)) == files, pattern


@given(st.text("ab?*[]!", min_size=1, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, unique=True))
def test_without_folders_they_are_those_of_fnmatch(pattern: str, ids: list[str]) -> None:
    samples = Samples(torch.zeros(len(ids), 1), [0] * len(ids), ids=ids)
    expected = tuple(name for name in ids if fnmatchcase(name, pattern)) if set(pattern) & set("*?[") else (pattern,)
    if pattern == "**":
        expected = tuple(ids)
    if expected:
        assert matching_ids(pattern, samples) == expected
    else:
        with pytest.raises(InputError, match="no id matches"):
            matching_ids(pattern, samples)


def test_patterns_overlap_and_numbers_are_ids(samples: Samples) -> None:
    assert matching_ids(["cats/*", "**/1.png", "cats/1.png"], samples) == ("cats/1.png", "cats/2.jpg", "dogs/1.png")
    numbered = Samples(torch.zeros(12, 1), [0] * 12)
    assert matching_ids([3, "1?"], numbered) == ("3", "10", "11")
    assert fastntk.matching_ids(7, numbered) == ("7",)


def test_every_pattern_without_a_match_is_named(samples: Samples) -> None:
    with pytest.raises(InputError, match=r"no id matches birds/\*, x\?z \(\* stops at /, \*\* does not\); the data has 9 ids"):
        matching_ids(["birds/*", "cats/*", "x?z"], samples)
    with pytest.raises(InputError, match=r"unknown ids: cats/\*; .*for patterns see fastntk.matching_ids"):
        ForgetRequest(ids=["cats/*"]).resolve(samples)
    assert matching_ids(["nobody"], samples) == ("nobody",)  # the request refuses it, with all others that are unknown


def test_an_id_given_twice_is_still_refused(samples: Samples) -> None:
    with pytest.raises(InputError, match="ids more than once: acb"):
        ForgetRequest(ids=matching_ids(["acb", "acb"], samples)).resolve(samples)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files(end: str, mark: str, samples: Samples, tmp_path: Path) -> None:
    lines = ["# asked for on 3 May", "", "  cats/2.jpg ", "\t", "dogs/*   # all dogs", "photo #3.png", "#7", "#8", "  # end"]
    path = tmp_path / "ids.txt"
    path.write_bytes((mark + end.join(lines)).encode())
    assert ids_in_file(path, samples) == ("cats/2.jpg", "photo #3.png", "#7", "dogs/1.png")


def test_only_the_end_of_a_line_ends_an_id(tmp_path: Path) -> None:
    ids = ("a\xa0b", "f\xa0#1", "g\u3000")  # spaces of other kinds belong to the id
    samples = Samples(torch.zeros(len(ids), 1), [0] * len(ids), ids=ids)
    (tmp_path / "ids.txt").write_bytes("\r\n".join(ids).encode())
    assert ids_in_file(tmp_path / "ids.txt", samples) == ids


def test_no_ids_at_all(samples: Samples) -> None:
    for wrong in (None, 1.5):
        with pytest.raises(InputError, match=f"ids must be int or str, or a sequence of them, not {type(wrong).__name__}"):
            matching_ids(wrong, samples)  # type: ignore[arg-type]
    assert matching_ids(torch.tensor(7), samples) == ("7",)  # type: ignore[arg-type]


def test_a_mark_before_the_first_id_is_no_part_of_it(samples: Samples, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_bytes("\ufeffacb\r\n".encode())
    assert ids_in_file(tmp_path / "ids.txt", samples) == ("acb",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not there"),
        (b"# nothing\n\n", "holds no id"),
        ("acb".encode("utf-16"), r"cannot be read as a text file \(UTF-8\)"),
        (b"birds/*\n", r"no id matches birds/\*"),
    ],
)
def test_wrong_files(content: bytes | None, message: str, samples: Samples, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "ids.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        ids_in_file(tmp_path / "ids.txt", samples)


@pytest.fixture
def people(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "people.csv").write_bytes(text.encode())
        return tmp_path / "people.csv"

    return write


def test_persons(people: Callable[[str], Path], samples: Samples) -> None:
    path = people(
        '\ufeffid,person\r\ncats/1.png,Ada\r\n\r\ndogs/1.png,"Doe, Jane"\r\na*b, Ada \r\ndogs/1.png,Ada\r\nelsewhere,Bob\r\n'
    )
    assert ids_of_persons(path, "Ada", samples) == ("cats/1.png", "a*b", "dogs/1.png")
    assert ids_of_persons(path, ["Doe, Jane"], samples) == ("dogs/1.png",)
    assert ids_of_persons(path, ["Doe, Jane", "Ada"], samples) == ("dogs/1.png", "cats/1.png", "a*b")
    assert ids_of_persons(path, "Bob") == ("elsewhere",)
    split = ForgetRequest(ids=fastntk.ids_of_persons(path, ["Ada"], samples)).resolve(samples)
    assert split.forget.tolist() == [0, 3, 4]


def test_columns_in_any_order_and_further_ones(people: Callable[[str], Path], samples: Samples) -> None:
    assert ids_of_persons(people("person,date,id\nAda,May,acb\n"), "Ada", samples) == ("acb",)


@pytest.mark.parametrize(
    ("text", "who", "message"),
    [
        ("id,person\nacb,Ada\n", "ada", r"does not know 'ada'; it has 1 persons: Ada"),
        ("id,person\nacb,Ada\n", [], "was asked for nobody"),
        ("id,person\nacb,Ada\nnone,Ada\n", "Ada", r"gives 'Ada' ids that are not in the data: none\. Take these lines out"),
        ("id,person\nacb,Ada\nacb,Ada\n", "Ada", r"line 3: acb,Ada is in line 2 already"),
        ("id;person\nacb;Ada\n", "Ada", r"names the columns id and person once each, not 'id;person'"),
        ("acb,Ada\n", "Ada", r"names the columns id and person once each, not 'acb,Ada'"),
        ("id,person,id\n", "Ada", "names the columns id and person"),
        ("", "Ada", "names the columns id and person once each, not ''"),
        ("id,person\n", "Ada", "a header and no lines"),
        ("id,person\nacb\n", "Ada", r"line 2: expected id,person.*'acb'"),
        ("id,person\nacb,Ada,x\n", "Ada", r"line 2: expected id,person.*'acb,Ada,x'"),
        ("id,person\n,Ada\n", "Ada", r"line 2: .*neither id nor person empty"),
        ('id,person\n"acb,Ada\n', "Ada", "cannot be read as a CSV file"),
    ],
)
def test_wrong_tables(text: str, who: str | list[str], message: str, people: Callable[[str], Path], samples: Samples) -> None:
    with pytest.raises(InputError, match=message):
        ids_of_persons(people(text), who, samples)


def test_a_missing_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there: expected a CSV file"):
        ids_of_persons(tmp_path / "people.csv", "Ada")
