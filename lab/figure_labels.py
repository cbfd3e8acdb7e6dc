"""Labels beside the markers of a plot, where they cover neither each other nor a marker."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

SIZE = 7.5
RADII = (5.0, 11.0, 18.0, 27.0, 38.0)
"""Distances from the marker that are tried, in points; from the second on a thin line leads to it."""
ANGLES = (0, 180, 45, -45, 135, -135, 90, -90)
MARKER = 4.0
"""Half the side of the square that a marker takes, in points."""


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def shared(self, other: Box) -> float:
        """The area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    @property
    def area(self) -> float:
        """Of the rectangle."""
        return (self.right - self.left) * (self.top - self.bottom)


def place_labels(axis: Any, labels: Sequence[tuple[str, float, float, str]]) -> None:
    """Write a label (text, x, y, colour) beside each point; the axis has its final place and limits.

    Each takes the nearest place around its point that is free, those in a crowd first; where none is, the one that covers least.
    """
    pixel = axis.figure.dpi / 72
    centres = [tuple(axis.transData.transform((x, y))) for _, x, y, _ in labels]
    markers = [Box(x - MARKER * pixel, y - MARKER * pixel, x + MARKER * pixel, y + MARKER * pixel) for x, y in centres]
    inside, taken = Box(*axis.get_window_extent().extents), list(markers)
    crowd = [sum(sorted(math.dist(one, other) for other in centres)[:4]) for one in centres]
    for index in sorted(range(len(labels)), key=crowd.__getitem__):
        text, x, y, colour = labels[index]
        width, height = _extent(axis, text)
        offset, box = min(
            _candidates(centres[index], width, height, pixel),
            key=lambda found: _covered(found[1], taken, inside),
        )
        taken.append(box)
        far = math.hypot(*offset) > RADII[0] + 1
        axis.annotate(
            text,
            (x, y),
            xytext=offset,
            textcoords="offset points",
            color=colour,
            fontsize=SIZE,
            horizontalalignment="left" if offset[0] > 1 else "right" if offset[0] < -1 else "center",
            verticalalignment="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": colour, "shrinkA": 0, "shrinkB": 3} if far else None,
        )


def _extent(axis: Any, text: str) -> tuple[float, float]:
    """Width and height of a text, in pixels."""
    probe = axis.text(0.5, 0.5, text, fontsize=SIZE, transform=axis.transAxes)
    box = probe.get_window_extent()
    probe.remove()
    return box.width, box.height


def _candidates(
    centre: tuple[float, float], width: float, height: float, pixel: float
) -> Iterator[tuple[tuple[float, float], Box]]:
    """Offsets in points with the rectangle that the text would take, near ones first."""
    for radius in RADII:
        for angle in ANGLES:
            right, up = radius * math.cos(math.radians(angle)), radius * math.sin(math.radians(angle))
            x, y = centre[0] + right * pixel, centre[1] + up * pixel
            left = x if right > 1 else x - width if right < -1 else x - width / 2
            yield (right, up), Box(left, y - height / 2, left + width, y + height / 2)


def _covered(box: Box, taken: Sequence[Box], inside: Box) -> float:
    """What a text there would cover, with what sticks out of the axis."""
    return sum(box.shared(other) for other in taken) + box.area - box.shared(inside)
