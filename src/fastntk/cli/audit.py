"""``fastntk audit``: a run and an unlearned model in, the evidence on it out."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastntk.base.errors import InputError, listing
from fastntk.base.marks import AUDIT, REPORT, check_audit
from fastntk.base.schema import MAX_GIVEN
from fastntk.base.text import duration
from fastntk.cli.options import DATA_HELP, Device, Json, Overwrite, RunFolder, Threads, use_threads
from fastntk.cli.output import Output, progress
from fastntk.cli.request import (
    AcceptOutside,
    DataOverride,
    LossWith,
    RetrainWith,
    TraceRead,
    load_function,
    open_run,
    tell_outside,
)

if TYPE_CHECKING:
    from fastntk.auditing.record import AuditRecord
    from fastntk.data import Samples
    from fastntk.training.run import Run
    from fastntk.unlearning import Unlearned


def audit(
    run: RunFolder,
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="A folder written by `fastntk unlearn` from this run.")],
    holdout: Annotated[str, typer.Option("--holdout", metavar="SRC", help=f"Data the run never saw: {DATA_HELP}")],
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="retrain|RESULT",
            help="What to compare with: `retrain` trains it now; or a folder of `fastntk unlearn --method retrain`.",
        ),
    ] = None,
    retrain_with: RetrainWith = None,
    loss_with: LossWith = None,
    retrains: Annotated[
        int | None,
        typer.Option("--retrains", min=0, help="Where Retrain is trained now: further ones with other seeds (default 1)."),
    ] = None,
    ensemble: Annotated[
        int | None, typer.Option("--ensemble", metavar="K", help="Models for U-LiRA and KLoM; without it neither is made.")
    ] = None,
    ensemble_kind: Annotated[
        str, typer.Option("--ensemble-kind", help="real (trainings) or tangent (replays, much cheaper; not for tangent-replay).")
    ] = "real",
    require: Annotated[
        list[str] | None,
        typer.Option("--require", metavar="EXPR", help="Like 'forget_accuracy<=retrain+1'; exit code 3 where one fails."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help='For scripts: exit code 3 unless the verdict is "like retrain".')
    ] = False,
    relearn_threshold: Annotated[float, typer.Option("--relearn-threshold", help="Loss at which relearning ends.")] = 0.05,
    relearn_cap: Annotated[int, typer.Option("--relearn-cap", min=0, help="Epochs after which relearning is given up.")] = 100,
    probes: Annotated[bool, typer.Option("--probes/--no-probes", help="Linear probes on the features.")] = True,
    accept_outside: AcceptOutside = None,
    data: DataOverride = None,
    trace: TraceRead = True,
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Where ensembles are kept (default ~/.cache/fastntk).")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="F", help="The file to write (default RESULT/audit.json).")] = None,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="INT", min=0, max=MAX_GIVEN, help="Of the attack's folds and of relearning's batches."),
    ] = 0,
    device: Device = "auto",
    threads: Threads = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Measure an unlearned model beside the run it came from and beside a retrained one.

    Writes one record (JSON; sealed; nothing of a single sample in it). With --json the same record goes to standard output.
    Exit code 3: written, but a --require is not met, or the verdict is "cannot be told" (weights outside the tuned ones, or
    Retrains too far apart) and --accept-outside gives no reason to go on; with --strict, any verdict but "like retrain".

    Examples:

    fastntk audit runs/digits results/without-0 --holdout digits@test --reference retrain

    fastntk audit RUN RESULT --holdout SRC --reference retrain --require "forget_accuracy<=retrain+1" --json

    fastntk audit RUN RESULT --holdout SRC --data SRC --retrain-with mytraining:retrain
    """
    from fastntk.base.atomic import check_output, write_file

    output = Output(as_json=json)
    reference = "retrain" if reference is None and retrain_with is not None else reference
    _check_used(reference=reference, retrains=retrains, ensemble=ensemble, ensemble_kind=ensemble_kind, cache=cache)
    further = 1 if retrains is None else retrains
    target = out if out is not None else result / AUDIT
    output.replacing(target, check_output(target, overwrite=overwrite, replaceable=check_audit))

    from fastntk.auditing import audit as measure
    from fastntk.auditing.reading import parse_record
    from fastntk.auditing.requirements import parse
    from fastntk.data import load_source
    from fastntk.models import input_spec
    from fastntk.storage.data import hiding_key
    from fastntk.storage.results import load_result
    from fastntk.unlearning.residue import outside_report

    for text in require or []:
        parse(text)
    use_threads(threads)
    with progress():
        loaded_run = open_run(run, data, device=device, loss_with=loss_with, trace=trace)
        subject = load_result(result, loaded_run)
        function = None if retrain_with is None else load_function(retrain_with, option="--retrain-with")
        against = load_result(Path(reference), loaded_run) if reference not in (None, "retrain") else reference
        # Classes that were forgotten, or are rare, may be missing from the hold-out set; it is said which.
        classes, hide = loaded_run.data.classes, hiding_key(loaded_run.source, loaded_run.key)
        holdout_samples = load_source(
            holdout, spec=input_spec(loaded_run.model), classes=classes, vanished=classes or (), hide=hide
        )
        options: dict[str, Any] = {
            "relearn_cap": relearn_cap,
            "probes": probes,
            "ensemble": ensemble,
            "ensemble_kind": ensemble_kind,
            "retrain": function,
        }
        trained_here = further + 1 if reference == "retrain" else 0
        tell_outside(output, outside_report(loaded_run), accept_outside)
        _announce(
            output,
            loaded_run,
            subject,
            holdout_samples,
            reference=reference,
            trained_here=trained_here,
            options=options,
            cache=cache,
        )
        record = measure(
            loaded_run,
            subject,
            holdout=holdout_samples,
            reference=against,  # type: ignore[arg-type]
            retrains=further,
            relearn_threshold=relearn_threshold,
            require=require or [],
            cache=cache,
            seed=seed,
            accept_outside=accept_outside,
            **options,
        )
        text = json_format.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        audit_record = parse_record(record)
        write_file(target, text.encode(), overwrite=overwrite, replaceable=check_audit)
    _tell(output, audit_record)
    page = ["fastntk", "report", str(result), *(["--overwrite"] if (result / REPORT).exists() else [])]
    output.finish(record, wrote=str(target), then=page if out is None else None)
    level = audit_record.verdict.level
    open_question = level == "cannot be told" and accept_outside is None
    failed = strict and level != "like retrain"
    if failed or open_question or not all(item.passed for item in audit_record.requirements):
        raise typer.Exit(3)


