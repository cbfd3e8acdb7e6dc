"""The commit of a record: of the repository that the package is the source of, and of no other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fastntk.reproduce.environment import CHANGES, commit, short_commit


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for folder in ("src/fastntk", ".venv/lib/site-packages/fastntk"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text("")
    for words in (["init", "-q"], ["add", "src"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_a_changed_source_is_marked_and_other_changes_are_not(repository: Path) -> None:
    package = repository / "src" / "fastntk"
    head = commit.__wrapped__(package)
    assert head is not None
    assert len(head) == 40
    (repository / "notes.txt").write_text("elsewhere")
    assert commit.__wrapped__(package) == head
    (package / "__init__.py").write_text("changed = True\n")
    assert commit.__wrapped__(package) == head + CHANGES
    assert short_commit(head + CHANGES) == head[:10] + CHANGES
    assert short_commit(head) == head[:10]
    assert short_commit(None) is None


def test_a_package_that_is_installed_below_a_repository_has_no_commit(repository: Path) -> None:
    assert commit.__wrapped__(repository / ".venv/lib/site-packages/fastntk") is None
