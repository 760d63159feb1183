"""Runs of means over seeds, so that MLflow's charts have one line and one point per setting, in its method's colour.

They hold nothing that the cells' runs lack, and nothing in fedray reads them: `fedray ui SWEEP` writes those anew whose
seeds have changed.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
from mlflow.entities import Metric, Param
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NOTE

from fedray.cells.cell import Cell, leave_out_seed
from fedray.cells.looks import choose_looks
from fedray.cells.metric import find_mean
from fedray.cells.status import Status
from fedray.tracking.store import (
    COLOUR,
    MEAN_OF,
    NONE,
    SETTING,
    SUMMARY,
    format_counts,
    open_reader,
    read_status,
    search,
    select_means,
)
from fedray.tracking.tracker import BATCH

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from fedray.tracking.store import AnyRun

SEEDS = "fedray.seeds"
"""Tag of a run of means: a digest of the runs behind it, and of what it shows of them."""


def write_means(
    client: "MlflowClient",
    sweep: "AnyRun",
    cells: Mapping[str, Cell],
    runs: Mapping[str, "AnyRun"],
    keys: Sequence[str],
    metrics: Sequence[str],
) -> None:
    """Bring a sweep's means in line with its runs.

    A setting has one if at least two of its seeds have finished.

    Args:
        sweep: its own run.
        cells: all its cells, hash -> cell.
        runs: those that have run, hash -> run.
        keys: parameters that a mean has.
        metrics: metrics by round that it has, besides all summaries.
    """
    name, experiment = sweep.data.tags["fedray.sweep"], sweep.info.experiment_id
    known = {run.data.tags.get(SEEDS): run for run in search(client, experiment, select_means(name))}
    settings: dict[str, list[str]] = defaultdict(list)
    for hash, cell in cells.items():
        settings[leave_out_seed(cell.label, cell.config.get("seed"))].append(hash)
    looks = choose_looks(cells)
    for setting, hashes in settings.items():
        statuses = {hash: read_status(runs[hash]) if hash in runs else Status.MISSING for hash in hashes}
        seeds = [runs[hash] for hash, status in statuses.items() if status is Status.FINISHED]
        if len(seeds) < 2:
            continue
        look = looks[hashes[0]]
        tags = {
            "fedray.kind": "mean",
            MEAN_OF: name,
            SETTING: setting,
            "fedray.status": format_counts({one: [*statuses.values()].count(one) for one in statuses.values()}),
            COLOUR: look.colour,
            MLFLOW_PARENT_RUN_ID: sweep.info.run_id,
            MLFLOW_RUN_NOTE: f"Mean of {len(seeds)} seeds: " + ", ".join(run.info.run_name for run in seeds),
        }
        title = leave_out_seed(look.name, cells[hashes[0]].config.get("seed"))
        params = {key: seeds[0].data.params.get(key, NONE) for key in keys}
        behind = [title, tags, params, [*metrics], sorted(run.info.run_id for run in seeds)]
        tags[SEEDS] = hashlib.sha256(json.dumps(behind).encode()).hexdigest()
        if known.pop(tags[SEEDS], None) is None:
            _write(client, title, tags, params, _average(seeds, metrics), seeds)
    for left in known.values():
        client.delete_run(left.info.run_id)


def _average(seeds: Sequence["AnyRun"], metrics: Sequence[str]) -> list[tuple[str, float, int]]:
    """Return name, mean and round of what all seeds have: metrics in each round, then summaries, at round 0."""
    reader, _ = open_reader()
    found = []
    for name in metrics:
        histories = [reader.get_metric_history(run.info.run_id, name) for run in seeds]
        curves = [{point.step: point.value for point in points} for points in histories]
        for step in sorted(set.intersection(*({*curve} for curve in curves))):
            found.append((name, _find_mean([curve[step] for curve in curves]), step))
    for name in sorted(set.intersection(*({*run.data.metrics} for run in seeds))):
        if name.startswith(SUMMARY):
            found.append((name, _find_mean([run.data.metrics[name] for run in seeds]), 0))
    return found


def _find_mean(values: Sequence[float]) -> float:
    """Return the tables' mean in six digits: MLflow's page shows all that a number has."""
    return float(f"{find_mean(pd.Series(values)):.6g}")


def _write(
    client: "MlflowClient",
    title: str,
    tags: Mapping[str, str],
    params: Mapping[str, str],
    means: Sequence[tuple[str, float, int]],
    seeds: Sequence["AnyRun"],
) -> None:
    """Write a run of means, which took as long as its seeds on average.

    Its tag `SEEDS` is last, so that one which was cut off is written again.
    """
    start = max(run.info.start_time for run in seeds)
    took = sum((run.info.end_time or 0) - run.info.start_time for run in seeds) // len(seeds)
    first = {key: tags[key] for key in tags if key != SEEDS}
    run = client.create_run(seeds[0].info.experiment_id, start, first, title)
    logged = [Metric(name, value, start + step, step) for name, value, step in means]
    client.log_batch(run.info.run_id, params=[Param(key, value) for key, value in params.items()])
    for number in range(0, len(logged), BATCH):
        client.log_batch(run.info.run_id, logged[number : number + BATCH])
    client.set_terminated(run.info.run_id, "FINISHED", start + took)
    client.set_tag(run.info.run_id, SEEDS, tags[SEEDS])
