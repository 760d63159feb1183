"""Finished work from Python: a run with its model (`fedray.load`), a sweep as DataFrames (`fedray.results`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedray.analysis.data.axes import FINISHED
from fedray.analysis.data.collect import collect, list_settings, load_run
from fedray.analysis.data.metrics import list_by_round
from fedray.cells.status import Status
from fedray.cluster.connection import refuse_other_form
from fedray.common.calls import check_arguments, make_plain
from fedray.common.errors import UserError, format_count
from fedray.components.sources import hold_sources
from fedray.datasets.base import load_data
from fedray.datasets.dataset import Samples
from fedray.engine.process.device import isolate_run
from fedray.engine.result import Result
from fedray.sweep.document import locate_sweep
from fedray.sweep.plan import Options
from fedray.sweep.stages import run_file
from fedray.sweep.sweep import Sweep
from fedray.tracking import models
from fedray.tracking.store import TRIAL_CELL, find_sweeps, read_stored_sweep, read_trials


@dataclass(frozen=True)
class Results:
    """A sweep's results.

    Attributes:
        name: the sweep's.
        cells: a row per cell: `label`, `setting` (the label without its seed), `status`, `run_id`, the configuration
            under dotted names, first what varies, metrics under `metrics.NAME`, and `theta_sha256` of the final model
            (empty without one). Numbers and truth values are such; lists and names are texts.
        curves: a row per cell, evaluated round and metric: `cell`, `setting`, `seed`, `round`, `metric`, `value`.
        trials: what Ray Tune says of the trials, as `ResultGrid.get_dataframe()` gives it, a row per cell that this
            store's sweep has trained: `config/cell` (its hash), the axes (`config/algorithm.rho`), the last
            `test_accuracy` and `test_loss`, seconds, process and node.
    """

    name: str
    cells: pd.DataFrame
    curves: pd.DataFrame
    trials: pd.DataFrame

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {status}" for status, n in self.cells["status"].value_counts().items())
        cells = f"{format_count(len(self.cells), 'cell')} ({counts})"
        return f"<Results of {self.name}: {cells}, {len(self.curves)} points of curves>"


@check_arguments
@hold_sources()
def run_sweep(
    sweep: str | Path | Mapping[str, Any],
    *,
    changes: Mapping[str, Any] | None = None,
    only: Sequence[str | int] = (),
    smoke: bool = False,
    force: bool = False,
    max_concurrent: int | None = None,
    address: str | None = None,
) -> Results:
    """Run the remaining cells of a sweep (for a file that tunes, both stages), as `fedray sweep` does.

    Args:
        sweep: its file, the name of a shipped one, or its contents.
        changes: dotted key -> value, as with `--set`.
        only: the cells to run, as with `--only`; empty for all.
        smoke: run the small version that the file defines.
        force: run finished cells again.
        max_concurrent: maximum number of trials at a time; None for as many as fit.
        address: a cluster's address, `auto` or HOST:PORT; None for $RAY_ADDRESS, or this machine if that is not set.

    Returns:
        The results of all cells of the sweep, also of failed ones and of those that `only` leaves out: their metrics
        are NaN until they have finished.

    Raises:
        UserError: the sweep cannot run. Raised before anything is started.
        KeyboardInterrupt: it was interrupted, by SIGTERM, too; the same call goes on with it.

    Examples:
        >>> fedray.run_sweep({"name": "rates", "base": config, "grid": {"training.lr": [0.2, 0.3]}})
        rates: ...
        <Results of rates: 2 cells (2 finished), ... points of curves>
    """
    if max_concurrent is not None and max_concurrent < 1:
        raise UserError(f"run_sweep: max_concurrent: found {max_concurrent}; at least 1 is required")
    refuse_other_form("run_sweep: address", address)
    if isinstance(sweep, Mapping):
        loaded = Sweep.parse(make_plain("", sweep), smoke)
    else:
        loaded = Sweep.load(locate_sweep(Path(sweep)), smoke)
    if changes:
        loaded = loaded.with_overrides(make_plain("", changes))
    if loaded.tune is not None and loaded.tune.blocks:
        raise UserError(f"run_sweep: {loaded.name} has tune.blocks, so it is several sweeps; `fedray sweep` runs them")
    options = Options(force, [*map(str, only)], max_concurrent, address)
    code, tuned = run_file(loaded, loaded.name, options), f"{loaded.name}/tune"
    if code == 130:
        raise KeyboardInterrupt  # Tune returns
    if code == 1 and loaded.tune and set(read_stored_sweep(tuned).counts) & {Status.FAILED, Status.MISSING}:
        raise UserError(f"run_sweep: {tuned}: cells failed, so that nothing was chosen; `fedray status {tuned}`")
    return results(loaded.name)


@check_arguments
def results(name: str) -> Results:
    """Return a sweep's cells and curves from MLflow.

    Raises:
        UserError: there is no such sweep.

    Examples:
        >>> curves = fedray.results("seeds").curves
        >>> curves[curves["metric"] == "test_accuracy"].groupby("round")["value"].mean().index.tolist()
        [1, 2]
    """
    sweep = collect(name)
    cells = sweep.cells.drop(columns="spec")
    for column in [column for column in map(str, cells) if column.startswith("chosen.")]:  # by a tune stage
        key, values = column.removeprefix("chosen."), cells.pop(column)
        cells[key] = values.combine_first(cells[key]) if key in cells else values
    varies = [key for key in list_settings(cells) if cells[key].nunique(dropna=False) > 1]
    records = (sweep.sheet.records.get(hash) for hash in cells["cell"])
    cells["theta_sha256"] = [record.hashes.get("theta_sha256", "") if record else "" for record in records]
    cells["setting"] = [spec.setting for spec in sweep.cells["spec"]]
    cells = cells.infer_objects()
    measured = [key for key in map(str, cells) if key.startswith("metrics.") and key != "metrics.diverged_round"]
    cells[measured] = cells[measured].where(cells["status"].isin(FINISHED))
    cells = cells[list(dict.fromkeys(["cell", "label", "setting", "status", "run_id", *varies, *cells]))]
    assert sweep.store is not None  # noqa: S101 (`collect` sets it)
    client, known = sweep.store[0], find_sweeps(*sweep.store)
    of_parts = [read_trials(client, known[part].info.run_id) for part in sweep.parts]
    trials = pd.concat(of_parts).set_index(TRIAL_CELL, drop=False)
    listed = [cell for cell in cells["cell"] if cell in trials.index]
    have = cells[cells["run_id"].notna()]
    rows = [
        (cell, setting, seed, round, metric, value)
        for metric in list_by_round(sweep)
        for cell, setting, seed, run_id in zip(have["cell"], have["setting"], have["seed"], have["run_id"], strict=True)
        for round, value in sweep.get_history(str(run_id), metric).items()
    ]
    curves = pd.DataFrame(rows, columns=["cell", "setting", "seed", "round", "metric", "value"])
    return Results(sweep.name, cells, curves, trials.loc[listed].reset_index(drop=True))


@check_arguments
@isolate_run()
def load(run: str) -> Result:
    """Load an earlier run, from its newest checkpoint.

    A class of your own is imported from the working directory, as when the run was made: load what you trust.

    Args:
        run: its id in MLflow, shown by `fedray run`, in a table of `results`, and by MLflow.

    Raises:
        UserError: there is no such run, no intact checkpoint of it in FEDRAY_STORAGE, or a sweep trained it on other
        data, or with another file of its partition, than are here now.

    Examples:
        >>> results = fedray.run_sweep({"name": "seeds", "base": config, "grid": {"seed": [0, 1]}})
        seeds: ...
        >>> fedray.load(results.cells["run_id"][0])
        <Result of fedavg on digits: 2 of 2 rounds, test accuracy ...>
    """
    return load_run("load", run)


@check_arguments
@isolate_run()
def log_model(run: str) -> str:
    """Log the trained model of an earlier run to MLflow, with the run.

    Its inputs are as for `Result.model()`; pictures are uint8 `(n, c, h, w)`: its first layer normalises them. It is
    stored as a graph (`torch.export`), without pickles, so loading it does not need the class of your own model.

    Args:
        run: as in `load`.

    Returns:
        Its address, `models:/ID`, for `mlflow.pytorch.load_model` and `mlflow.pyfunc.load_model`.

    Raises:
        UserError: as in `load`, or the method has no global model, or the model cannot be exported.

    Examples:
        >>> fedray.log_model(fedray.results("seeds").cells["run_id"][0])
        'models:/m-...'
    """
    result = load(run)
    resizes = result.problem.config.model.side is not None  # what it resizes is an input, too
    data = load_data(result.problem.config.data) if resizes else result.problem.data
    x, y = (data.x_test, data.y_test) if len(data.x_test) > 1 else (data.x_train, data.y_train)
    inputs = x[:2] if x.ndim == 4 else Samples(x, y, data, "cpu").make_batch(np.arange(2))[0].numpy()
    return models.log_model(run, result.model(), inputs)
