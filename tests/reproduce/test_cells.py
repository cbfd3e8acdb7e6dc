"""The cells as data: every published column has one, and what a cell is expected to take follows its work."""

from __future__ import annotations

import pytest

from fastntk.reproduce import paper
from fastntk.reproduce.cells import CELLS, cells_of
from fastntk.reproduce.expect import CPU, GPU, count, expected
from fastntk.reproduce.plots import COLOURS


def test_expected_time_grows_with_the_work_and_falls_with_the_machine() -> None:
    first, second, _ = [cell for cell in cells_of("table1", real=True) if cell.model == "resnet110"]
    small, large = expected(first, GPU), expected(second, GPU)
    assert 1.5 * small.seconds < large.seconds < 2.5 * small.seconds
    assert expected(first, CPU).seconds > 5 * small.seconds
    assert large.memory > small.memory
    counted = count("resnet110", 10, "norm+head", 32)
    assert (counted.tuned, counted.features, counted.parameters) == (8096 + 650, 64, 1727962)
    # Two operations a multiplication: 254 million multiplications for one image, as the network's authors count.
    assert counted.flops == pytest.approx(2 * 253e6, rel=0.02)


def test_every_published_column_has_a_cell_and_no_two_settings_share_a_name() -> None:
    for name in paper.TABLES:
        columns = paper.published_table(name).columns
        assert {cell.column for cell in cells_of(name, real=True)} == set(range(len(columns)))
        for cell in CELLS:
            if cell.table == name:
                column = columns[cell.column]
                assert (cell.classes, cell.images_per_class) == (column.classes, column.images_per_class)
                assert cell.real or cell.stand_in or cell.model == column.model
    digests = {(cell.setting.name, cell.setting.digest) for cell in CELLS}
    assert len({name for name, _ in digests}) == len(digests)


def test_every_row_has_a_colour() -> None:
    labels = {label for cell in CELLS for label in (*cell.probed, *(row.label for row in cell.setting.methods))}
    assert labels == set(COLOURS)
