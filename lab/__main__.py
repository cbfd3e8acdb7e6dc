"""``python -m lab run NAME`` runs what an experiment misses; ``python -m lab pages [NAME …]`` writes pages from the records;
``python -m lab again FOLDER`` compares records that later code made with those.

``run comparison`` tunes the baselines first. Reads and writes in the repository it stands in, unless the options say otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab import ROOT

if TYPE_CHECKING:
    from fastntk.reproduce.setting import Setting

WAIT = "OMP_WAIT_POLICY"
COMPARISON = "comparison"
PATHS = ("path", "augmented")
"""Experiments that :mod:`lab.path` runs."""
SEEDED = (*PATHS, "chain")
"""Experiments that can be run seed by seed."""
RECORDED = "recorded"
CALIBRATION = "calibration"
ATTACKS = "attacks"
PACKED = "packed"
DEMO = "demo"
PAGES = ("unlearning", COMPARISON, "path", DEMO, RECORDED, ATTACKS, CALIBRATION, "development", "tables", "architecture")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; 2 for a mistake of the caller."""
    from fastntk.base.errors import InputError

    options = parser().parse_args(arguments)
    try:
        return {"pages": _pages, "again": _again, "run": _run}[options.command](options)
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """The options."""
    from lab.settings import EXPERIMENTS

    top = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run what is missing")
    run.add_argument("name", choices=sorted([*EXPERIMENTS, COMPARISON, RECORDED, ATTACKS, CALIBRATION]))
    run.add_argument("--settings", nargs="+", metavar="SETTING", help="only these")
    run.add_argument("--work", type=Path, help="folder of trained weights (default: OUT/work)")
    run.add_argument("--shared", type=Path, default=Path(os.environ.get("FASTNTK_SHARED", ROOT.parent / "shared")))
    run.add_argument("--threads", type=int, help="CPU threads (default: all that torch finds)")
    run.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="only these (path, augmented, chain)")
    run.add_argument("--rows", nargs="+", metavar="LABEL", help="only these rows (path, augmented)")
    run.add_argument(
        "--finish", action="store_true", help="only what is computed from several seeds' models (path, augmented, calibration)"
    )
    run.add_argument("--keep-stale", action="store_true", help="do not make again what other code made")
    run.add_argument("--kept", action="store_true", help="train nothing: only models that are there (calibration)")
    run.add_argument("--plan", action="store_true", help="say what would run and how long, and stop")
    pages = commands.add_parser("pages", help="write pages from the records")
    pages.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PAGES)} (default: all)")
    pages.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of pages")
    pages.add_argument("--readme", type=Path, default=ROOT / "README.md", help="the page whose block of results is filled")
    again = commands.add_parser("again", help="compare records made again elsewhere with those of the pages")
    again.add_argument("folder", type=Path, metavar="FOLDER", help="an --out of fastntk reproduce")
    for command in (run, pages, again):
        command.add_argument("--out", type=Path, default=ROOT / "results", help="folder of records")
    return top


