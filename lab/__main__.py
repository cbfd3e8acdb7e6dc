"""``python -m fastntk.experiments run|tables NAME``: run what is missing, or make the tables from the records.

``run comparison`` tunes the baselines first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastntk.experiments.setting import Setting

WAIT = "OMP_WAIT_POLICY"
COMPARISON = "comparison"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; 2 for a mistake of the caller."""
    from fastntk.base.errors import InputError

    options = parser().parse_args(arguments)
    try:
        return _tables(options) if options.command == "tables" else _run(options)
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """The options."""
    from fastntk.experiments.lists import EXPERIMENTS

    top = argparse.ArgumentParser(prog="python -m fastntk.experiments", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run what is missing")
    tables = commands.add_parser("tables", help="make the document from the records")
    for command in (run, tables):
        command.add_argument("name", choices=sorted([*EXPERIMENTS, COMPARISON]))
        command.add_argument("--out", type=Path, default=Path("results"), help="folder of records")
    tables.add_argument("--docs", type=Path, default=Path("docs"), help="folder of documents")
    run.add_argument("--settings", nargs="+", metavar="SETTING", help="only these")
    run.add_argument("--work", type=Path, help="folder of trained weights (default: OUT/work)")
    run.add_argument("--shared", type=Path, default=Path(os.environ.get("FASTNTK_SHARED", "../shared")))
    run.add_argument("--threads", type=int, help="CPU threads (default: all that torch finds)")
    run.add_argument("--plan", action="store_true", help="say what would run and how long, and stop")
    return top


def _run(options: argparse.Namespace) -> int:
    import torch

    from fastntk.base.errors import InputError
    from fastntk.base.progress import show_progress
    from fastntk.experiments import single
    from fastntk.experiments.runner import plan, run_steps

    if options.threads is not None:
        if options.threads < 1:
            raise InputError(f"--threads must be at least 1, got {options.threads}.")
        torch.set_num_threads(options.threads)
    if options.name == COMPARISON and not options.plan:
        from fastntk.experiments.comparison import tune

        tune(out=options.out, work=options.work or options.out / "work", shared=options.shared)
    settings = _settings(options)
    known = [setting.name for setting in settings]
    unknown = sorted(set(options.settings or []) - set(known))
    if unknown:
        raise InputError(f"Unknown settings {', '.join(unknown)}; {options.name} has {', '.join(known)}.")
    settings = tuple(setting for setting in settings if not options.settings or setting.name in options.settings)
    work = options.work or options.out / "work"
    if options.name == "single":
        for setting in settings:
            single.run(setting, out=options.out, work=work, shared=options.shared, only_plan=options.plan)
        return 0
    steps = plan(settings, out=options.out, work=work)
    for setting in settings:
        mine = [step for step in steps if step.setting == setting]
        kinds = ", ".join(f"{sum(step.kind == kind for step in mine)} {kind}s" for kind in ("fit", "retrain", "record"))
        print(f"{setting.name}: {kinds}; about {sum(step.seconds for step in mine) / 60:.0f} min")
    print(f"all: {len(steps)} steps; about {sum(step.seconds for step in steps) / 60:.0f} min (rough, on two cores)")
    if not options.plan:
        with show_progress(enabled=sys.stderr.isatty()):
            run_steps(steps, shared=options.shared, work=work)
    return 0


def _settings(options: argparse.Namespace) -> tuple[Setting, ...]:
    """The experiment's settings; those of the comparison know the baselines that are tuned already."""
    from fastntk.experiments.comparison import comparison
    from fastntk.experiments.lists import EXPERIMENTS

    return comparison(options.out) if options.name == COMPARISON else EXPERIMENTS[options.name]


def _tables(options: argparse.Namespace) -> int:
    from fastntk.base.atomic import write_file
    from fastntk.experiments.headline import filled, headline
    from fastntk.experiments.lists import EXPERIMENTS
    from fastntk.experiments.pages import page
    from fastntk.experiments.records import setting_folder

    if options.name == COMPARISON:
        return _comparison(options)
    if options.name == "development":
        return _development(options)
    target, name = options.docs / "results-unlearning.md", "unlearning"
    write_file(target, page(name, EXPERIMENTS[name], single=EXPERIMENTS["single"], out=options.out).encode(), overwrite=True)
    print(f"wrote {target}")
    readme = options.docs.parent / "README.md"
    if readme.exists():
        first = EXPERIMENTS[name][0]
        made = filled(readme.read_text("utf-8"), headline(first, folder=setting_folder(options.out, first.name)))
        write_file(readme, made.encode(), overwrite=True)
        print(f"wrote {readme}")
    return 0


def _development(options: argparse.Namespace) -> int:
    from fastntk.base.atomic import write_file
    from fastntk.experiments.development_page import development_page

    target = options.docs / "results-development.md"
    write_file(target, development_page(_settings(options), out=options.out).encode(), overwrite=True)
    print(f"wrote {target}")
    return 0


def _comparison(options: argparse.Namespace) -> int:
    from fastntk.base.atomic import write_file
    from fastntk.experiments.comparison_page import FIGURE, comparison_figure, comparison_page

    settings = _settings(options)
    documents = {"comparison.md": comparison_page(settings, out=options.out).encode()}
    documents[FIGURE] = comparison_figure(settings, out=options.out)
    for name, content in documents.items():
        write_file(options.docs / name, content, overwrite=True)
        print(f"wrote {options.docs / name}")
    return 0


if __name__ == "__main__":
    if WAIT not in os.environ:
        # OpenMP reads this when torch loads it, which importing the package has already done: start again with it set.
        os.environ[WAIT] = "PASSIVE"
        os.execv(sys.executable, [sys.executable, "-m", "fastntk.experiments", *sys.argv[1:]])
    sys.exit(main())
