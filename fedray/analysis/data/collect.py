"""From MLflow to a checked table of runs: one row per cell of a sweep, including missing ones."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedray.analysis.data.stored import open_store_of, read_sweep
from fedray.cells.cell import Cell, flatten
from fedray.cells.record import Record, parse_table
from fedray.cells.sheet import Sheet
from fedray.cells.status import SUPERSEDED, Status
from fedray.common.errors import UserError, name_place, truncate_repr
from fedray.common.yaml_files import parse_yaml
from fedray.config import COMPONENTS, RunConfig
from fedray.datasets.base import load_data
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.problem import Problem
from fedray.engine.result import Result
from fedray.engine.state import State, digest_theta, refuse_other_weights
from fedray.sweep.document import list_sweeps, locate_sweep
from fedray.sweep.draws import iter_points
from fedray.sweep.storage import get_cell_dir
from fedray.sweep.sweep import Sweep
from fedray.tracking.environment import describe_mixture
from fedray.tracking.store import (
    NotStored,
    bound,
    count_unlisted,
    describe_unlisted,
    find_blocks,
    find_run,
    find_sweeps,
    open_reader,
    read_artefact,
    read_cells,
)

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient


OF_CELL = ("cell", "label", "status", "run_id", "spec", "message", "sweep")
"""Columns of `SweepTable.cells` that are neither settings nor metrics."""


@dataclass(frozen=True)
class SweepTable:
    """The cells of a sweep, run or not, as a table; or of several sweeps.

    Attributes:
        sheet: the cells with their records.
        cells: a row per cell, as `make_frame` makes it. Values that a tune stage has chosen are under `chosen.KEY`, so
            that they do not separate rows or columns.
        store: client and experiment; None: the cells are those of a file, and none has run.
        note: on cells of the sweep's name that are not among these; empty for none.
        parts: name of each sweep of the sheets, of a block NAME/k -> what `cells` call it.
        read: histories read so far.
    """

    sheet: Sheet
    cells: pd.DataFrame
    store: "tuple[AnyClient, str] | None" = None
    note: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    read: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The sweep's; of several sweeps all, with spaces."""
        return self.sheet.name

    @cached_property
    def searched(self) -> tuple[str, ...]:
        """The keys that are drawn; empty for a grid."""
        return next((cell.searched for cell in self.sheet.cells.values() if cell.searched), ())

    @cached_property
    def tuned(self) -> dict[str, Mapping[str, Any]]:
        """Of a final stage, hash -> how the cell was chosen (`sweep.stages.describe_choices`)."""
        return {hash: cell.tuned for hash, cell in self.sheet.cells.items() if cell.tuned}

    def get_history(self, run_id: str, metric: str) -> dict[int, float]:
        """Return evaluated round -> value, in order; empty if the run has not logged the metric."""
        if self.store is not None and (run_id, metric) not in self.read:
            points = self.store[0].get_metric_history(run_id, metric)
            rows = sorted((point.step, bound(run_id, metric, float(point.value))) for point in points)
            self.read[run_id, metric] = dict(rows)
        return self.read.get((run_id, metric), {})

    def read_artefact(self, run_id: str, name: str) -> bytes | None:
        """Return a file of a run, or None."""
        return None if self.store is None else read_artefact(self.store[0], run_id, name)

    def read_table(self, run_id: str, name: str) -> dict[str, np.ndarray] | None:
        """Return the columns of a run's table `clients` or `confusion`, or None. Raises UserError if it is none."""
        content = self.read_artefact(run_id, f"{name}.csv")
        with name_place(f"{self.name}: {name}.csv of run {run_id}"):
            return None if content is None else parse_table(name, content)

    def describe_mixture(self) -> str:
        """Return a sentence if the cells come from different environments, else nothing."""
        return describe_mixture(record.tags for record in self.sheet.records.values() if record.run_id)


def collect(name: str, *others: str) -> SweepTable:
    """Return all cells of a sweep, including cells that another sweep ran, and then those of other sweeps, each once.

    The name of a sweep with `tune.blocks` stands for NAME/0, NAME/1, ... Raises NotStored if the store does not know
    one of them, UserError as `stored.read_sweep` does.
    """
    client, experiment = open_store_of(name)
    blocks = find_blocks(client, experiment, dict.fromkeys((name, *others)))
    most = max((numbers[-1] for numbers in blocks.values() if numbers), default=0)
    sheets, rows, notes = list[Sheet](), dict[str, dict[str, Any]](), list[str]()
    parts = dict[str, str]()
    for given, numbers in blocks.items():
        for sheet in [read_sweep(f"{given}/{k}") for k in numbers] or [read_sweep(given)]:
            parts[sheet.name] = of = given if numbers else sheet.name
            sheets.append(sheet)
            for hash, cell in sheet.cells.items():
                rows.setdefault(hash, make_row(cell, sheet.records.get(hash)) | {"sweep": of})
        notes += [f"{given}/{k} is not in this store" for k in range(most + 1) if numbers and k not in numbers]
    notes += [describe_unlisted(sheet.name, count_unlisted(sheet)) for sheet in sheets]
    whole = replace(
        sheets[0],
        name=" ".join(dict.fromkeys(parts.values())),
        cells={hash: row["spec"] for hash, row in rows.items()},
        records={hash: record for sheet in reversed(sheets) for hash, record in sheet.records.items()},
    )
    return SweepTable(whole, make_frame(rows.values()), (client, experiment), "; ".join(filter(None, notes)), parts)


