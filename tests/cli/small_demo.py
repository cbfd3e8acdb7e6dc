"""The demo cut down to seconds, for tests that start it often."""

from __future__ import annotations

from fastntk.cli import demo

demo.SOURCE = {"data": "digits@train", "images_per_class": 4, "only_classes": 3}
demo.EPOCHS = 1
demo.IMAGES = 2
demo.METHODS = demo.METHODS_SINGLE = ("full", "retrain", "path-replay")
