"""The papers' own numbers: `analysis/published/*.csv`, checked as they are read (columns: the README there)."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.reading.metrics import fine_tuned, is_rounds, rounds_target
from analysis.tabling.result_table import BEST, Printed
from fedray.algorithms import algorithm
from fedray.common.errors import UserError, unknown
from fedray.partitions import PARTITIONS

FOLDER = Path(__file__).parents[1] / "published"
KEYS = ("paper", "table", "dataset", "model", "partition", "clients", "participation", "method", "metric")
"""Columns that are never empty."""
COLUMNS = (*KEYS[:5], "partition_param", *KEYS[5:7], "rounds", *KEYS[7:], "value", "std", "notes")
METRICS = (
    "test_accuracy",
    "train_accuracy",
    "personal_accuracy",
    "generic_accuracy",
    "rounds_to_target",
    "speedup",
    "wall_clock_ratio",
    "relative_flops",
    "seconds_per_round_with_evaluation",
)


def tables() -> dict[str, Path]:
    """`paper/tableN` -> its file, by paper and number."""
    names = {}
    for path in sorted(FOLDER.glob("*.csv")):
        paper, _, number = path.stem.rpartition("_table")
        names[f"{paper}/table{int(number)}"] = path
    return names


def load(name: str) -> pd.DataFrame:
    """Read a published table in long form.

    Args:
        name: `paper/tableN`, as its sweep is called.

    Returns:
        COLUMNS as strings, except `value` and `std`, which are floats or NaN.

    Raises:
        UserError: the paper or table is not there, or the file is not what the README promises.
    """
    known = tables()
    if name not in known:
        paper, _, table = name.partition("/")
        of_paper = [other.partition("/")[2] for other in known if other.startswith(f"{paper}/")]
        if of_paper:
            raise unknown(f"published table of {paper}", table, of_paper)
        raise unknown("published paper", paper, {other.partition("/")[0] for other in known})
    return read(known[name])


def read(path: Path) -> pd.DataFrame:
    """One file. Raises UserError naming file, line and column of the first thing that cannot be."""
    rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    if tuple(rows.columns) != COLUMNS:
        raise UserError(f"{path.name}: found the columns {', '.join(rows.columns)}; {', '.join(COLUMNS)} are required")
    for column in KEYS:
        _refuse(path, column, rows[rows[column] == ""], "is empty")
    _refuse(path, "metric", rows[~rows["metric"].isin(METRICS)], f"is none of {', '.join(METRICS)}")
    for column in ("value", "std"):
        numbers = pd.to_numeric(rows[column].replace("", None), errors="coerce")
        _refuse(path, column, rows[numbers.isna() & (rows[column] != "")], "is not a number")
        rows[column] = numbers
    accuracy = rows["metric"].str.endswith("_accuracy")
    _refuse(path, "value", rows[accuracy & ((rows["value"] < 0) | (rows["value"] > 100))], "is not within 0..100")
    _refuse(path, "std", rows[rows["std"] < 0], "is negative")
    return rows


def _refuse(path: Path, column: str, wrong: pd.DataFrame, why: str) -> None:
    if len(wrong):
        line, value = int(wrong.index[0]) + 2, wrong.iloc[0][column]
        raise UserError(f"{path.name}, line {line}: {column} {why}" + (f": found {value}" if value != "" else ""))


MODELS = {"emnist_cnn": "cnn", "mcmahan_cnn": "cnn-mcmahan", "char_lstm": "lstm2"}
METHODS = {
    "fedsol": ("fedsol", "fedsol-head", "fedsol-ft"),
    "fedsol-a0": ("fedavg",),
    "fedsol-a5": ("fedavg+kl-base",),
    "fedavg-kl": ("fedavg+kl-base",),
    "fedprox": ("fedprox", "fedprox-base"),
    "fedtoga-sam": ("fedsam",),
    "fedavg-la": ("fedavg+la",),
    "knnper": ("knn-per",),
}
"""What our labels are called in the published tables, where it is something else."""
ALONE = "local-only"
"""Trains without a federation, so the share of the clients in a round is no part of its setting."""
PROTOCOL = {
    "fedsam": "the paper does not say of which round its accuracies are; its deviation is over clients",
    "fedsol": "the paper calls its accuracies final",
    "fedgela": "the paper reports the best round",
    "fedtoga": "the paper does not say of which round its accuracies are",
}
OVER_CLIENTS = {
    "fedsam": {
        "personal_accuracy": ("test_accuracy", "value"),
        "personal_std": ("test_accuracy", "std"),
        "personal_train_accuracy": ("train_accuracy", "value"),
        "personal_train_std": ("train_accuracy", "std"),
    },
    "fedsol": {"personal_std": ("personal_accuracy", "std")},
}
"""Paper -> our metric over clients -> the printed metric, and which of its columns it is."""
Key = tuple[str, str]
Setting = tuple[str, ...]


def beside(
    name: str, metric: str, groups: Mapping[Key, pd.DataFrame], averaged: bool = False
) -> tuple[dict[Key, Printed], list[str]]:
    """The printed numbers of entries that have one.

    Args:
        name: `paper/tableN`.
        metric: of the table.
        groups: the cells of each entry.
        averaged: whether an entry is the mean of several settings.

    Returns:
        The numbers, and notes: doubts about them, and whatever has no counterpart.

    Raises:
        UserError: the table is unknown, or lacks the metric.
    """
    rows = _rows(name, metric)
    found = _matches(rows, groups, averaged, metric)
    printed, notes = {}, []
    for key, index in found.items():
        row = rows.loc[index]
        printed[key] = Printed(*(None if pd.isna(row[column]) else float(row[column]) for column in ("value", "std")))
        notes += [f"{key[0]}, {key[1]}: {note}" for note in row["notes"].split("; ") if note.startswith("doubt:")]
    alone = [
        f"{key[0]}, {key[1]}" + (" (mixed runs)" if len(sets) > 1 else " (several printed values)" * any(sets))
        for key, sets in _candidates_of(rows, groups, averaged, metric).items()
        if key not in found
    ]
    used = set(found.values())
    ours = {
        cell["training.rounds"]
        for group in groups.values()
        for _, cell in group.iterrows()
        if "training.rounds" in group
    }
    theirs = {value for text in rows.loc[list(used), "rounds"] for value in text.split("|") if value}
    head = [f"in brackets: {name} of the paper and our difference to it; {PROTOCOL[name.partition('/')[0]]}"]
    if theirs and ours - theirs:
        here, there = (", ".join(sorted(rounds, key=float)) for rounds in (ours, theirs))
        head.append(f"rounds: {here} here, {there} in the paper")
    if alone:
        head.append(f"without a printed value: {'; '.join(alone)}")
    if left := Counter(rows.loc[[index for index in rows.index if index not in used], "method"]):
        head.append(f"printed, but not in this table: {', '.join(f'{method} ({n})' for method, n in left.items())}")
    return printed, head + notes


def printed_values(
    name: str, metric: str, groups: Mapping[Key, pd.DataFrame], averaged: bool = False
) -> dict[Key, float]:
    """The printed numbers of the entries that have one, as `beside`; empty where the table lacks the metric."""
    if not prints(name, metric):
        return {}
    rows = _rows(name, metric)
    values = {key: rows.loc[index, "value"] for key, index in _matches(rows, groups, averaged, metric).items()}
    return {key: float(value) for key, value in values.items() if pd.notna(value)}


def best_others(
    name: str, metric: str, groups: Mapping[Key, pd.DataFrame], averaged: bool, lower: bool
) -> dict[Key, float]:
    """For each entry with a printed number the best that the paper prints for another method in the same setting."""
    if not prints(name, metric):
        return {}
    rows = _rows(name, metric)
    setting = rows[["dataset", "model", "partition", "partition_param", "clients", "participation"]].agg(
        "/".join, axis=1
    )
    epochs = rows["notes"].map(lambda notes: _items(notes).get("finetune_epochs"))
    best = {}
    for key, index in _matches(rows, groups, averaged, metric).items():
        alike = (setting == setting[index]) & (epochs.isna() | (epochs == epochs[index]))
        others = rows[alike & (rows["method"] != rows.loc[index, "method"])]["value"].dropna()
        if len(others):
            best[key] = float(others.min() if lower else others.max())
    return best


def prints(name: str, metric: str) -> bool:
    """Whether a published table has the metric. Raises UserError for no such table."""
    return bool((_with_deviations(name)["metric"] == _theirs(metric)).any())


def _with_deviations(name: str) -> pd.DataFrame:
    """The table, and its deviations over clients as rows of the metrics that we call them (`OVER_CLIENTS`)."""
    rows = load(name)
    tables = [rows]
    for ours, (printed, column) in OVER_CLIENTS.get(name.partition("/")[0], {}).items():
        found = rows[rows["metric"] == printed].assign(metric=ours)
        tables.append(found if column == "value" else found.assign(value=found["std"], std=float("nan")))
    return pd.concat(tables, ignore_index=True)


def _theirs(metric: str) -> str:
    """What the published tables call a metric."""
    if is_rounds(metric):
        return "rounds_to_target"
    for prefix in ("final_", "last10_", "best_"):
        metric = metric.removeprefix(prefix)
    return fine_tuned(metric)[0]


def _matches(rows: pd.DataFrame, groups: Mapping[Key, pd.DataFrame], averaged: bool, metric: str) -> dict[Key, Any]:
    """Entry -> index of the one printed row to compare it with; an entry without, or with several, is left out."""
    found = _candidates_of(rows, groups, averaged, metric)
    return {key: next(iter(sets))[0] for key, sets in found.items() if len(sets) == 1 and len(next(iter(sets))) == 1}


def _candidates_of(
    rows: pd.DataFrame, groups: Mapping[Key, pd.DataFrame], averaged: bool, metric: str
) -> dict[Key, set[tuple[Any, ...]]]:
    """Entry -> the printed rows that each of its cells may be; several sets for an entry that mixes settings."""
    places: dict[Setting, list[Any]] = {}
    for index, row in rows.iterrows():
        for parameter in row["partition_param"].split("|"):
            places.setdefault(_setting(row, _plain(parameter)), []).append(index)
    if averaged:
        return {key: {tuple(_of_mean(key[0], group, places))} for key, group in groups.items()}
    return {
        key: {tuple(_candidates(key[0], cell, rows, places, metric)) for _, cell in group.iterrows()}
        for key, group in groups.items()
    }


def _rows(name: str, metric: str) -> pd.DataFrame:
    """The table's rows of a metric. `version=old` (numbers copied from earlier papers) is nobody's result here.

    Of FedSOL's three rows with the shared cell ρ = 0 one is left, which is FedAvg's.
    """
    rows = _with_deviations(name)
    without = rows["notes"].map(lambda notes: _items(notes).get("rho")) == "0.0"
    rows.loc[without, "method"] = "fedavg"
    rows = rows[~(without & rows.duplicated([*KEYS, "partition_param", "value"]))]
    target, theirs = rounds_target(metric), _theirs(metric)
    if not (rows["metric"] == theirs).any():
        raise UserError(f"--metric: {name} prints {', '.join(dict.fromkeys(rows['metric']))}; found {metric!r}")
    keep = (rows["metric"] == theirs) & ~rows["notes"].str.contains("version=old", regex=False)
    if target is not None:
        keep &= rows["notes"].map(lambda notes: _items(notes).get("target") == f"{target:g}%")
    elif is_rounds(metric):
        keep &= rows["notes"].map(lambda notes: _items(notes).get("target", "").startswith("best "))
    return rows[keep]


def _candidates(
    row: str, cell: pd.Series, rows: pd.DataFrame, places: Mapping[Setting, list[Any]], metric: str
) -> list[Any]:
    found = []
    for method in _methods(row, cell):
        found += places.get(_of_cell(cell, method), [])
    rho = cell.get("algorithm.rho")
    ours = {"rho": _plain(0 if pd.isna(rho) else rho), "finetune_epochs": _epochs(cell, metric)}
    theirs = {index: _items(rows.loc[index, "notes"]) for index in found}
    return [
        index for index in found if all(_plain(theirs[index].get(key, value)) == value for key, value in ours.items())
    ]


def _epochs(cell: pd.Series, metric: str) -> str:
    """Of fine-tuning before the test: those that the metric names, else the most that the run makes; "" for none."""
    named = fine_tuned(metric)[1]
    return named or max(re.findall(r"\d+", str(cell.get("evaluation.personal.epochs"))), key=int, default="")


def _methods(row: str, cell: pd.Series) -> tuple[str, ...]:
    """What the published tables may call the method."""
    section = "best-baseline" if row == BEST else _algorithm(cell)
    return METHODS.get(section, (section,))


def _of_mean(row: str, group: pd.DataFrame, places: Mapping[Setting, list[Any]]) -> list[Any]:
    """The printed averages (`partition_param` is `mean`) over all the settings of a group, of one data set, model.

    Of a group of one setting the number itself.
    """
    found = []
    for method in _methods(row, group.iloc[0]):
        settings = sorted({_of_cell(cell, method) for _, cell in group.iterrows()}, key=lambda one: float(one[4]))
        if len(settings) == 1:
            found += places.get(settings[0], [])
            continue
        data, models, _, _, totals, shares, _ = (list(dict.fromkeys(part)) for part in zip(*settings, strict=True))
        if len(data) == len(models) == 1:
            found += places.get(
                (data[0], models[0], "dirichlet", "mean", "|".join(totals), "|".join(shares), method), []
            )
    return found


def _of_cell(cell: pd.Series, method: str) -> Setting:
    """As `_setting`, of a cell's configuration."""
    partition, total = str(cell["partition.name"]).removesuffix("_client"), str(cell.get("clients.total"))
    per_round = str(cell.get("clients.per_round"))
    share = float(per_round) if "." in per_round or per_round == "nan" else float(per_round) / float(total)
    parameter = _plain(cell.get(_parameter(partition), ""))
    if partition == "dirichlet" and parameter == "10000":
        partition, parameter = "iid", ""  # FedGELA's way to say it
    if partition == "pxcy":
        parameter = f"P{total}C{cell['partition.classes']}"
    model = str(cell.get("model.name"))
    return (
        str(cell.get("data.name")).replace("_", "-"),
        MODELS.get(model, model.replace("_", "-")),
        partition,
        parameter,
        total,
        "" if method == ALONE else f"{share:g}",
        method,
    )


