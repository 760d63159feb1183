"""Cells of a sweep, of the store or else of its file, none of them run."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from fedray.analysis.data.collect import SweepTable, collect, make_row
from fedray.analysis.data.stored import UnknownSweep
from fedray.cells.spec import Search
from fedray.config import RunConfig
from fedray.sweep.file.entries import apply_draw
from fedray.sweep.file.shipped import list_sweeps, locate_sweep
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.draws import iter_points, make_draws
from fedray.tracking.store import StoreNotFound


def find_cells(name: str) -> SweepTable:
    """Return a sweep of the store, or else the cells of the file or shipped sweep of that name, none of them run.

    Raises:
        UserError: there is neither.
    """
    try:
        return collect(name)
    except (StoreNotFound, UnknownSweep) as unknown:
        path = Path(name)
        if name not in list_sweeps() and not path.is_file():
            raise unknown from None
        return list_expected(Sweep.load(locate_sweep(path)))


def list_expected(sweep: Sweep) -> SweepTable:
    """Return the cells of a file, none of them run; `cell` is a number, since a hash needs the data.

    For a file with two stages these are the cells of the final one, at the first draw. The first cell of each method
    and setting comes `after` the cells of the tune stage that choose it.
    """
    if sweep.tune is None or sweep.final is None:
        return _list_missing(sweep, {}, {})
    after: dict[str, list[Cell]] = {}
    drawn_keys: dict[str, list[str]] = {}
    seeds = len(sweep.final.seeds)
    from fedray.sweep.driver.stages import preview_final_stage  # here: the driver imports Ray

    for number, (config, space) in enumerate(sweep.iter_combinations()):
        draws = [apply_draw(config, values) for values in make_draws(sweep, space)]
        after[str(number * seeds)] = [_make_cell({**draw, "seed": seed}) for draw in draws for seed in sweep.tune.seeds]
        drawn_keys |= {str(number * seeds + k): list(space) for k in range(seeds)}
    return _list_missing(preview_final_stage(sweep), after, drawn_keys)


def _list_missing(sweep: Sweep, after: Mapping[str, list[Cell]], drawn_keys: Mapping[str, list[str]]) -> SweepTable:
    rows = [
        make_row(_make_cell(point, str(k), sweep.names), chosen=drawn_keys.get(str(k), ()))
        for k, point in enumerate(iter_points(sweep))
    ]
    return SweepTable(sweep.name, pd.DataFrame(rows), Search(), {}, after=after)


def _make_cell(point: Mapping[str, Any], number: str = "", names: Mapping[str, str] = MappingProxyType({})) -> Cell:
    """Return the cell of a configuration from a user's file; its classes are imported, as for a run."""
    run = RunConfig.parse(point)
    return Cell(number, number, run.resolve(), names=names, packed=run.pack())
