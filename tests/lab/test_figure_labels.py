"""Labels of a plot: beside their markers, on top of nothing where there is room."""

from __future__ import annotations

import itertools

from lab.figure_labels import Box, place_labels
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def test_shared_area_of_rectangles() -> None:
    one = Box(0, 0, 2, 2)
    assert one.area == 4
    assert one.shared(Box(1, 1, 5, 5)) == 1
    assert one.shared(Box(2, 0, 3, 2)) == 0  # they touch
    assert one.shared(one) == 4


def test_labels_of_a_crowd_cover_neither_each_other_nor_a_marker() -> None:
    figure = Figure(figsize=(6, 4))
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    figure.draw_without_rendering()
    points = [(f"method {k}", 0.5 + 0.02 * k, 0.5 + 0.015 * (k % 3), "black") for k in range(6)]
    points.append(("at the edge", 0.99, 0.99, "black"))
    place_labels(axis, points, level=0.53)
    assert {text.get_text() for text in axis.texts} == {label for label, *_ in points}
    figure.draw_without_rendering()
    boxes = [Box(*text.get_window_extent().extents) for text in axis.texts]
    # The extent of an annotation with a leading line includes the line: texts alone.
    alone = [Box(*super(type(text), text).get_window_extent().extents) for text in axis.texts]
    assert all(one.shared(other) < 0.05 * one.area for one, other in itertools.combinations(alone, 2))
    height = axis.transData.transform((0.5, 0.53))[1]
    assert not [one for one in alone if one.bottom + 1 < height < one.top - 1]
    inside = Box(*axis.get_window_extent().extents)
    assert all(box.shared(inside) > 0.9 * box.area for box in boxes)
