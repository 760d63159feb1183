"""Runs that decide a claim: from the store or, for a sweep that has not been run, the cells of its file."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedray.analysis.data.collect import SweepTable, collect
from fedray.analysis.data.expected import list_expected
from fedray.analysis.data.specs import iter_specs, list_plugins
from fedray.analysis.data.stored import UnknownSweep
from fedray.cells.spec import CellSpec
from fedray.config import RunConfig
from fedray.sweep.file.document import load_document
from fedray.sweep.file.shipped import locate_sweep
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.draws import count_gradients
from fedray.sweep.plan.estimate import make_key, measure_seconds
from fedray.tracking.store import StoreNotFound


def find_runs(name: str, file: Path | None) -> SweepTable:
    """Return the sweep as the store has it, or else the cells of its file, all missing.

    Args:
        name: name of the sweep.
        file: the file of the claims: the sweep's own, or a paper's, whose sweeps are shipped.

    Raises:
        UserError: neither exists.
    """
    try:
        found = collect(name)
        if found.name == name:  # a smoke version decides nothing
            return replace(found, cells=found.cells.assign(spec=found.cells["spec"].map(CellSpec.without_names)))
    except (StoreNotFound, UnknownSweep):
        pass
    if file is not None and "base" in (document := load_document(file)):
        own = Sweep.parse(document, file=file)
        if own.name == name:
            return list_expected(own)
    return list_expected(Sweep.load(locate_sweep(Path(name))))


def sum_hours(cells: pd.DataFrame) -> float:
    """Return the hours of training of the finished cells, without evaluation."""
    done = cells[cells["status"] == "finished"]
    if not len(done) or "metrics.seconds_per_round" not in done:
        return 0.0
    rounds = [spec.get("training.rounds") for spec in iter_specs(done)]
    return float((done["metrics.seconds_per_round"] * rounds).sum() / 3600)


class Price:
    """Cost of the missing cells: gradients of a batch, and if asked for hours on this machine."""

    def __init__(self, measured: bool) -> None:
        self.measured = measured
        self._known: dict[str, tuple[float, float] | None] = {}

    def estimate(self, specs: Sequence[CellSpec]) -> tuple[float, float] | None:
        """Return gradients and hours of all cells; None if some data or a user's class is not available here."""
        found = [self._estimate_one(spec) for spec in specs]
        whole = [one for one in found if one is not None]
        if len(whole) < len(found):
            return None
        return sum(one[0] for one in whole), sum(one[1] for one in whole)

    def _estimate_one(self, spec: CellSpec) -> tuple[float, float] | None:
        identity = repr({part: value for part, value in spec.config.items() if part != "seed"})
        if identity not in self._known:
            if any(path.partition(":")[0] not in sys.modules for path in list_plugins(spec.config)):
                self._known[identity] = None  # the store names a class that this process has not imported
                return None
            run = spec.run if isinstance(spec, Cell) else RunConfig.parse_stored(spec.config)
            count = count_gradients(run)
            each = (
                measure_seconds(make_key(run), run.runtime.torch_device) / 3600
                if self.measured and count is not None
                else 0.0
            )
            self._known[identity] = None if count is None else (count, count * each)
        return self._known[identity]
