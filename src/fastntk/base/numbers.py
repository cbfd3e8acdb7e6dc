"""Numbers as JSON and digests take them."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """A numpy scalar as the Python number it holds, ``labels.max() + 1`` for example; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value
