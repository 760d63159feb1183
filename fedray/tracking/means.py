"""Runs of means over seeds, so that MLflow's charts have one line and one point per setting, in its method's colour.

They hold nothing that the cells' runs lack, and nothing in fedray reads them: `fedray ui SWEEP` writes those anew whose
seeds have changed.
"""

import hashlib
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
from mlflow.entities import Metric, Param, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NOTE

from fedray.cells.cell import Cell, leave_out_seed
from fedray.cells.looks import Look
from fedray.cells.metric import LAST
from fedray.cells.status import Status
from fedray.common.errors import format_count
from fedray.tracking import store

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from fedray.tracking.store import AnyRun

SEEDS = "fedray.seeds"
"""Tag of a run of means: a digest of the runs behind it, and of what it shows of them."""
DEVIATION = "_over_seeds"
"""End of the name of a number's sample standard deviation over the seeds; `_std` is a probe's, over the cohort."""


def write_means(
    client: "MlflowClient",
    sweep: "AnyRun",
    cells: Mapping[str, Cell],
    runs: Mapping[str, "AnyRun"],
    show: "Callable[[AnyRun], dict[str, str]]",
    metrics: Sequence[str],
    looks: Mapping[str, Look],
    points: Sequence[str],
) -> None:
    """Bring a sweep's means in line with its runs.

    A setting has one if at least two of its seeds have finished. MLflow's charts have no filter, so with `looks` a mean
    has the metrics, and some parameters, once more under names that end in its column, as `name_column` writes it.

    cells, runs: hash -> each of its cells, and the runs of those that have run, under the sweep's names and colours.
    show: returns the parameters that a mean has of a run. metrics: those by round that it has, besides all summaries.
    looks: hash -> look whose setting is the column; empty if the charts are of all settings. points: parameters that
    charts of one column show.
    """
    name, experiment = sweep.data.tags["fedray.sweep"], sweep.info.experiment_id
    known = {run.data.tags.get(SEEDS): run for run in store.search(client, experiment, store.select_means(name))}
    settings: dict[str, list[str]] = defaultdict(list)
    for hash, cell in cells.items():
        settings[cell.setting].append(hash)
    changed = []
    for setting, hashes in settings.items():
        statuses = {hash: store.read_status(runs[hash]) if hash in runs else Status.MISSING for hash in hashes}
        seeds = [runs[hash] for hash, status in statuses.items() if status is Status.FINISHED]
        if len(seeds) < 2:
            continue
        tags = {
            "fedray.kind": "mean",
            store.MEAN_OF: name,
            store.SETTING: setting,
            "fedray.status": store.format_counts(Counter(statuses.values())),
            store.COLOUR: seeds[0].data.tags[store.COLOUR],
            MLFLOW_PARENT_RUN_ID: sweep.info.run_id,
            MLFLOW_RUN_NOTE: f"Mean of {len(seeds)} seeds: " + ", ".join(run.info.run_name for run in seeds),
        }
        title = leave_out_seed(seeds[0].info.run_name, seeds[0].data.params.get("seed"))
        end = name_column(looks[hashes[0]].setting) if looks else ""
        params = show(seeds[0])
        params |= {name_point(key, end): params[key] for key in points}
        behind = [DEVIATION, title, tags, params, end, [*metrics], sorted(run.info.run_id for run in seeds)]
        digest = hashlib.sha256(json.dumps(behind).encode()).hexdigest()
        if known.pop(digest, None) is None:
            changed.append((title, tags, params, seeds, end, digest))
    if changed:
        logging.getLogger("fedray").info("writing %s over seeds", format_count(len(changed), "mean"))
    for title, tags, params, seeds, end, digest in changed:
        start = max(run.info.start_time for run in seeds)
        took = sum((run.info.end_time or 0) - run.info.start_time for run in seeds) // len(seeds)
        run = client.create_run(experiment, start, tags, title)
        client.set_terminated(run.info.run_id, "FINISHED", start + took)  # as long as its seeds took on average
        means = [Metric(name, value, start + step, step) for name, value, step in _average(seeds, metrics)]
        again = [Metric(one.key + end, one.value, one.timestamp, one.step) for one in means if one.key in metrics]
        means += again if end else []
        client.log_batch(run.info.run_id, means)
        # Last, so that one which was cut off is written again.
        written = [Param(key, value) for key, value in params.items()]
        client.log_batch(run.info.run_id, params=written, tags=[RunTag(SEEDS, digest)])
    for left in known.values():
        client.delete_run(left.info.run_id)


def name_column(column: str) -> str:
    """Return what names of MLflow end in that are of one column, ` α 0.1`: they have neither `=` nor `/`."""
    return re.sub(r"[^\w.\-]+", " ", f" {column}"[:100]).rstrip()


def name_point(key: str, end: str) -> str:
    """Return the parameter by which charts of a column show a key, `α 0.1: algorithm.rho`; the key if all share one."""
    return f"{end.strip()}: {key}" if end else key


def _average(seeds: Sequence["AnyRun"], metrics: Sequence[str]) -> Iterator[tuple[str, float, int]]:
    """Yield name, mean and round of what all seeds have: metrics in each round, then summaries, at round 0.

    The numbers of tables, means of the last rounds, have their deviation as well. Six digits, since MLflow's page shows
    all that a number has.
    """
    reader, _ = store.open_reader()
    totals = pd.DataFrame([run.data.metrics for run in seeds]).dropna(axis="columns")
    for name in metrics:
        if name in totals:
            histories = [reader.get_metric_history(run.info.run_id, name) for run in seeds]
            curves = pd.DataFrame([{point.step: point.value for point in points} for points in histories])
            whole = curves.dropna(axis="columns")
            for step, value in zip(whole.columns.tolist(), whole.mean().tolist(), strict=True):
                yield name, float(f"{value:.6g}"), int(step)
    summaries = [str(name) for name in totals if str(name).startswith(store.SUMMARY)]
    for summary, value in zip(summaries, totals[summaries].mean().tolist(), strict=True):
        yield summary, float(f"{value:.6g}"), 0
        if summary.startswith(store.SUMMARY + LAST):
            yield f"{summary}{DEVIATION}", float(f"{round(totals[summary].std(), 9):.6g}"), 0