def _run(options: argparse.Namespace) -> int:
    import torch

    from fastntk.base.errors import InputError
    from fastntk.base.progress import show_progress
    from fastntk.reproduce.experiment import open_experiment
    from fastntk.reproduce.runner import plan, run_steps, stale_text
    from lab import chain, packed, path, single
    from lab.augmented import open_own

    if options.threads is not None:
        if options.threads < 1:
            raise InputError(f"--threads must be at least 1, got {options.threads}.")
        torch.set_num_threads(options.threads)
    if (options.seeds and options.name not in SEEDED) or (
        (options.rows and options.name not in PATHS) or (options.finish and options.name not in (*PATHS, CALIBRATION))
    ):
        raise InputError(
            f"'run {options.name}' got an option it does not have: --seeds goes with {', '.join(SEEDED)}, --rows and --finish "
            f"with {', '.join(PATHS)}, --finish with {CALIBRATION} too. The other experiments run all that is missing."
        )
    if options.kept and options.name != CALIBRATION:
        raise InputError(f"'run {options.name}' got an option it does not have: --kept goes with {CALIBRATION}.")
    work = options.work or options.out / "work"
    if options.name == RECORDED:
        from lab import recorded
        from lab.recorded_loops import LOOPS

        unknown = sorted(set(options.settings or []) - set(LOOPS))
        if unknown or options.plan:
            raise InputError(f"'run {RECORDED}' takes --settings of {', '.join(LOOPS)}, and no --plan.")
        for name in options.settings or LOOPS:
            recorded.run(name, out=options.out, work=work, shared=options.shared, keep_stale=options.keep_stale)
        return 0
    if options.name == CALIBRATION:
        return _calibrate(options, work)
    if options.name == ATTACKS:
        from lab import attacks

        if options.settings:
            raise InputError(f"'run {ATTACKS}' has one setting, and takes no --settings.")
        attacks.run(out=options.out, work=work, shared=options.shared, only_plan=options.plan, keep_stale=options.keep_stale)
        return 0
    settings = _chosen_settings(options)
    folders = {"out": options.out, "work": work, "shared": options.shared}
    if options.name == COMPARISON:
        from lab.comparison import tune

        names = [setting.name for setting in settings]
        tune(**folders, settings=names, keep_stale=options.keep_stale, only_plan=options.plan)
        settings = _chosen_settings(options)  # with the options that were chosen just now
    if options.name in PATHS:
        for setting in settings:
            path.run(
                setting,
                out=options.out,
                work=work,
                shared=options.shared,
                seeds=options.seeds,
                rows=options.rows,
                only_plan=options.plan,
                only_finish=options.finish,
                keep_stale=options.keep_stale,
                opening=open_own if options.name == "augmented" else open_experiment,
            )
        return 0
    if options.name == PACKED:
        for setting in settings:
            packed.run(setting, **folders, only_plan=options.plan, keep_stale=options.keep_stale)
        return 0
    if options.name == "chain":
        for setting in settings:
            chain.run(setting, **folders, seeds=options.seeds, only_plan=options.plan, keep_stale=options.keep_stale)
        return 0
    if options.name in ("single", "single-path"):
        for setting in settings:
            single.run(setting, **folders, only_plan=options.plan, keep_stale=options.keep_stale)
        return 0
    steps = plan(settings, out=options.out, work=work, keep_stale=options.keep_stale)
    for setting in settings:
        own_steps = [step for step in steps if step.setting == setting]
        kinds = ", ".join(f"{sum(step.kind == kind for step in own_steps)} {kind}s" for kind in ("fit", "retrain", "record"))
        print(f"{setting.name}: {kinds}; about {sum(step.seconds for step in own_steps) / 60:.0f} min")
    if options.keep_stale:
        kept = len(plan(settings, out=options.out, work=work)) - len(steps)
        print(f"{kept} steps are not made again, though other code made their files (--keep-stale)")
    if stale_text(steps):
        print(stale_text(steps))
    print(f"all: {len(steps)} steps; about {sum(step.seconds for step in steps) / 60:.0f} min (rough, on two cores)")
    if not options.plan:
        with show_progress(enabled=sys.stderr.isatty()):
            run_steps(steps, shared=options.shared, work=work, keep_stale=options.keep_stale)
    return 0


def _chosen_settings(options: argparse.Namespace) -> tuple[Setting, ...]:
    """Those that the command line names, or all."""
    from fastntk.base.errors import InputError

    settings = _settings(options.name, options.out)
    known = [setting.name for setting in settings]
    unknown = sorted(set(options.settings or []) - set(known))
    if unknown:
        raise InputError(f"Unknown settings {', '.join(unknown)}; {options.name} has {', '.join(known)}.")
    return tuple(setting for setting in settings if not options.settings or setting.name in options.settings)


def _calibrate(options: argparse.Namespace, work: Path) -> int:
    """The verdict on pools of models; ``--settings`` names pools."""
    from fastntk.base.errors import InputError
    from lab import calibration
    from lab.calibration_models import POOLS

    unknown = sorted(set(options.settings or []) - set(POOLS))
    if unknown or options.plan:
        raise InputError(f"'run {CALIBRATION}' takes --settings of {', '.join(POOLS)}, and no --plan.")
    calibration.run(
        out=options.out,
        work=work,
        shared=options.shared,
        pools=options.settings,
        kept=options.kept,
        only_finish=options.finish,
        keep_stale=options.keep_stale,
    )
    return 0


