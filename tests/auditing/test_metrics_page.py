"""docs/metrics.md names every figure and every threshold as they are."""

from __future__ import annotations

import json
from pathlib import Path

from fastntk.auditing import calibration, klom, membership, ulira
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
        f"under {calibration.RELEARN_SHARE} × Retrain's epochs and at least {calibration.RELEARN_EPOCHS} epochs fewer",
        f"over Retrain's by {calibration.LEVEL} standard errors of the difference",
        f"by {calibration.LEVEL} of its own standard errors and by {calibration.LIRA_GAP}",
        f"recovered between {calibration.RECOVERED_LEAST} and {calibration.RECOVERED_MOST} and accuracies",
        f"within {100 * calibration.POINTS:.0f} points and {calibration.FEW} samples",
        f"of 1 sample {calibration.distance_limit(1, 1):.2f} ({calibration.distance_limit(1, 3):.2f})",
        f"of 2 to 9 {calibration.distance_limit(9, 1):.2f} ({calibration.distance_limit(9, 3):.2f})",
        f"of 10 to 99 {calibration.distance_limit(99, 1):.2f} ({calibration.distance_limit(99, 3):.2f})",
        f"of that size, {calibration.distance_limit(100, 1):.2f} ({calibration.distance_limit(100, 3):.2f})",
        f"√({calibration.LOSS_CORRELATION} + {1 - calibration.LOSS_CORRELATION}/n) nats",
        f"for a whole class {calibration.CLASS_LOSS} in place of the last root; at least {calibration.LEAST_LOSS}",
        f"Distances up to {calibration.LEAST_DISTANCE}",
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
