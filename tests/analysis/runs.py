"""Runs written into a store by hand."""

from collections.abc import Mapping
from typing import Any

from fedray.runs.ending import Ending
from fedray.runs.status import Status
from fedray.tracking.records import CellRun
from fedray.tracking.tracker import Tracker


def history(*accuracies: float) -> list[dict[str, float]]:
    return [
        {"round": t + 1, "test_accuracy": a, "test_loss": 1 - a / 100, "train_loss": 0.5}
        for t, a in enumerate(accuracies)
    ]


def cell(algorithm: Mapping[str, Any], alpha: float, seed: int) -> dict[str, Any]:
    name = "-".join(map(str, [*algorithm.values(), alpha, seed]))
    return {
        "hash": name,
        "label": name,
        "config": {
            "seed": seed,
            "algorithm": dict(algorithm),
            "partition": {"name": "dirichlet", "alpha": alpha, "min_size": 1},
            "runtime": {"actors": 1},
        },
    }


FEDAVG, SMALL, LARGE = {"name": "fedavg"}, {"name": "fedsam", "rho": 0.1}, {"name": "fedsam", "rho": 0.5}


def write(
    store: Tracker,
    cells: list[dict[str, Any]],
    outcomes: Mapping[str, tuple[str, list[dict[str, float]]]],
    name: str = "sweep",
) -> None:
    parent = store.open_sweep(name, "", cells)
    for one in cells:
        if one["hash"] not in outcomes:
            continue
        status, rows = outcomes[one["hash"]]
        run = CellRun()
        store.open_cell(run, one["hash"], one["label"], one["config"], {}, parent)
        store.log_rows(run, rows)
        if status != "running":
            store.close_cell(run, Ending(Status(status), "why" if status != "finished" else ""))
