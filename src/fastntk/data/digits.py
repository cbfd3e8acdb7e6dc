"""scikit-learn's 1 797 handwritten digits, shown as 32 × 32 RGB: the data that is there with nothing downloaded.

Ids are the rows of ``sklearn.datasets.load_digits()``, so training and test ids never coincide.
The split is fixed: of each digit the last fifth, in row order, is the test set.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastntk.data.catalog import Catalog

SIDE = 32
TEST_SHARE = 0.2


def open_digits(split: str = "train") -> Catalog:
    """Return the digits of one split, ``train`` or ``test``."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    labels = bunch.target.astype(np.int64)
    rows = split_rows(labels, split)
    # Gray levels run from 0 to 16.
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)

    def read(row: int) -> Image.Image:
        return Image.fromarray(pixels[rows[row]]).resize((SIDE, SIDE), Image.Resampling.BILINEAR).convert("RGB")

    ids = tuple(str(row) for row in rows)
    return Catalog("digits", ids, labels[rows], tuple(str(digit) for digit in range(10)), read)


def split_rows(labels: npt.NDArray[np.int64], split: str) -> npt.NDArray[np.int64]:
    """Return the rows of a split, ascending: the last fifth (rounded down) of each class is ``test``."""
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        test[members[len(members) - int(TEST_SHARE * len(members)) :]] = True
    return np.flatnonzero(test if split == "test" else ~test)
