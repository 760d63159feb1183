"""Cells of a sweep, of the store or else of its file, none of them run."""

from pathlib import Path

from fedray.analysis.data.collect import SweepTable, collect, make_frame, make_row
from fedray.analysis.data.stored import UnknownSweep
from fedray.cells.spec import Search
from fedray.config import RunConfig
from fedray.sweep.file.shipped import list_sweeps, locate_sweep
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.draws import iter_points
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

    For a file with two stages these are the cells of the final one, at the first draw.
    """
    drawn, stage = list[list[str]](), sweep
    if sweep.tune is not None and sweep.final is not None:
        from fedray.sweep.driver.stages import preview_final_stage  # here: the driver imports Ray

        stage = preview_final_stage(sweep)
        drawn = [list(space) for _, space in sweep.points for _ in sweep.final.seeds]
    rows = []
    for k, point in enumerate(iter_points(stage)):
        run = RunConfig.parse(point)  # imports the user's classes, as for a run
        cell = Cell(str(k), str(k), run.resolve(), names=stage.names, packed=run.pack())
        rows.append(make_row(cell, chosen=drawn[k] if drawn else ()))
    return SweepTable(stage.name, make_frame(rows), Search(), {})
