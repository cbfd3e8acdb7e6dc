"""The pages themselves: links resolve, the API page is what the docstrings say, quoted errors exist, the walk-through runs."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typer.testing import CliRunner

import fastntk
import fastntk.schemas
from fastntk.cli.app import app

ROOT = Path(__file__).parents[2]


def tool(name: str, folder: str = "tools") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


check_docs = tool("check_docs")
api_reference = tool("api_reference")
digit_folder = tool("digit_folder", "examples").digit_folder


def test_every_link_of_the_repository_resolves() -> None:
    assert list(check_docs.problems(ROOT)) == []


GOOD = {
    "README.md": "# Top\n[a](docs/a.md) [b](docs/a.md#more-of-it) [web](https://nowhere.invalid/x) `[no](link)`\n",
    "docs/a.md": "# A\n## More of `it`!\n[up](../README.md#top) ![picture](p.svg)\n```python\n[not](a-link)\n```\n",
    "docs/p.svg": "<svg/>",
}


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("docs/a.md", "[x](nowhere.md)", "docs/a.md:3: link nowhere.md is broken: there is no docs/nowhere.md"),
        ("docs/a.md", "[x](#nothing)", "docs/a.md:3: link #nothing is broken: docs/a.md has no heading for #nothing"),
        ("docs/a.md", "a\n[x](../README.md#tip)", "docs/a.md:4: link ../README.md#tip is broken: README.md has no heading"),
        ("docs/a.md", "[x](../../outside.md)", "leads out of the repository"),
        ("docs/a.md", "[x]()", "its target is empty"),
        ("docs/a.md", '<img src="gone.png">', "docs/a.md:3: link gone.png is broken"),
        ("docs/a.md", "[x]: gone.md", "docs/a.md:3: link gone.md is broken"),
        ("docs/a.md", "![x](gone.svg)", "link gone.svg is broken"),
        ("docs/a.md", "```\ncode\n```", "it has none"),
        ("docs/a.md", "```cobol\ncode\n```", "it has cobol"),
        ("docs/a.md", "```sh\ncode", "docs/a.md:3: a code fence is not closed"),
        ("docs/lonely.md", "# Alone", "docs/lonely.md: no page that README.md leads to links to it"),
    ],
)
def test_what_is_broken_is_found_and_named(file: str, text: str, problem: str, tmp_path: Path) -> None:
    for name, content in GOOD.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, "utf-8")
    assert list(check_docs.problems(tmp_path)) == []
    kept = "# A\n## More of it\n" if file == "docs/a.md" else ""
    (tmp_path / file).write_text(kept + text + "\n", "utf-8")
    found = list(check_docs.problems(tmp_path))
    assert len(found) == 1, found
    assert problem in found[0]


def test_anchors_are_githubs() -> None:
    assert check_docs.slug_of("When not to believe it") == "when-not-to-believe-it"
    assert check_docs.slug_of("`fast-ntk`: the closed form") == "fast-ntk-the-closed-form"
    assert check_docs.slug_of("4. Start again, from [it](x.md)!") == "4-start-again-from-it"


def test_the_api_page_is_what_the_docstrings_say() -> None:
    made = api_reference.page()
    assert made.rstrip() + "\n" == (ROOT / "docs" / "api.md").read_text("utf-8"), "run make docs"
    for name in fastntk.__all__:
        assert f"\n## {name}\n" in made
    assert "tune(model: nn.Module, spec: str, *, prompt_length: int = 10" in made
    assert "- `.digest() -> str`" in made
    assert " at 0x" not in made


def test_a_public_name_without_docstring_stops_the_build() -> None:
    def silent() -> None: ...

    with pytest.raises(SystemExit, match="silent has no docstring"):
        api_reference.text_of(silent, "silent")


def message_templates() -> list[str]:
    """Every text in the source, … for what is filled in."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_every_error_of_the_faq_is_one_of_ours() -> None:
    quotes = re.findall(r"^> (.*)$", (ROOT / "docs" / "faq.md").read_text("utf-8"), re.M)
    assert len(quotes) >= 25
    templates = message_templates()
    for quote in quotes:
        pattern = re.compile(".*".join(re.escape(part) for part in re.split(r"\s*…\s*", quote) if part), re.S)
        assert any(pattern.search(text) for text in templates), quote


def test_every_schema_is_listed() -> None:
    page = (ROOT / "docs" / "json.md").read_text("utf-8")
    for name in fastntk.schemas.names():
        home = "auditing/record.py" if name == fastntk.schemas.AUDIT else f"schemas/{name}.json"
        assert f"[{name}](../src/fastntk/{home})" in page


def test_the_readme_starts_with_the_two_commands_and_stays_short() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert any(line.startswith("make demo") for line in lines[:12])
    assert any(line.startswith("make test") for line in lines[:12])
    assert len(lines) < 130


def test_the_deletion_request_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = digit_folder(tmp_path / "whole", per_class=7)
    for number, part in enumerate(sorted(whole.rglob("*.png"))):
        target = tmp_path / "photos" / ("train" if number % 7 < 5 else "holdout") / part.relative_to(whole)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(part, target)
    request = ["digit-3/001.png", "digit-7/004.png"]
    (tmp_path / "request.txt").write_text("\n".join(request) + "\n")
    model = fastntk.build_model("resnet20", num_classes=10, weights="cifar100")
    samples = fastntk.load_source("photos@train", spec=fastntk.input_spec(model))
    fastntk.fit(model, fastntk.tune(model, "norm+head"), samples, fastntk.Recipe(epochs=6, lr=2e-3))
    torch.save(model.state_dict(), "finetuned.pt")

    names: dict[str, object] = {}
    page = (ROOT / "docs" / "deletion-request.md").read_text("utf-8")
    for language, block in re.findall(r"^```(python|sh)\n(.*?)^```", page, re.M | re.S):
        if language == "python":
            exec(compile(block, "docs/deletion-request.md", "exec"), names)
            continue
        for line in block.splitlines():
            done = CliRunner().invoke(app, line.split()[1:])
            # 3: written, though fifty digits may not pass the step's own check
            assert done.exit_code in ((0, 3) if " unlearn " in line else (0,)), f"{line}\n{done.output}"
    assert (tmp_path / "results" / "request-17" / "report.html").is_file()
    served = fastntk.build_model("resnet20", num_classes=10)
    served.load_state_dict(torch.load("unlearned.pt", weights_only=True))
    # The photos go; the run made from the result finds its data, the old one no longer does.
    for name in request:
        (tmp_path / "photos" / "train" / name).unlink()
    assert CliRunner().invoke(app, ["plan", "runs/photos-after-17", "--classes", "digit-1"]).exit_code == 0
    refused = CliRunner().invoke(app, ["plan", "runs/photos", "--classes", "digit-1"])
    assert refused.exit_code == 2
    assert "The data changed since this run was made" in refused.stderr
