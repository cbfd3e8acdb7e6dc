"""docs/metrics.md names every figure and every threshold as they are."""

from __future__ import annotations

import json
from pathlib import Path

from fastntk.auditing import calibration, klom, membership, ulira
from fastntk.auditing.ensembles import FEWEST
from fastntk.auditing.figures import BY_NAME

ROOT = Path(__file__).parents[2]
TEXT = " ".join((ROOT / "docs" / "metrics.md").read_text("utf-8").split())


def _limits(samples: int) -> str:
    """Those of the distance with one pair of Retrains and with four Retrains."""
    one, four = (calibration.distance_limit(samples, others) for others in (1, 3))
    return f"{one:.2f} ({four:.2f})"


def test_every_name_is_explained() -> None:
    assert not [name for name in BY_NAME if f"`{name}`" not in TEXT]


def test_the_cost_told_is_that_of_the_record() -> None:
    cost = json.loads((ROOT / "results" / "audit" / "resnet20-100-class-0.json").read_text("utf-8"))["cost"]
    assert f"took {cost['audit_seconds']:.0f} s on two cores, one Retrain {cost['retrain_seconds']:.0f} s" in TEXT


def test_thresholds_are_those_of_the_code() -> None:
    for sentence in (
        f"the loss went less than {calibration.RECOVERED_LEAST} of the way from Full's",
        f"recovered between {calibration.RECOVERED_LEAST} and {calibration.RECOVERED_MOST} and accuracies",
        f"within {100 * calibration.POINTS:.0f} points and {calibration.FEW} samples are conventions",
        f"under {calibration.RELEARN_SHARE} × Retrain's epochs and at least {calibration.RELEARN_EPOCHS} epochs fewer",
        f"over Retrain's by {calibration.LEVEL} standard errors",
        f"over one half by {calibration.LEVEL} of its own standard errors and by {calibration.LIRA_GAP}",
        f"a limit of {calibration.LEVEL} standard deviations of chance",
        f"of 1 sample {_limits(1)}, of 2 to 9 {_limits(5)}, of 10 to 99 {_limits(30)}; 100 samples and more, and D_h of that "
        f"size, {_limits(1000)}",
        f"√({calibration.LOSS_CORRELATION} + {1 - calibration.LOSS_CORRELATION}/n) · (1 + 1/2n) nats either way; for a whole "
        f"class 1 in place of the last root; at least {calibration.LEAST_LOSS}",
        f"and by {calibration.POPULATION_GAP}",
        f"total variation to Retrain on D_f is over {calibration.MUCH}",
        f"Distances up to {calibration.LEAST_DISTANCE} are no reason",
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
