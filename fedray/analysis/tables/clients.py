"""Results of runs for single clients and classes: the artefacts `clients.csv` and `confusion.csv` of finished runs."""

import numpy as np
import pandas as pd

from fedray.analysis.data.collect import SweepTable
from fedray.common.errors import UserError

TENTH = 0.1


def read_accuracies(sweep: SweepTable, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of every client's personal model after the last round, a row per run and client.

    `method` and `setting` (`_row` and `_column` of the finished cells), `seed`, `client`, `samples` (for training),
    `accuracy` in percent, and `train_accuracy` if it was measured. With `clients.unseen` also `unseen` (1 for the
    clients that never trained, whose `accuracy` is that of the model they receive) and `finetuned_accuracy`. Raises
    UserError if no run has tested its clients, or its table is none.
    """
    tables = []
    for cell in cells.to_dict("records"):
        columns = sweep.read_table(cell["run_id"], "clients")
        if columns is not None:
            run = {"method": cell["_row"], "setting": cell["_column"], "seed": cell["seed"]}
            tables.append(pd.DataFrame(columns).assign(**run))
    if not tables:
        raise UserError(
            f"sweep: no finished run of {sweep.name!r} has clients.csv; evaluation.personal tests each client"
        )
    table = pd.concat(tables, ignore_index=True)
    first = ["method", "setting", "seed", "client", "samples"]
    return table[[*first, *(name for name in table if name not in first)]]


def measure_fairness(clients: pd.DataFrame) -> pd.DataFrame:
    """Measure how equally clients are served, by seed and then as mean over the seeds; unseen ones do not count.

    Return a row per setting and method: `setting`, `method`, `mean`, `deviation` (population), `worst tenth` and `best
    tenth` (means of a tenth of the clients, rounded up), `clients`, `seeds`.
    """
    rows = []
    clients = clients[~is_unseen(clients)]
    for (setting, method), group in clients.groupby(["setting", "method"], sort=False):
        by_seed = pd.DataFrame([_spread(one["accuracy"].to_numpy()) for _, one in group.groupby("seed")])
        counted = {"clients": len(group) // len(by_seed), "seeds": len(by_seed)}
        rows.append({"setting": setting, "method": method, **by_seed.mean(), **counted})
    return pd.DataFrame(rows)


def is_unseen(clients: pd.DataFrame) -> pd.Series:
    """Return True for the rows of clients that never trained. clients: result of `read_accuracies`."""
    return clients["unseen"] == 1 if "unseen" in clients else pd.Series(data=False, index=clients.index)


def _spread(values: np.ndarray) -> dict[str, float]:
    ordered = np.sort(values)
    count = int(np.ceil(TENTH * len(ordered)))
    return {
        "mean": float(ordered.mean()),
        "deviation": float(ordered.std()),
        "worst tenth": float(ordered[:count].mean()),
        "best tenth": float(ordered[-count:].mean()),
    }


def read_confusions(sweep: SweepTable, cells: pd.DataFrame) -> dict[tuple[str, str], np.ndarray]:
    """Return (setting, method) -> the global model's answers, float `(runs, classes, outputs)`.

    Percent of the class's test samples; NaN for a class without test samples.
    """
    confusions = {}
    for (setting, method), group in cells.groupby(["_column", "_row"], sort=False):
        tables = [sweep.read_table(run_id, "confusion") for run_id in group["run_id"]]
        counts = [np.stack([*one.values()][1:], axis=1) for one in tables if one is not None]
        if len({one.shape for one in counts}) > 1:
            raise UserError(f"sweep: the runs of {method} have confusion.csv of different sizes")
        if counts:
            with np.errstate(invalid="ignore"):
                shares = [100 * one / one.sum(axis=1, keepdims=True) for one in counts]
            confusions[str(setting), str(method)] = np.stack(shares)
    if not confusions:
        raise UserError(
            f"sweep: no finished run of {sweep.name!r} has confusion.csv; runs of this version have it where there is "
            "a global model and at most 200 classes"
        )
    return confusions
