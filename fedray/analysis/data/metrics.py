"""Metrics of a sweep's runs: a number per cell, its title, and its better direction."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median_low

import numpy as np
import pandas as pd

from fedray.analysis.data.axes import FINISHED, WITH_CURVE, find_label, label_table
from fedray.analysis.data.collect import SweepTable, list_smaller_better, list_titles, parse
from fedray.cells.cell import Cell
from fedray.cells.metric import (
    BEST,
    BY_ROUND,
    BY_TARGET,
    DEFAULT,
    FINAL,
    KNOWN,
    LAST,
    OF_RUN,
    ONCE,
    PREFIXES,
    PROFILE,
    ROUNDS_TO,
    SPEEDUP,
    Metric,
    describe_rounds,
    list_last_rounds,
)
from fedray.common.errors import UserError, format_count, unknown
from fedray.config import Evaluation
from fedray.engine.cost import find_input_shape, measure_relative_compute
from fedray.models.base import count_parameters
from fedray.probes import DECLARED, LOWER, UNRANKED, title_metric
from fedray.probes.probe import find_declared
from fedray.sweep.draws import get_cost

COUNTED = ("relative_flops", "megabytes_kept_by_client", "megabytes_held_by_client", "megabytes_kept_by_server")
"""Metrics counted here, from the configuration; runs do not log them."""
WITHOUT_BEST = ("best_round", "diverged_round", "lr")
"""Metrics of which no value is the best, besides those of probes that say so."""
NEVER = float("inf")
"""Value of a run that never reached its target."""


def read_values(sweep: SweepTable, metric: str) -> pd.Series:
    """Return a metric, as in tables, of each cell. Raises UserError if a finished run has not measured it.

    NaN if the run has not finished or the metric is undefined in the rounds that count, NEVER if it has finished
    without reaching the target; a run that was stopped has the rounds to a target that it reached before. With
    `rounds_to:METHOD` also NaN if the method's run of the same setting and seed has not finished; with a ratio also NaN
    if that run alone has not reached the target.
    """
    wanted = Metric.parse(metric)
    if wanted.reference:
        return _read_ratio(sweep, wanted)
    if wanted.target is not None:
        return _read_rounds(sweep, wanted.target)
    if metric in COUNTED:
        counted = zip(sweep.cells["spec"], sweep.cells["status"], strict=True)
        values = [_count(metric, spec) if status in FINISHED else np.nan for spec, status in counted]
        return pd.Series(values, sweep.cells.index)
    return _read_logged(sweep, wanted)


def _read_ratio(sweep: SweepTable, wanted: Metric) -> pd.Series:
    """Return a `speedup` or `slowdown` of each cell."""
    rounds = read_values(sweep, wanted.rounds)
    partners = _find_partners(sweep, wanted.reference, wanted.name.removesuffix(wanted.reference), WITH_CURVE)
    theirs = pd.Series([*rounds.replace(NEVER, np.nan), np.nan]).iloc[partners].set_axis(rounds.index)
    ratio = theirs / rounds if wanted.plain == SPEEDUP else rounds / theirs
    return ratio.mask(rounds == NEVER, NEVER)


def _read_rounds(sweep: SweepTable, target: float | str) -> pd.Series:
    """Return each cell's first evaluated round with a test accuracy, or with the best one of a method's run."""
    cells = sweep.cells
    rounds = list[float]()
    if not isinstance(target, str):
        targets = [target] * len(cells)
    else:
        runs, partners = cells["run_id"].to_numpy(), _find_partners(sweep, target, f"{ROUNDS_TO}:")
        best = {one: max(_read_accuracies(sweep, runs[one]).values(), default=np.nan) for one in set(partners) - {-1}}
        targets = [best.get(one, np.nan) for one in partners]
    for run_id, status, asked in zip(cells["run_id"], cells["status"], targets, strict=True):
        never = NEVER if status in FINISHED and not math.isnan(asked) else math.nan
        tests = _read_accuracies(sweep, run_id) if status in WITH_CURVE else {}
        rounds.append(next((float(t) for t, value in tests.items() if value >= asked), never))
    return pd.Series(rounds, cells.index, dtype=float)


def _read_logged(sweep: SweepTable, wanted: Metric) -> pd.Series:
    """Return a metric that runs log, of the last round unless its name has a prefix."""
    cells, metric, finished = sweep.cells, wanted.name, sweep.cells["status"].isin(FINISHED)
    column = next((name for name in (f"metrics.{FINAL}{metric}", f"metrics.{metric}") if name in cells), "")
    asks_auc = wanted.plain == "test_auc" and any(spec.get("evaluation.auc") for spec in cells["spec"])
    if finished.any() and not column and not asks_auc:
        if wanted.plain in BY_ROUND:
            key = wanted.known.needs
            hint = f"; {key} makes runs log it" if key and not any(spec.get(key) for spec in cells["spec"]) else ""
            if wanted.prefix == BEST and not (wanted.known.of_classes or "accuracy" in metric):
                hint = "; only accuracies, macro F1 and AUC have a best_"
            raise UserError(f"--metric: found {metric!r}, which no finished run has logged{hint}")
        have = [str(name).removeprefix("metrics.") for name in cells if str(name).startswith("metrics.")]
        raise unknown("--metric", metric, [*have, *BY_TARGET, *COUNTED], "`fedray list metrics`")
    if not column:
        return pd.Series(np.nan, cells.index)
    logged, untuned = cells[column], column.removesuffix(f"_e{wanted.epochs}")
    if wanted.epochs and {untuned, "evaluation.personal.epochs"} <= set(cells):
        # With several numbers of epochs, runs whose method is not fine-tuned log only the first, their value for any.
        asked = cells["evaluation.personal.epochs"]
        logged = logged.fillna(cells[untuned].where(asked.isin(asked[logged.notna()])))
    if unmeasured := _list_unmeasured(sweep, metric.removeprefix(wanted.prefix), finished, logged):
        raise UserError(
            f"--metric: found {metric!r}, which {len(unmeasured)} of {finished.sum()} finished runs have not logged, "
            f"{unmeasured[0]} among them"
        )
    return logged.where(finished)


def _list_unmeasured(sweep: SweepTable, name: str, finished: pd.Series, logged: pd.Series) -> list[str]:
    """Return the labels of finished runs that have not measured a metric; where it is undefined they have.

    A run has measured it if it has a value in any round, or is evaluated as a run that has one.
    """
    lacking = sweep.cells[finished & logged.isna()]
    if not len(lacking):
        return []
    asked = pd.Series(
        [json.dumps(spec.config.get("evaluation"), sort_keys=True) for spec in sweep.cells["spec"]], logged.index
    )
    earlier = [bool(sweep.get_history(run_id, name)) for run_id in lacking["run_id"]]
    measured = {*asked[logged.notna()], *asked[lacking.index[earlier]]}
    return list(lacking.loc[~asked[lacking.index].isin(measured), "label"])


def find_mean(runs: pd.Series) -> float:
    """Return the mean over runs that all tables and figures show; pandas' mean of groups has other last bits."""
    return float(runs.mean())


