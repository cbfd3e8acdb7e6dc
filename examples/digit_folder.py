"""An image folder to try the examples with: scikit-learn's digits as PNG files, one sub-folder a class."""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def digit_folder(folder: Path, *, per_class: int) -> Path:
    digits = load_digits()
    for label in range(10):
        (folder / f"digit-{label}").mkdir(parents=True)
        for number, pixels in enumerate(digits.images[digits.target == label][:per_class]):
            image = Image.fromarray((pixels * 15.9).astype(np.uint8)).resize((32, 32))
            image.convert("RGB").save(folder / f"digit-{label}" / f"{number:03}.png")
    return folder