def _settings(name: str, out: Path) -> tuple[Setting, ...]:
    """The experiment's settings; those of the comparison know the baselines that are tuned already."""
    from lab.comparison import comparison
    from lab.settings import EXPERIMENTS

    return comparison(out) if name == COMPARISON else EXPERIMENTS[name]


def _again(options: argparse.Namespace) -> int:
    from lab.again import write_again

    print(f"wrote {write_again(options.folder, out=options.out)}")
    return 0


def _pages(options: argparse.Namespace) -> int:
    from fastntk.base.atomic import write_file
    from fastntk.base.errors import InputError

    unknown = [name for name in options.names if name not in PAGES]
    if unknown:
        raise InputError(f"Unknown pages {', '.join(unknown)}: choose from {', '.join(PAGES)}.")
    for name in options.names or PAGES:
        for path, content in documents(name, out=options.out, docs=options.docs, readme=options.readme).items():
            write_file(path, content, overwrite=True)
            print(f"wrote {path}")
    return 0


def documents(name: str, *, out: Path, docs: Path, readme: Path) -> dict[Path, bytes]:
    """The files of one of :data:`PAGES`, by where they go; pages that are filled in have to be there."""
    from lab.architecture_table import architecture_table
    from lab.augmented import AUGMENTED
    from lab.comparison_figure import comparison_figure
    from lab.comparison_page import comparison_page
    from lab.comparison_words import FIGURE
    from lab.development_page import development_page
    from lab.expectation import expectation_table
    from lab.marks import filled
    from lab.path_headline import MARKS as PATH_MARKS
    from lab.path_headline import path_headline
    from lab.path_page import path_page
    from lab.results_page import results_page
    from lab.settings import EXPERIMENTS
    from lab.unlearning_page import page

    if name == COMPARISON:
        settings = _settings(name, out)
        return {
            docs / "comparison.md": comparison_page(settings, out=out).encode(),
            docs / FIGURE: comparison_figure(settings, out=out),
        }
    if name == RECORDED:
        from lab.recorded_page import recorded_page

        return {docs / "results-recorded.md": recorded_page(out).encode()}
    if name == CALIBRATION:
        from lab.calibration_page import calibration_page

        return {docs / "calibration.md": calibration_page(out).encode()}
    if name == ATTACKS:
        from lab.attacks_page import attacks_page

        return {docs / "results-attacks.md": attacks_page(out).encode()}
    if name == "architecture":
        rooms = docs / "architecture.md"
        return {rooms: filled(rooms.read_text("utf-8"), architecture_table(out)).encode()}
    if name == "path":
        text = path_page(
            EXPERIMENTS[name], single=EXPERIMENTS["single-path"], augmented=(AUGMENTED,), chain=EXPERIMENTS["chain"], out=out
        )
        block = path_headline((*EXPERIMENTS[name], AUGMENTED), out=out)
        return {
            docs / "results-path.md": text.encode(),
            readme: filled(readme.read_text("utf-8"), block, marks=PATH_MARKS).encode(),
        }
    if name == DEMO:
        from lab.demo_block import MARKS as DEMO_MARKS
        from lab.demo_block import demo_block

        return {readme: filled(readme.read_text("utf-8"), demo_block(out), marks=DEMO_MARKS).encode()}
    if name == "development":
        return {docs / "results-development.md": development_page(EXPERIMENTS[name], out=out).encode()}
    if name == "tables":
        instructions = docs / "reproduce.md"
        content = {docs / file: content for file, content in results_page(out=out).items()}
        return content | {instructions: filled(instructions.read_text("utf-8"), expectation_table()).encode()}
    return {docs / "results-unlearning.md": page(EXPERIMENTS[name], single=EXPERIMENTS["single"], out=out).encode()}


if __name__ == "__main__":
    if WAIT not in os.environ:
        # OpenMP reads this when torch loads it, which importing the package has already done: start again with it set.
        os.environ[WAIT] = "PASSIVE"
        os.execv(sys.executable, [sys.executable, "-m", "lab", *sys.argv[1:]])
    sys.exit(main())