def find_cells(name: str, *others: str) -> SweepTable:
    """Return `collect`, or else the cells of the file or shipped sweep of that one name, none of them run."""
    try:
        return collect(name, *others)
    except NotStored as unknown:
        path = Path(name)
        if others or (name not in list_sweeps() and not path.is_file()):
            raise unknown from None
        return list_expected(Sweep.load(locate_sweep(path)))


def list_expected(sweep: Sweep) -> SweepTable:
    """Return the cells of a file, none of them run; `cell` is a number, since a hash needs the data.

    For a file with two stages these are the cells of the final one, at the first draw.
    """
    drawn, stage = list[list[str]](), sweep
    if sweep.tune is not None and sweep.final is not None:
        from fedray.sweep.stages import preview_final_stage  # here: the driver imports Ray

        stage = preview_final_stage(sweep)
        drawn = [list(space) for _, space in sweep.points for _ in sweep.final.seeds]
    rows = []
    for k, point in enumerate(iter_points(stage)):
        run = RunConfig.parse(point)  # imports the user's classes, as for a run
        cell = Cell(str(k), str(k), run.resolve(), names=stage.names, packed=run.pack())
        rows.append(make_row(cell, chosen=drawn[k] if drawn else ()))
    return SweepTable(Sheet(stage.name), make_frame(rows))


def make_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the cells of `make_row` as a table.

    A row per cell: `cell` (hash), `label`, `status` (a `Status`), `run_id`, `spec` (the `Cell`), `sweep` (whose cell it
    is, as it was named; from a store), the configuration under dotted names (values as `flatten` gives them, so that a
    column may hold those of several types; all as texts if 1 and 1.0 occur, which are equal numbers, or numbers of
    clients and shares of them), metrics under `metrics.NAME` (floats), and what of their identities
    tells cells of one configuration apart: `runtime.threads`, or under `identity.KEY`, of a digest the beginning.
    """
    cells = pd.DataFrame(list(rows), dtype=object)
    for key in list_settings(cells):
        values = cells[key].dropna()
        is_mixed = len({type(one) for one in values} & {bool, int, float}) > 1
        if is_mixed and (key.endswith("clients.per_round") or values.nunique() < values.map(repr).nunique()):
            cells[key] = cells[key].map(str, na_action="ignore")
    usual = {"runtime.threads": 1, "runtime.device": "cpu", "runtime.deterministic": True}  # identities omit these
    told, first, apart = list[dict[str, Any]](), dict[str, dict[str, Any]](), dict[str, None]()
    for spec in cells["spec"]:
        short = {key: one[:12] if isinstance(one, str) else one for key, one in flatten(spec.identity).items()}
        told.append(usual | {key if key.startswith("runtime.") else f"identity.{key}": short[key] for key in short})
        theirs = first.setdefault(json.dumps({**spec.config, "runtime": None}, sort_keys=True), told[-1])
        apart |= dict.fromkeys(key for key in theirs | told[-1] if theirs.get(key) != told[-1].get(key))
    cells = cells.join(pd.DataFrame(told, cells.index, dtype=object)[[*apart]])
    cells = cells.astype({name: float for name in cells if str(name).startswith("metrics.")})
    return cells.copy()  # in few blocks: pandas warns of each column that is added to hundreds


def list_settings(cells: pd.DataFrame) -> list[str]:
    """Return the columns of `make_frame` that are of the configuration."""
    return [key for key in map(str, cells) if key not in OF_CELL and not key.startswith("metrics.")]


def make_row(cell: Cell, record: Record | None = None, chosen: Iterable[str] = ()) -> dict[str, Any]:
    """Return the row of a cell, given the record of the run that counts.

    Values of `chosen` keys, which a tune stage will choose, and those of `cell.tuned` are under `chosen.KEY`.
    """
    values = flatten({key: value for key, value in cell.config.items() if key != "runtime"})  # see `make_frame`
    moved = {f"chosen.{key}": values.pop(key, None) for key in (*chosen, *cell.tuned.get("values", ()))}
    status = Status.MISSING if record is None else record.ending.status
    row: dict[str, Any] = {"cell": cell.hash, "label": cell.label, "status": status, "run_id": None, "spec": cell}
    row |= values | moved | {"message": "" if record is None else record.ending.message}
    if record is not None and record.run_id:
        row |= {f"metrics.{name}": value for name, value in record.totals.items()} | {"run_id": record.run_id}
    return row


def parse(cell: Cell, option: str) -> RunConfig:
    """Return a cell's parsed configuration. Raises UserError, which begins with `option`, if it comes from a store and
    names a plug-in, or this version refuses it."""
    if cell.packed:
        return cell.run
    refuse_plugins(option, cell.config)
    return RunConfig.parse(cell.config)


def list_plugins(values: Mapping[str, Any]) -> list[str]:
    """Classes outside of fedray that a configuration names, in its sections and its probes."""
    probes = values.get("evaluation", {}).get("probes", ())
    sections = [values[name] for name in COMPONENTS if name in values]
    named = [one["name"] if isinstance(one, Mapping) else str(one) for one in (*sections, *probes)]
    return [name for name in named if ":" in name]


def refuse_plugins(option: str, values: Mapping[str, Any]) -> None:
    """Raise UserError, which begins with `option`, if a configuration of a store names a class outside of fedray."""
    if names := list_plugins(values):
        raise UserError(f"{option}: {names[0]} is a plug-in; fedray imports no class that a store names")


def list_titles(cells: pd.DataFrame) -> dict[str, str]:
    """Return metric -> title, for all plug-ins of the cells."""
    return {metric: title for spec in cells["spec"] for metric, title in spec.plugins.titles.items()}


def list_smaller_better(cells: pd.DataFrame) -> set[str]:
    """Return the metrics of the cells' plug-ins whose smallest value is the best."""
    return {metric for spec in cells["spec"] for metric in spec.plugins.lower}


