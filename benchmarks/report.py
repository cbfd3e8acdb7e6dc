"""Fill the marked section of docs/engine.md from benchmark records: ``python -m benchmarks.report results/bench``."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from benchmarks import NAMES
from fastntk.reproduce.environment import short_commit

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "engine.md"
TITLES = {
    "accuracy": "Fine-tuning",
    "rows": "Rows against other ways to make them",
    "lora": "Rows of LoRA",
    "memory": "Memory while accumulating A",
    "linear": "Growth with the number of images",
    "subset_vs_all": "The subset against all parameters",
    "sketches": "Approximations",
    "trace": "Recording a fine-tuning, and replaying a large trace",
    "recorder": "Recording a loop of one's own",
    "plans": "Plans against what they took",
    "largest": "The largest case",
}


def section(folder: Path) -> str:
    """The generated part of the page, from the records in a folder."""
    parts = [_part(name, folder / f"{name}.json") for name in NAMES]
    return "\n\n".join([START, *parts, END])


def _part(name: str, path: Path) -> str:
    title = f"### {TITLES[name]}"
    if not path.exists():
        return f"{title}\n\nnot run yet (`python -m benchmarks {name}`)"
    record = json.loads(path.read_text("utf-8"))
    if record["quick"]:
        return f"{title}\n\nnot run yet at full size (`python -m benchmarks {name}`)"
    return f"{title}\n\n{importlib.import_module(f'benchmarks.{name}').table(record['result'])}\n\n{_where(record)}"


def _where(record: dict[str, Any]) -> str:
    env = record["environment"]
    return (
        f"<small>{env['cpu']}, {env['threads']} threads, torch {env['versions']['torch']}, {env['date'][:10]}, "
        f"load {env['load_average'][0]:.1f} at the end, commit {short_commit(env['commit']) or 'unknown'}</small>"
    )


def filled(page: str, content: str) -> str:
    """The page with everything between the marks replaced."""
    if page.count(START) != 1 or page.count(END) != 1 or page.index(START) > page.index(END):
        raise SystemExit(f"expected one {START} and then one {END} in the page")
    return page[: page.index(START)] + content + page[page.index(END) + len(END) :]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results/bench"))
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    options = parser.parse_args()
    page = options.page.read_text("utf-8")
    text = filled(page, section(options.folder))
    if options.check:
        raise SystemExit(0 if text == page else f"{options.page} is not what {options.folder} says: run without --check")
    options.page.write_text(text, "utf-8")
    print(f"{options.page} filled from {options.folder}")


if __name__ == "__main__":
    main()
