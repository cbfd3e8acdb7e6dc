"""Labels beside the markers of a plot, where neither they nor the lines that lead to them cover each other or a marker."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

SIZE = 7.5
RADII = (5.0, 11.0, 18.0, 27.0, 38.0, 50.0)
"""Distances from the marker that are tried, in points; from the second on a thin line leads to it."""
ANGLES = (0, 180, 45, -45, 135, -135, 90, -90, 20, -20, 160, -160, 65, -65, 115, -115)
ARROW = {"arrowstyle": "-", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 3}
SIDES = {"left": 0.0, "center": 0.5, "right": 1.0}
"""Where the line meets a text of an alignment, as a share of its width."""
ROUNDS = 6
"""How often every label looks for a better place among the others."""
MARKER = 4.0
"""Half the side of the square that a marker takes, in points."""
LINE = 1.0
"""Half the side of the squares, strung from label to marker, that a line takes, in points."""


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


class Place(NamedTuple):
    """Where a label may stand: its offset from the marker in points, the text's rectangle, the squares of the line to it."""

    offset: tuple[float, float]
    text: Box
    line: list[Box]

    @property
    def boxes(self) -> list[Box]:
        """All that it covers."""
        return [self.text, *self.line]

    @property
    def alignment(self) -> str:
        """Of the text, seen from its offset."""
        return "left" if self.offset[0] > 1 else "right" if self.offset[0] < -1 else "center"

    def cost(self, others: Sequence[Box], inside: Box) -> float:
        """The area that it covers of others and outside the axis; a long line costs a little itself."""
        covered = sum(box.shared(other) for box in self.boxes for other in others)
        return covered + self.text.area - self.text.shared(inside) + 0.2 * sum(box.area for box in self.line)


def place_labels(axis: Any, labels: Sequence[tuple[str, float, float, str]], *, level: float) -> None:
    """Write a label (text, x, y, colour) beside each point, off the line at ``level``; the axis has its place and limits.

    Each takes the place around its point that covers least, near ones first, those in a crowd first, a few times over.
    """
    pixel = axis.figure.dpi / 72
    centres = [tuple(axis.transData.transform((x, y))) for _, x, y, _ in labels]
    markers = [Box(x - MARKER * pixel, y - MARKER * pixel, x + MARKER * pixel, y + MARKER * pixel) for x, y in centres]
    inside = Box(*axis.get_window_extent().extents)
    height = axis.transData.transform((1.0, level))[1]
    rule = Box(inside.left, height - LINE * pixel, inside.right, height + LINE * pixel)
    crowd = [sum(sorted(math.dist(one, other) for other in centres)[:4]) for one in centres]
    choices = [list(_candidates(centre, *_extent(axis, label[0]), pixel)) for centre, label in zip(centres, labels)]
    places: dict[int, Place] = {}
    for index in sorted(range(len(labels)), key=crowd.__getitem__) * ROUNDS:
        others = [box for other, place in places.items() if other != index for box in place.boxes]
        others += [rule, *markers[:index], *markers[index + 1 :]]
        places[index] = min(choices[index], key=lambda place: place.cost(others, inside))
    for index, place in places.items():
        text, x, y, colour = labels[index]
        axis.annotate(
            text,
            (x, y),
            xytext=place.offset,
            textcoords="offset points",
            color=colour,
            fontsize=SIZE,
            horizontalalignment=place.alignment,
            verticalalignment="center",
            arrowprops=ARROW | {"color": colour, "relpos": (SIDES[place.alignment], 0.5)} if place.line else None,
        )


def _extent(axis: Any, text: str) -> tuple[float, float]:
    """Width and height of a text, in pixels."""
    probe = axis.text(0.5, 0.5, text, fontsize=SIZE, transform=axis.transAxes)
    box = probe.get_window_extent()
    probe.remove()
    return box.width, box.height


def _candidates(centre: tuple[float, float], width: float, height: float, pixel: float) -> Iterator[Place]:
    """Near ones first."""
    for radius in RADII:
        for angle in ANGLES:
            right, up = radius * math.cos(math.radians(angle)), radius * math.sin(math.radians(angle))
            x, y = centre[0] + right * pixel, centre[1] + up * pixel
            left = x if right > 1 else x - width if right < -1 else x - width / 2
            line = list(_line(centre, (x, y), pixel)) if radius > RADII[0] else []
            yield Place((right, up), Box(left, y - height / 2, left + width, y + height / 2), line)


def _line(start: tuple[float, float], end: tuple[float, float], pixel: float) -> Iterator[Box]:
    """Squares from a marker to its text."""
    steps, half = math.ceil(math.dist(start, end) / (2 * LINE * pixel)), LINE * pixel
    for step in range(steps):
        x, y = (a + (b - a) * step / steps for a, b in zip(start, end))
        yield Box(x - half, y - half, x + half, y + half)
