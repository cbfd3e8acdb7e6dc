"""From the options of ``fastntk reproduce`` to cells: unknown names are refused with the names there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fastntk.base.errors import InputError
from fastntk.reproduce.cells import PROBED, Cell, cells_of
from fastntk.reproduce.paper import TABLES
from fastntk.reproduce.setting import PAPER, Setting, slug


def select_cells(
    table: str,
    *,
    models: Sequence[str] | None = None,
    images_per_class: Sequence[int] | None = None,
    classes: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    real: bool = False,
) -> tuple[Cell, ...]:
    """The cells of a table that the options name; None leaves a choice open.

    Without ``real``, a model that only the paper's own settings have is taken from those. Optional cells are left out
    unless ``images_per_class`` names them.
    """
    if table not in TABLES:
        raise InputError(f"Unknown table {table!r}: choose one of {', '.join(TABLES)}.")
    cells = _candidates(table, models, real=real)
    cells = _matching(cells, "images per class", images_per_class, lambda cell: cell.images_per_class)
    cells = _matching(cells, "classes", classes, lambda cell: cell.classes)
    if images_per_class is None:
        cells = tuple(cell for cell in cells if not cell.optional)
    if not cells:
        raise InputError(f"{table} has no cell with this combination of models, classes and images per class.")
    labels = _labels(table, methods)
    return tuple(with_seeds(with_methods(cell, labels), seeds) for cell in cells)


def with_methods(cell: Cell, labels: tuple[str, ...] | None) -> Cell:
    """The cell with these methods only; in the probing table, with these models."""
    if labels is None:
        return cell
    if cell.probed:
        return replace(cell, probed=tuple(label for label in cell.probed if label in labels))
    rows = tuple(row for row in cell.setting.methods if row.label in labels)
    return replace(cell, setting=replace(cell.setting, methods=rows))


def with_seeds(cell: Cell, count: int | None) -> Cell:
    """The cell with so many seeds.

    A record holds distances to the Retrains of all seeds, so another list of seeds is another configuration with a folder
    of its own; trained weights are shared all the same.
    """
    if count is None or count == len(cell.setting.seeds):
        return cell
    if count < 1:
        raise InputError(f"At least one seed is needed, got {count}.")
    first = cell.setting.seeds[0]
    setting = replace(cell.setting, seeds=tuple(range(first, first + count)), extra_retrain_seeds=())
    if setting.retrain_seeds != cell.setting.retrain_seeds:
        setting = replace(setting, name=f"{setting.name}-{count}seeds")
    return replace(cell, setting=setting)


def settings_of(cells: Sequence[Cell]) -> tuple[Setting, ...]:
    """The settings behind the cells, each once, with the rows that any of them shows."""
    settings: dict[str, Setting] = {}
    for cell in cells:
        earlier = settings.get(cell.setting.name)
        rows = (*earlier.methods, *cell.methods) if earlier else cell.methods
        settings[cell.setting.name] = replace(cell.setting, methods=tuple({row.label: row for row in rows}.values()))
    return tuple(settings.values())


def _candidates(table: str, models: Sequence[str] | None, *, real: bool) -> tuple[Cell, ...]:
    own = cells_of(table, real=True) if real else cells_of(table, real=False)
    if models is None:
        return own
    elsewhere = () if real else cells_of(table, real=True)
    own_models = {cell.model for cell in own}
    pool = (*own, *(cell for cell in elsewhere if cell.model not in own_models))
    return _matching(pool, "models", models, lambda cell: cell.model)


def _matching(
    cells: tuple[Cell, ...], what: str, wanted: Sequence[str] | Sequence[int] | None, key: Callable[[Cell], str | int]
) -> tuple[Cell, ...]:
    if wanted is None:
        return cells
    values = list(dict.fromkeys(key(cell) for cell in cells))
    _refuse_unknown(what, wanted, values)
    return tuple(cell for cell in cells if key(cell) in wanted)


def _labels(table: str, methods: Sequence[str] | None) -> tuple[str, ...] | None:
    if methods is None:
        return None
    # A label may have commas in it, which the command line parts a list by: it is chosen by its name in files.
    label_by_slug = {slug(label): label for label in (PROBED if table == "table3" else [row.label for row in PAPER])}
    _refuse_unknown("methods", methods, list(label_by_slug))
    return tuple(label_by_slug[name] for name in methods)


def _refuse_unknown(what: str, wanted: Iterable[str | int], known: Sequence[str | int]) -> None:
    unknown = [str(item) for item in wanted if item not in known]
    if unknown or not list(wanted):
        raise InputError(f"{what}: {', '.join(unknown) or 'nothing'} is not among {', '.join(map(str, known))}.")