def count_digits(numbers: Iterable[float], metric: str = DEFAULT) -> int:
    """Return the digits after the point of a metric's numbers: at least two, and three figures of their median.

    So losses below 0.1 do not become a column of 0.00. Zeros and numbers that are not finite do not count. Rounds: one.
    """
    middle = median_low([abs(one) for one in numbers if math.isfinite(one) and one] or [1.0])
    return 1 if Metric.parse(metric).plain == ROUNDS_TO else max(2, 2 - math.floor(math.log10(middle)))


def list_by_round(sweep: SweepTable) -> list[str]:
    """Return the metrics that the sweep's runs have logged by round."""
    names = (str(name).removeprefix("metrics.") for name in sweep.cells if str(name).startswith("metrics."))
    return sorted(name for name in names if name not in ONCE and not name.startswith((*PREFIXES, PROFILE)))


def list_parts(sweep: SweepTable, metric: str) -> list[str]:
    """Return the parts C of the metrics `METRIC_C`, with numbers in numerical order. Raises UserError for none."""
    found = {
        name.removeprefix(f"{metric}_")
        for name in list_by_round(sweep)
        if name.startswith(f"{metric}_") and not name.endswith("_std")
    }
    if not found:
        names = {name.rpartition("_")[0] for name in list_by_round(sweep) if "_" in name}
        missing = unknown("--metric", metric, names, "`fedray list metrics`")
        raise UserError(f"{missing}; bars show parts, such as {metric}_0; --kind methods draws one number a method")
    return sorted(found, key=lambda part: [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", part)])


def describe_target(sweep: SweepTable, metric: str, cells: pd.DataFrame, never: bool = True) -> list[str]:
    """Return notes on the rounds to a target of cells (`_row`, `_value`): what tests skip, and who never gets there.

    never: False leaves the latter out.
    """
    one = Metric.parse(metric)
    if one.target is None:
        return []
    shown = cells[cells["_value"].notna()]
    arrived = read_values(sweep, one.rounds)[shown.index] if one.reference else shown["_value"]
    tested = [list(_read_accuracies(sweep, run)) for run in shown["run_id"]]
    at_first = [rounds[:1] == [found] and found > 1 for rounds, found in zip(tested, arrived, strict=True)]
    notes = list[str]()
    generic = [_is_of_clients(sweep, str(run)) for run in shown["run_id"]]
    if own := ", ".join(dict.fromkeys(shown.loc[generic, "_row"])):
        notes.append(f"of {own} the generic accuracy counts, that of their clients' models, in the rounds that test it")
    if early := ", ".join(dict.fromkeys(shown.loc[at_first, "_row"])):
        first = min(rounds[0] for rounds, is_first in zip(tested, at_first, strict=True) if is_first)
        notes.append(f"at the target when first tested, in round {first}, or earlier: runs of {early}")
    if (apart := max((b - a for rounds in tested for a, b in pairwise(rounds)), default=0)) > 1:
        notes.append(f"tests are up to {apart} rounds apart, so the target may have been met earlier")
    of_row = cells.dropna(subset="_value").groupby("_row", sort=False)["_value"]
    late = [f"{(v == NEVER).sum()} of {format_count(len(v), 'run')} of {row}" for row, v in of_row if NEVER in {*v}]
    return [*notes, f"never at the target, and in no mean: {', '.join(late)}"] if late and never else notes


def make_title(metric: str, cells: pd.DataFrame) -> str:
    """Return a metric of a sweep's cells in words."""
    one = Metric.parse(metric)
    if one.reference:
        said = make_title(one.rounds, cells)
        ours, theirs = "the method's", f"{find_label(cells, one.reference)}'s"
        over, under = (theirs, ours) if one.plain == SPEEDUP else (ours, theirs)
        return f"{said}: {over} divided by {under}, seed by seed"
    if isinstance(one.target, str):
        return f"first evaluated round at the best test accuracy of {find_label(cells, one.target)}, seed by seed"
    if one.target is not None:
        return f"first evaluated round with a test accuracy of at least {one.target:g} %"
    if metric in OF_RUN:
        return OF_RUN[metric].title
    if one.epochs:
        many = "epoch" if one.epochs == "1" else "epochs"
        tested = make_title(one.prefix + one.plain, cells)
        return f"{tested}, after {one.epochs} {many} of fine-tuning if the method has any"
    said = one.known.title or title_metric(one.plain, list_titles(cells))
    if one.prefix == LAST:
        return f"{said}, {describe_rounds(list_averaged_rounds(one.plain, cells))}"
    if one.prefix == BEST and _are_validated(cells):
        return f"{said} of the round that is best on the held-out samples"
    if said == one.plain:
        return metric
    best = " of the best round ON THE TEST SET (an optimistic protocol)"
    return said + (best if one.prefix == BEST else " of the last round")


def _are_validated(cells: pd.DataFrame) -> bool:
    """Whether samples that are held out chose the best round of each run: a file's split does not say it beforehand."""
    logged = cells.get(f"metrics.{FINAL}validation_accuracy", pd.Series(np.nan, cells.index)).notna()
    held_out = np.array([spec.get("data.validation.fraction") is not None for spec in cells["spec"]], bool)
    unfinished = ~cells["status"].isin(FINISHED)
    return bool((held_out | logged | (unfinished if logged.any() else False)).all())


def name_metrics(metrics: Iterable[str]) -> dict[str, str]:
    """Return metric -> a column's short name, such as `rounds to 85 %`; with its prefix if two would be alike."""
    names = dict[str, str]()
    for metric in metrics:
        one = Metric.parse(metric)
        name = metric.removeprefix(one.prefix).replace("_", " ") + " %" * (" in %" in one.known.title)
        if one.reference:
            name = f"{'speed-up over' if one.plain == SPEEDUP else 'slowdown against'} {one.reference}"
        elif one.target is not None:
            name = f"rounds to {one.target:g} %" if isinstance(one.target, float) else f"rounds to {one.target}'s best"
        names[metric] = name
    count = Counter(names.values())
    return {metric: name if count[name] == 1 else metric.replace("_", " ") for metric, name in names.items()}


def describe_omitted(metrics: Sequence[str], cells: pd.DataFrame) -> str:
    """Return what an axis leaves out of the metrics' titles, the part after a comma, as the end of a figure's note."""
    parts = {metric: make_title(metric, cells).partition(", ")[2] for metric in metrics}
    if len(set(parts.values())) > 1:
        parts = {metric: f"{metric}: {part}" for metric, part in parts.items() if part}
    return "".join(f"; {part}" for part in dict.fromkeys(parts.values()) if part)


def list_averaged_rounds(name: str, cells: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the rounds that `last10_NAME` averages, for each way in which the cells are evaluated.

    Generic accuracy is known in all evaluated rounds, or only when personal models are tested: both are listed.
    """
    keys = ("training.rounds", "evaluation.every", "evaluation.last", "evaluation.personal.every")
    kinds = (False, True) if name == "generic_accuracy" else (Metric.parse(name).is_of_clients,)
    averaged = []
    for rounds, every, last, personal in dict.fromkeys(tuple(map(cell.get, keys)) for cell in cells["spec"]):
        given = {"every": every, "last": last, "personal": None if personal is None else {"every": personal}}
        if rounds is not None:
            asked = Evaluation.model_validate({key: value for key, value in given.items() if value is not None})
            averaged += [asked.list_averaged(rounds, of_clients) for of_clients in kinds]
    return [rounds for rounds in averaged if rounds]


def find_selection_metric(sweep: SweepTable) -> str:
    """Return the metric that decides which draw of a search is best: the file's, or else the test accuracy."""
    found = next((cell.select for cell in sweep.sheet.cells.values() if cell.searched), "")
    return found if f"metrics.{found}" in sweep.cells else DEFAULT


def is_smaller_better(metric: str, cells: pd.DataFrame) -> bool:
    """Return True if the smallest entry of a metric of a sweep's cells is the best one, as it is declared.

    The deviation NAME_std of a probe's metric is best when small, unless a probe declares this very name. Of an
    undeclared metric the largest entry is the best (`describe_doubts`). Raises UserError if its probe says that no
    entry is the best.
    """
    one = Metric.parse(metric)
    if not is_ranked(metric, cells):
        raise UserError(
            f"--metric: found {metric!r}, and no value of it is the best; tables and curves show it, and "
            "nothing is compared or chosen by it"
        )
    if one.plain.endswith("_std") and one.plain not in _list_declared(cells):
        return True
    return one.is_smaller_better or find_declared(one.plain, LOWER.union(list_smaller_better(cells))) is not None


def is_ranked(metric: str, cells: pd.DataFrame) -> bool:
    """Return False for a metric without a best value: a round or a rate, or as its probe says (`Probe.unranked`)."""
    own = (name for spec in cells["spec"] for name in spec.plugins.unranked)
    return find_declared(Metric.parse(metric).plain, UNRANKED.union(own, WITHOUT_BEST)) is None


def describe_doubts(sweep: SweepTable, metric: str) -> list[str]:
    """Return notes on a metric and the cells.

    Neither fedray nor a probe of the cells says which of its entries is the best; means over fewer of the last rounds,
    since the metric is undefined in the others; cells that the sweep does not list.
    """
    one, runs, notes = Metric.parse(metric), dict[tuple[int, int], list[str]](), list[str]()
    known = one.plain in KNOWN or one.target is not None or one.is_smaller_better or one.plain.endswith("_std")
    declared = known or find_declared(one.plain, _list_declared(sweep.cells)) is not None
    if not declared and is_ranked(metric, sweep.cells):
        notes.append(f"{one.plain}: no probe says which values are better, so larger ones count as better")
    averaged = one.prefix == LAST and (one.plain not in BY_ROUND or one.plain == "test_auc")
    for _, cell in sweep.cells[sweep.cells["status"].isin(FINISHED) & averaged].iterrows():
        tested = list(sweep.get_history(cell["run_id"], "test_accuracy"))
        counted = [round for round in tested if round in list_last_rounds(tested[-1])]
        having = sweep.get_history(cell["run_id"], metric.removeprefix(LAST)).keys() & {*counted}
        if 0 < len(having) < len(counted):
            runs.setdefault((len(having), len(counted)), []).append(cell["label"])
    notes += [f"mean of {k} of {n} tests, undefined in the others: {'; '.join(of)}" for (k, n), of in runs.items()]
    return [*notes, *filter(None, [sweep.note])]


def _list_declared(cells: pd.DataFrame) -> set[str]:
    """Return the names that fedray's probes and the cells' plug-ins declare."""
    return {*DECLARED, *LOWER, *list_titles(cells), *list_smaller_better(cells)}


def _find_partners(sweep: SweepTable, method: str, form: str, statuses: Sequence[str] = FINISHED) -> list[int]:
    """Return for each cell the place of a method's run with the same setting, seed and such a status; -1: none."""
    cells = sweep.cells
    rows, settings = label_table(cells)
    method = find_label(cells, method)
    if method not in set(rows):
        raise unknown("--metric", f"{form}{method}", {f"{form}{row}" for row in rows})
    keys = list(zip(settings, cells["seed"], strict=True))
    done = cells["status"].isin(statuses) & (rows == method)
    found = {key: place for place, (key, chosen) in enumerate(zip(keys, done, strict=True)) if chosen}
    return [found.get(key, -1) for key in keys]


def _count(metric: str, spec: Cell) -> float:
    run = parse(spec, f"--metric {metric}")
    if metric == "relative_flops":
        return measure_relative_compute(run)
    shape, classes = find_input_shape(run)
    cost = get_cost(run, run.model.list_options() | {"init": None}, shape, classes)
    models = {
        "megabytes_kept_by_client": cost.client,
        "megabytes_held_by_client": cost.held,
        "megabytes_kept_by_server": 1 + cost.server,
    }
    return 4 * count_parameters(run.model, shape, classes)[0] / 1e6 * models[metric]


def _is_of_clients(sweep: SweepTable, run_id: str) -> bool:
    """Return True if a run's generic accuracy is not the test accuracy of a global model."""
    tested, generic = (sweep.get_history(run_id, name) for name in ("test_accuracy", "generic_accuracy"))
    return any(tested.get(round) != value for round, value in generic.items())


def _read_accuracies(sweep: SweepTable, run_id: str) -> dict[int, float]:
    """Return by round the generic accuracy if the run has logged it, or else the test accuracy of a global model."""
    return sweep.get_history(run_id, "generic_accuracy") or sweep.get_history(run_id, "test_accuracy")
