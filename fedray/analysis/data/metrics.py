"""What a table can show: a number per run, how it is called, and which way is better."""

import json
import re
from functools import cache

import numpy as np
import pandas as pd

from fedray.algorithms import algorithm
from fedray.analysis.data.axes import methods_and_settings
from fedray.analysis.data.cell_config import CellConfig, configs_in, plugin_lower, plugin_titles
from fedray.analysis.data.collect import SweepTable
from fedray.common.errors import UserError, unknown
from fedray.engine.cost import Cost, find_input_shape, measure_cost, measure_relative_compute
from fedray.evaluation.registry import DECLARED, LOWER, find_declared, title_metric
from fedray.models.base import count_parameters
from fedray.runs.last_rounds import LAST, describe_rounds
from fedray.sections import Evaluation
from fedray.tracking.tracker import ONCE as LOGGED_ONCE

DEFAULT = "last10_test_accuracy"
NAMES = {
    "test_accuracy": "test accuracy in %",
    "train_accuracy": "training accuracy in %",
    "personal_accuracy": "personal accuracy in %",
    "personal_std": "deviation of the personal accuracy over clients in points",
    "personal_worst10": "personal accuracy in % of the worst tenth of the clients",
    "personal_best": "personal accuracy in % of the best client",
    "personal_worst": "personal accuracy in % of the worst client",
    "personal_train_accuracy": "accuracy in % on the clients' own training samples",
    "personal_train_std": "deviation of the accuracy on own training samples over clients in points",
    "personal_train_best": "accuracy in % on own training samples of the best client",
    "personal_train_worst": "accuracy in % on own training samples of the worst client",
    "generic_accuracy": "generic accuracy in %",
    "validation_accuracy": "validation accuracy in %",
    "validation_loss": "validation loss",
    "test_loss": "test loss",
    "train_loss": "training loss",
}
"""What is logged by round, in words."""
PREFIXES = (LAST, "best_", "final_")
"""Of which rounds; a metric without one of these is that of the last round."""
COMPUTED = {
    "seconds_per_round": "seconds per round, evaluation not included",
    "seconds_per_round_with_evaluation": "seconds per round, evaluation included",
    "megabytes_down": "megabytes sent to clients, in all rounds together",
    "megabytes_up": "megabytes sent by clients, in all rounds together",
    "megabytes_sent": "megabytes sent to and by clients",
    "megabytes_kept_by_client": "megabytes that a client keeps, from round to round and beside the model",
    "megabytes_kept_by_server": "megabytes that the server keeps, the global model included",
    "relative_flops": "floating-point operations of a client's round in multiples of fedavg's, counted on the model, "
    "what a proximal loss costs included",
}
ONCE = ("best_round", *LOGGED_ONCE)
"""Logged once per run, not by round."""
COUNTED = ("relative_flops", "megabytes_kept_by_client", "megabytes_kept_by_server")
"""Counted here, from the configuration; no run logs them."""
LOWER_IS_BETTER = ("loss", "seconds", "rounds", "flops", "megabytes", "_std")
NEVER = float("inf")
"""The round of a target that a run has never reached."""


def values(sweep: SweepTable, metric: str) -> pd.Series:
    """A metric of each cell.

    Args:
        sweep: its cells.
        metric: as for tables, `rounds_to:METHOD` included.

    Returns:
        A float per cell; NaN if the run has not finished; NEVER if it has but did not reach the target. With
        `rounds_to:METHOD` also NaN if the method's run of the same setting and seed has not finished.

    Raises:
        UserError: a finished run lacks the metric.
    """
    cells = sweep.cells
    finished = cells["status"] == "finished"
    if is_rounds(metric):
        target = rounds_target(metric)
        targets = pd.Series(target, cells.index) if target is not None else _best_of(sweep, metric.partition(":")[2])
        return pd.Series(
            [
                _first_round(sweep, run_id, wanted) if done and pd.notna(wanted) else np.nan
                for run_id, done, wanted in zip(cells["run_id"], finished, targets, strict=True)
            ],
            cells.index,
        )
    if metric in COUNTED:
        return pd.Series(
            [
                _counted(metric, config) if done else np.nan
                for config, done in zip(configs_in(cells), finished, strict=True)
            ],
            cells.index,
        )
    column = f"metrics.final_{metric}" if f"metrics.final_{metric}" in cells else f"metrics.{metric}"
    if finished.any() and column not in cells:
        have = [str(name).removeprefix("metrics.") for name in cells if str(name).startswith("metrics.")]
        raise unknown("--metric", metric, [*have, "rounds_to:PERCENT", "rounds_to:METHOD", *COUNTED])
    if column not in cells:
        return pd.Series(np.nan, cells.index)
    logged, plain = cells[column], fine_tuned(column)[0]
    if plain != column and {plain, "evaluation.personal.epochs"} <= set(cells):
        asked = cells["evaluation.personal.epochs"]
        logged = logged.fillna(cells[plain].where(asked.isin(asked[logged.notna()])))
    if len(lacking := cells.loc[finished & logged.isna(), "label"]):
        raise UserError(
            f"--metric: found {metric!r}, which {len(lacking)} of {finished.sum()} finished runs have not logged, "
            f"{lacking.iloc[0]} among them"
        )
    return logged.where(finished)


