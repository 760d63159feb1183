"""The cells of a sweep: one configuration and one seed each, with their data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedray.common.component import as_written
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem, fitted
from fedray.sweep.grid import SYMBOLS, Sweep, found


@dataclass(frozen=True)
class Cell:
    """One configuration and one seed of a sweep."""

    hash: str
    label: str
    run: RunConfig
    data: str
    """Key of its data set in `Cells.data`."""


class Cells:
    """The cells of a sweep, checked as far as that is possible without training, with their data.

    cells: hash -> Cell, in the sweep's order; equal configurations are one cell. data: key -> data set, fitted.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.data: dict[str, Dataset] = {}
        self.cells: dict[str, Cell] = {}
        self._loaded: dict[str, tuple[Dataset, str]] = {}
        self._problems: dict[str, Problem] = {}
        varied = sweep.varied
        for point in sweep.points():
            run = RunConfig.parse(point)
            source = json.dumps(run.data.options())
            if source not in self._loaded:
                data = run.data.load()
                self._loaded[source] = data, data.digest
            data, digest = self._loaded[source]
            key = f"{digest}/{run.model.image_size}"
            self.data.setdefault(key, fitted(data, run))
            if run.runtime.backend != "ray":
                raise UserError(f"runtime.backend: found {run.runtime.backend}; a sweep runs on Ray")
            cell = Cell(run.cell(digest), label(point, run, varied), run, key)
            self.problem(cell)
            self.cells.setdefault(cell.hash, cell)

    def problem(self, cell: Cell) -> Problem:
        """The cell's data dealt out; dealt, and the model tried, once per distinct setting. Raises UserError."""
        run = cell.run
        setting = json.dumps(
            [
                cell.data,
                run.model.options(),
                run.algorithm.options(),
                run.partition.options(),
                run.clients.model_dump(mode="json"),
                run.seed,
            ]
        )
        if setting not in self._problems:
            problem = Problem.build(run, self.data[cell.data])
            problem.network("cpu")
            self._problems[setting] = problem
        return Problem(run, self._problems[setting].data, self._problems[setting].shards)


def label(point: Mapping[str, Any], run: RunConfig, varied: Sequence[str] = ()) -> str:
    """A readable name: `fedtoga ρ=0.1 α=0.1 dirichlet(0.1) lr=0.1 s0`.

    Hyper-parameters as far as the file sets them, and the value of each other key that varies in the sweep.
    """
    words = [run.algorithm.name]
    section = point.get("algorithm")
    for key, value in section.items() if isinstance(section, Mapping) else ():
        if key != "name":
            value = value["name"] if isinstance(value, Mapping) else value
            words.append(f"{SYMBOLS.get(key, key)}={as_written(value)}")
    words.append(run.partition.label())
    for key in varied:
        if key.partition(".")[0] not in ("algorithm", "partition", "seed"):
            value = found(point, key)
            if isinstance(value, Mapping) and "name" in value:
                value = value["name"]
            if value is not None:
                words.append(f"{key.rpartition('.')[2]}={as_written(value)}")
    return " ".join([*words, f"s{run.seed}"])
