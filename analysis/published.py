"""The papers' own numbers: `analysis/published/*.csv`, checked as they are read (columns: the README there)."""

from pathlib import Path

import pandas as pd

from fedray.errors import UserError, unknown

FOLDER = Path(__file__).parent / "published"
KEYS = ("paper", "table", "dataset", "model", "partition", "clients", "participation", "method", "metric")
"""Columns that are never empty."""
COLUMNS = (*KEYS[:5], "partition_param", *KEYS[5:7], "rounds", *KEYS[7:], "value", "std", "notes")
METRICS = ("test_accuracy", "train_accuracy", "personal_accuracy", "generic_accuracy", "rounds_to_target", "speedup",
           "wall_clock_ratio", "relative_flops", "seconds_per_round")


def tables() -> dict[str, Path]:
    """`paper/tableN` -> its file, by paper and number."""
    names = {}
    for path in sorted(FOLDER.glob("*.csv")):
        paper, _, number = path.stem.rpartition("_table")
        names[f"{paper}/table{int(number)}"] = path
    return names


def load(name: str) -> pd.DataFrame:
    """A table in long form: COLUMNS as strings, but `value` and `std`, which are floats or NaN.

    name: `paper/tableN`, as its sweep is called. Raises UserError for a paper or table that is not there, or a file
    that is not what the README promises.
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