def fine_tuned(metric: str) -> tuple[str, str]:
    """`personal_accuracy` and `5` of `personal_accuracy_e5`: the metric after so many epochs; else it and "".

    Asked for several numbers of epochs, runs whose method is not fine-tuned log the first alone: it is theirs after any
    number.
    """
    found = re.fullmatch(r"(.*personal_.+)_e(\d+)", metric)
    return (found[1], found[2]) if found else (metric, "")


def by_round(sweep: SweepTable) -> list[str]:
    """What the sweep's runs have logged by round."""
    names = (str(name).removeprefix("metrics.") for name in sweep.cells if str(name).startswith("metrics."))
    return sorted(name for name in names if name not in ONCE and not name.startswith(PREFIXES))


def of_parts(sweep: SweepTable, metric: str) -> list[str]:
    """The parts C of the metrics `METRIC_C`, numbers within them in their order. Raises UserError for none."""
    found = {
        name.removeprefix(f"{metric}_")
        for name in by_round(sweep)
        if name.startswith(f"{metric}_") and not name.endswith("_std")
    }
    if not found:
        raise unknown("--metric", metric, {name.rpartition("_")[0] for name in by_round(sweep) if "_" in name})
    return sorted(found, key=lambda part: [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", part)])


def is_rounds(metric: str) -> bool:
    """Whether it is `rounds_to:PERCENT` or `rounds_to:METHOD`."""
    return metric.partition(":")[0] == "rounds_to"


def rounds_target(metric: str) -> float | None:
    """80.0 of `rounds_to:80`, None of any other metric. Raises UserError where it is not a percentage."""
    target = metric.partition(":")[2]
    if not is_rounds(metric) or re.match(r"[^\W\d]", target):
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", target) or not 0 < float(target) <= 100:
        raise UserError(
            f"--metric: found {metric!r}; rounds_to:PERCENT with a test accuracy up to 100 is required, "
            "or rounds_to:METHOD"
        )
    return float(target)


def rounds_between(sweep: SweepTable, run_id: str) -> int:
    """The most rounds from one to the next for which a finished run has the accuracy that meets a target."""
    rounds = list(_accuracies(sweep, run_id))
    return max((later - earlier for earlier, later in zip([0, *rounds], rounds, strict=False)), default=0)


def held_out(sweep: SweepTable) -> bool:
    """Whether every cell holds samples out, on which its best round is selected."""
    return all(config.get("data.validation.fraction") is not None for config in configs_in(sweep.cells))


def title(metric: str, cells: pd.DataFrame, held_out: bool = False) -> str:
    """A metric of a sweep's cells in words; `held_out` says that the best round was selected on held-out samples."""
    target = rounds_target(metric)
    if target is not None:
        return f"first evaluated round with a test accuracy of at least {target:g} %"
    if is_rounds(metric):
        return f"first evaluated round at the best test accuracy of {metric.partition(':')[2]}, setting by setting"
    if metric in COMPUTED:
        return COMPUTED[metric]
    plain, epochs = fine_tuned(metric)
    if epochs:
        many = "epoch" if epochs == "1" else "epochs"
        return f"{title(plain, cells, held_out)}, after {epochs} {many} of fine-tuning if the method has any"
    prefix = next((prefix for prefix in PREFIXES if metric.startswith(prefix)), "")
    name = metric.removeprefix(prefix)
    said = NAMES.get(name) or title_metric(name, plugin_titles(cells))
    if prefix == LAST:
        return f"{said}, {describe_rounds(averaged_rounds(name, cells))}"
    if prefix == "best_" and held_out:
        return f"{said} of the round that is best on the held-out samples"
    if said == name:
        return metric
    best = " of the best round ON THE TEST SET (an optimistic protocol)"
    return said + (best if prefix == "best_" else " of the last round")


def averaged_rounds(name: str, cells: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the rounds that `last10_NAME` averages, for each way in which the cells are evaluated.

    Generic accuracy is known in all evaluated rounds, or only when personal models are tested: both are listed.
    """
    keys = ("training.rounds", "evaluation.every", "evaluation.last", "evaluation.personal.every")
    found = []
    for rounds, every, last, personal in dict.fromkeys(tuple(map(one.get, keys)) for one in configs_in(cells)):
        given = {"every": every, "last": last, "personal": None if personal is None else {"every": personal}}
        if rounds is not None:
            asked = Evaluation.model_validate({key: value for key, value in given.items() if value is not None})
            found += [
                asked.averaged(rounds, of_clients)
                for of_clients in (False, True)
                if name == "generic_accuracy" or of_clients == ("personal" in name)
            ]
    return [rounds for rounds in found if rounds]


def selecting(sweep: SweepTable) -> str:
    """The metric that says which draw of a search is best: the file's, else on the test set, as every title says."""
    found = sweep.search.select
    return found if f"metrics.{found}" in sweep.cells else DEFAULT


def lower_is_better(metric: str, cells: pd.DataFrame) -> bool:
    """Whether the smallest entry of a metric of a sweep's cells is the best one; of a probe's as its class says."""
    plain = metric.removeprefix(next((p for p in PREFIXES if metric.startswith(p)), ""))
    if not plain.endswith("_std") and find_declared(plain, (*DECLARED, *plugin_titles(cells))) is not None:
        return find_declared(plain, LOWER.union(plugin_lower(cells))) is not None
    return any(word in metric for word in LOWER_IS_BETTER)


def _best_of(sweep: SweepTable, method: str) -> pd.Series:
    """For each cell the best test accuracy that a method's run of the same setting and seed had."""
    cells = sweep.cells
    rows, settings = methods_and_settings(cells)
    if method not in set(rows):
        raise unknown("--metric", f"rounds_to:{method}", {f"rounds_to:{row}" for row in rows})
    done = (cells["status"] == "finished") & (rows == method)
    found = {
        key: max(_accuracies(sweep, cells.loc[index, "run_id"]).values(), default=np.nan)
        for index, key in zip(cells.index, zip(settings, cells["seed"], strict=True), strict=True)
        if done[index]
    }
    return pd.Series([found.get(key, np.nan) for key in zip(settings, cells["seed"], strict=True)], cells.index)


def _counted(metric: str, config: CellConfig) -> float:
    run = config.parse(f"--metric {metric}")
    if metric == "relative_flops":
        return measure_relative_compute(run)
    shape, classes = find_input_shape(run)
    model = 4 * count_parameters(run.model, shape, classes) / 1e6
    found = _cost(json.dumps(run.algorithm.options()), json.dumps(run.model.options() | {"init": None}), shape, classes)
    return model * (found.client if metric == "megabytes_kept_by_client" else 1 + found.server)


@cache
def _cost(method: str, model: str, shape: tuple[int, ...], classes: int) -> Cost:
    return measure_cost(algorithm(json.loads(method)), json.loads(model), shape, classes)


def _first_round(sweep: SweepTable, run_id: str, target: float) -> float:
    return next((float(t) for t, value in _accuracies(sweep, run_id).items() if value >= target), NEVER)


def _accuracies(sweep: SweepTable, run_id: str) -> dict[int, float]:
    """By round the generic accuracy where the run has logged it: the test accuracy where a global model gives it."""
    return sweep.history(run_id, "generic_accuracy") or sweep.history(run_id, "test_accuracy")
