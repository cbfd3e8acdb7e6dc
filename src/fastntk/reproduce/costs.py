"""Rough seconds of a step on two cores, for plans and the time left; the runner corrects them by what it measures.

training    images × epochs × t_step          rows    images × (C + 1) × t_row
"""

from __future__ import annotations

from fastntk.reproduce.setting import MethodRow, Request, Setting

STEP = {"resnet20": 1.7e-3, "resnet110": 7e-3, "mobilenetv2": 3e-3, "vit_small": 1.5e-2}
"""Seconds per image and training step, by how the model's name begins."""
ROW = {"resnet20": 1e-3, "resnet110": 5e-3, "mobilenetv2": 2e-3, "vit_small": 8e-3}
"""Seconds per image and class of Jacobian rows."""
UNKNOWN_STEP, UNKNOWN_ROW = 2e-2, 1e-2
EPOCHS_TO_RELEARN = 25
RELEARNED = 3
"""Models that an audit has relearn: Full, unlearned, Retrain."""
PROBE = 5.0
"""Seconds of one linear probe."""
CLASSES = 10
"""Assumed where a setting takes all classes of its source and does not say how many."""


def training_seconds(setting: Setting) -> float:
    """One fine-tuning, or about one retraining."""
    return images(setting) * setting.recipe.epochs * _of(setting, STEP, UNKNOWN_STEP)


def rows_seconds(setting: Setting) -> float:
    """One set of rows of all images."""
    return images(setting) * (_classes(setting) + 1) * _of(setting, ROW, UNKNOWN_ROW)


def record_seconds(setting: Setting, request: Request, row: MethodRow) -> float:
    """One method on one request, rows not included, and its audit, which relearns Full and Retrain too."""
    step = _of(setting, STEP, UNKNOWN_STEP)
    share = request.value if request.kind == "random" else 1 / _classes(setting)
    relearn = RELEARNED * EPOCHS_TO_RELEARN * share * images(setting) * step * 1.4
    predict = 0.4 * step * (images(setting) + 2000)
    own = {"full": 0.0, "retrain": 0.0}.get(row.method, 0.1 * training_seconds(setting))
    polish = float(row.options.get("polish", 0)) * images(setting) * step
    probes = 2 * predict + 5 * PROBE if setting.probes else 0.0
    return relearn + predict + own + polish + probes


def images(setting: Setting) -> int:
    """Training images, as far as the setting says."""
    return (setting.images_per_class or 100) * _classes(setting)


def _classes(setting: Setting) -> int:
    if isinstance(setting.only_classes, int):
        return setting.only_classes
    if setting.only_classes is not None:
        return len(setting.only_classes)
    return 50 if "caltech50" in setting.data else CLASSES


def _of(setting: Setting, table: dict[str, float], unknown: float) -> float:
    name = setting.model.rpartition(":")[2]
    return next((value for start, value in table.items() if name.startswith(start)), unknown)
