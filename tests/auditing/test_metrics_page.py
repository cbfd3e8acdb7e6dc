"""docs/metrics.md names every figure and every threshold as they are."""

from __future__ import annotations

import json
from pathlib import Path

from fastntk.auditing import klom, membership, ulira, verdict
from fastntk.auditing.ensembles import FEWEST
from fastntk.auditing.figures import BY_NAME

ROOT = Path(__file__).parents[2]
TEXT = " ".join((ROOT / "docs" / "metrics.md").read_text("utf-8").split())


def test_every_name_is_explained() -> None:
    assert not [name for name in BY_NAME if f"`{name}`" not in TEXT]


def test_the_cost_told_is_that_of_the_record() -> None:
    cost = json.loads((ROOT / "results" / "audit" / "resnet20-100-class-0.json").read_text("utf-8"))["cost"]
    assert f"took {cost['audit_seconds']:.0f} s on two cores, one Retrain {cost['retrain_seconds']:.0f} s" in TEXT


def test_thresholds_are_those_of_the_code() -> None:
    for sentence in (
        f"recovered < {verdict.RECOVERED_LEAST};",
        f"recovered > {verdict.RECOVERED_MOST};",
        f"under {verdict.RELEARN_SHARE} × Retrain's epochs and at least {verdict.RELEARN_EPOCHS} epochs fewer",
        f"over Retrain's by {verdict.ERRORS:.0f} standard errors",
        f"by {verdict.ERRORS:.0f} of its own standard errors and by {verdict.LIRA_GAP}",
        f"an accuracy over {100 * verdict.POINTS:.0f} points and over {verdict.FEW} samples",
        f"total variation over {verdict.SPREAD} × the spread",
        f"below {verdict.LOSS_GAP} nats",
        f"Under {membership.LEAST} samples on either side",
        f"at least {100 * ulira.FLOOR:.0f} % of that of all values",
        f"clipped to ±{klom.CLIP:.0f}, in {klom.BINS} common bins",
        f"Under {klom.ENOUGH} models a side",
        f"The ceiling, {klom.ceiling():.1f} nats",
        f"({klom.gaussian_floor(16):.2f} nats for 16",
        f"over {membership.RESAMPLES} draws",
        f"K ≥ {FEWEST}",
    ):
        assert sentence in TEXT, sentence