def _check_used(
    *, reference: str | None, retrains: int | None, ensemble: int | None, ensemble_kind: str, cache: Path | None
) -> None:
    """Refuse options that nothing would use: who gives them expects what they ask for."""
    if retrains is not None and reference != "retrain":
        came = "no --reference is given" if reference is None else f"--reference {reference} is a Retrain that is there already"
        raise InputError(
            f"--retrains {retrains} counts Retrains that are trained here, and {came}. Give --reference retrain, or leave "
            "--retrains out."
        )
    if ensemble is None and (cache is not None or ensemble_kind != "real"):
        raise InputError("--cache and --ensemble-kind are about an ensemble, and none is asked for. Give --ensemble K too.")


def _announce(
    output: Output,
    run: Run,
    result: Unlearned,
    holdout: Samples,
    *,
    reference: str | None,
    trained_here: int,
    options: dict[str, Any],
    cache: Path | None,
) -> None:
    """Say what is about to happen and how long it will take."""
    from fastntk.auditing.cache import cache_folder
    from fastntk.auditing.costs import estimate
    from fastntk.auditing.ensembles import check_ensemble, check_offered
    from fastntk.unlearning.baselines.own_training import function_name

    size, kind, function = options["ensemble"], options["ensemble_kind"], options["retrain"]
    if size is not None:
        check_ensemble(run, size=size, kind=kind, retrain=function)
        check_offered(result.method, kind)
    stages = estimate(run, result, holdout=holdout, retrains=trained_here, **options)
    lacking = [name for name in holdout.classes_without_samples if name not in run.data.classes_without_samples]
    without = f", none of {listing(lacking)}: nothing is measured on new images of these" if lacking else ""
    facts: dict[str, object] = {
        "subject": f"{result.method}, {len(result.split.forget):,} of {len(run.data):,} samples forgotten",
        "hold-out": f"{len(holdout):,} samples{without}",
        "device": run.anchor.device,
        "reference": "none: nothing to judge by" if reference is None else reference,
    }
    if trained_here:
        by = "" if function is None else f" by {function_name(function)}, whose time is not known"
        facts["reference"] = f"Retrain, and {trained_here - 1} with other seeds{by}"
    if size is not None and function is not None and kind == "real":
        facts["ensemble"] = f"{size} Fulls, unlearned models and Retrains each, by the same function; none is kept"
    elif size is not None:
        facts["ensemble"] = f"{size} Fulls, unlearned models and Retrains each ({kind}), kept in {cache_folder(cache)}"
        facts[""] = "they saw the data to be forgotten: delete that folder when the audits are done"
    costs = ", ".join(f"{name} {duration(seconds)}" for name, seconds in stages.items())
    facts["estimate"] = f"{duration(sum(stages.values()))} ({costs})"
    output.say("Audit")
    output.facts(facts)


def _tell(output: Output, record: AuditRecord) -> None:
    """Print the figures beside each other, the verdict and the requirements."""
    from fastntk.auditing.figures import FIGURES, value_of

    rows = []
    for figure in FIGURES:
        if figure.name is None:
            continue
        values = [value_of(record, figure, model) for model in ("full", "unlearned", "retrain")]
        spread = value_of(record, figure, "spread")
        if values[1] is None:
            continue
        texts = [_figure_text(value, points=figure.points, unit=figure.unit) for value in values]
        if spread is not None:
            texts[2] = f"spread {_figure_text(spread, points=figure.points, unit=figure.unit)}"
        rows.append([figure.title, *texts, figure.better])
    output.table(["figure", "Full", "unlearned", "Retrain", "better"], rows)
    output.say(f"Verdict: {record.verdict.level}")
    for sentence in (*record.verdict.text, *(f"because {reason}" for reason in record.verdict.reasons)):
        output.say(f"  {sentence}")
    for item in record.requirements:
        sides = " against ".join("—" if side is None else f"{side:.4g}" for side in (item.left, item.right))
        note = f"; {item.note}" if item.note else ""
        output.say(f"  {'met' if item.passed else 'NOT MET'}: {item.text} ({sides}{note})")


def _figure_text(value: float | None, *, points: bool, unit: str) -> str:
    if value is None:
        return "—"
    if value == float("inf"):
        return "> cap"
    if points:
        return f"{100 * value:.1f} %"
    return f"{value:.0f}" if unit == "epochs" else f"{value:.3g}"