def _parameter(partition: str) -> str:
    """The key of a partition's one option without a default, which the papers' tables name it by; "" for none."""
    options = PARTITIONS[partition].required() if partition in PARTITIONS else []
    return f"partition.{options[0]}" if options else ""


def _setting(row: pd.Series, parameter: str) -> Setting:
    return (
        row["dataset"],
        row["model"],
        row["partition"],
        "" if row["partition"] == "iid" else parameter,
        row["clients"],
        "" if row["method"] == ALONE else "|".join(map(_plain, row["participation"].split("|"))),
        row["method"],
    )


def _algorithm(cell: pd.Series) -> str:
    """The method's label; its name for a class of the user's own."""
    section: dict[str, Any] = {}
    for key, value in cell.items():
        parts = str(key).split(".")
        if parts[0] == "algorithm" and pd.notna(value):
            inner = section
            for part in parts[1:-1]:
                inner = inner.setdefault(part, {})
            inner[parts[-1]] = value
    if ":" in str(section["name"]):  # what a store names is never imported
        return str(section["name"])
    try:
        return algorithm(section).label()
    except UserError:
        return str(section["name"])


def _items(notes: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in notes.split("; ") if "=" in item)


def _plain(value: Any) -> str:
    """A number without trailing zeros; other text as it is."""
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return str(value)