def load_run(option: str, run: str, trusts: bool = True) -> Result:
    """Return the result of an earlier run, as `fedray.load`. Raises UserError, which begins with `option`.

    trusts: False refuses a class outside of fedray that its configuration names, and that would be imported.
    """
    client, experiment = open_reader()
    if (found := find_run(client, run)) is None:
        raise UserError(f"{option}: {truncate_repr(run)} is not the id of a run in this store")
    tags = found.data.tags
    if (cell := tags.get("fedray.cell")) is None:
        raise UserError(f"{option}: {run} is not the run of a cell; one of a sweep's cells is required")
    written = read_configuration(client, run)
    if not trusts:
        refuse_plugins(option, written)
    state = load_newest_state(option, cell)
    theta, status = digest_theta(state.theta), tags.get("fedray.status")
    unknown = "" if status == SUPERSEDED else theta  # one that did not finish has none
    if status in (Status.FINISHED, SUPERSEDED) and theta != tags.get("fedray.theta_sha256", unknown):
        raise UserError(
            f"{option}: the newest checkpoint here, of round {state.round}, is not of {run}: its cell was run again"
        )
    config = RunConfig.parse(written)
    data, parent = load_data(config.data), find_sweeps(client, experiment).get(tags.get("fedray.sweep", ""))
    listed = read_cells(client, parent).get(cell) if parent else None
    changed = listed.find_changed(data.digest, config.partition.list_identity_entries()) if listed else ""
    if changed == "data":
        raise UserError(f"{option}: {config.data.name} is not what {run} was trained on; put the old data back")
    if changed:
        raise UserError(f"{option}: the file of partition.path is not what {run} was trained on; put the old one back")
    problem = Problem.build(config, data)
    network = problem.build_network("cpu")
    refuse_other_weights(state, network.theta, network.frozen_sha256)
    return Result(state.history, network.layout, state, problem, run)


def read_configuration(client: "AnyClient", run: str) -> dict[str, Any]:
    """Return the configuration of a cell's run from its artefact `config.yaml`, not parsed.

    run: its id. Raises UserError if it is missing or damaged.
    """
    content = read_artefact(client, run, "config.yaml") or b""
    config = parse_yaml(content.decode(errors="replace"), f"config.yaml of {run}")
    if not isinstance(config, dict):
        raise UserError(f"run {run}: its artefact config.yaml is {'damaged' if content else 'missing'}")
    return config


def load_newest_state(option: str, cell: str) -> State:
    """Return the state in a cell's newest checkpoint. Raises UserError, beginning with `option`, if none is intact."""
    directory = get_cell_dir(cell)
    checkpoints = Checkpoints(directory, cell)
    if (state := checkpoints.load()) is not None:
        return state
    if rounds := checkpoints.list_rounds():
        raise UserError(
            f"{option}: none of its checkpoints in {directory} is whole (rounds {', '.join(map(str, rounds))}); call "
            "its sweep again with --force"
        )
    raise UserError(
        f"{option}: there is no checkpoint of it in {directory}; FEDRAY_STORAGE says where they are, and "
        "`fedray run --no-track` writes none"
    )
