"""Printed numbers of the papers: `analysis/published/*.csv`, whose README has the columns.

A number belongs to an entry of a table if the configuration of each of the entry's cells has the values that the
published row names.
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from fedray.cells.cell import Cell
from fedray.cells.metric import Metric
from fedray.common.errors import UserError, unknown
from fedray.config import Clients

SECTIONS = ("algorithm", "data", "model", "partition", "clients")
BEST_BASELINE = "best-baseline"
"""Algorithm of a number that is printed for the best of the other methods."""
BEST = "best baseline"
"""Row of our tables that has such numbers."""
OVER_CLIENTS = {
    "fedsam": {
        "personal_accuracy": ("test_accuracy", "value"),
        "personal_std": ("test_accuracy", "std"),
        "personal_train_accuracy": ("train_accuracy", "value"),
        "personal_train_std": ("train_accuracy", "std"),
    },
    "fedsol": {"personal_std": ("personal_accuracy", "std")},
}
"""Paper -> our metric over clients -> the printed metric and its column."""
PROTOCOL = {
    "fedsam": "the paper does not say which round its accuracies are from; its deviation is over clients",
    "fedsol": "the paper calls its accuracies final",
    "fedgela": "the paper reports the best round",
    "fedtoga": "the paper does not say which round its accuracies are from",
}
SETTING = ("data", "model", "partition", "clients")
"""Sections that define a setting."""
Key = tuple[str, str]
Groups = Mapping[Key, Sequence[Cell]]
"""Row and column of an entry -> configurations of its cells."""


@dataclass(frozen=True)
class PublishedNumber:
    """A number that a paper prints.

    Attributes:
        config: dotted key -> values of the runs that it belongs to; empty if none of our runs corresponds to it.
        average_over: keys over which it is the mean, separated by commas; empty for a number of one setting.
        method: name of the row in the paper.
        metric: without a round.
        value: None if the paper prints that a target was not reached.
        rounds: as printed; empty if the paper does not say.
    """

    config: Mapping[str, tuple[Any, ...]]
    average_over: str
    method: str
    metric: Metric
    value: float | None
    std: float | None
    rounds: tuple[str, ...]
    notes: str


def list_tables() -> dict[str, Path]:
    """Return `paper/tableN` -> its file, by paper and number; for a first version `paper/v1_tableN`."""
    package = Path(__file__).parents[2]
    inside = package / "published"  # in an installed wheel
    folder, names = inside if inside.is_dir() else package.parent / "analysis" / "published", {}
    for path in sorted(folder.glob("*.csv")):
        paper, _, table = path.stem.partition("_")
        kind, _, number = table.rpartition("table")
        names[f"{paper}/{kind}table{int(number)}"] = path
    return names


@cache
def load(name: str) -> tuple[PublishedNumber, ...]:
    """Return a published table, `paper/tableN` like its sweep. Raises UserError for a table that is unknown."""
    known = list_tables()
    if name not in known:
        paper, _, table = name.partition("/")
        of_paper = [other.partition("/")[2] for other in known if other.startswith(f"{paper}/")]
        if of_paper:
            raise unknown(f"published table of {paper}", table, of_paper)
        raise unknown("published paper", paper, {other.partition("/")[0] for other in known})
    with known[name].open(encoding="utf-8", newline="") as file:
        return tuple(map(_parse_number, csv.DictReader(file)))


def _parse_number(row: Mapping[str, str]) -> PublishedNumber:
    """Parse a line, whose sections are `NAME|NAME option=value other=value|value`, `clients` without a name."""
    value, std = (float(row[column]) if row[column] else None for column in ("value", "std"))
    config = dict[str, tuple[Any, ...]]()
    for section in SECTIONS if row["algorithm"] else ():
        words = row[section].split()
        if words and section != "clients":
            config[f"{section}.name"] = tuple(words.pop(0).split("|"))
        for option, _, values in (word.partition("=") for word in words):
            config[f"{section}.{option}"] = tuple(yaml.safe_load(one) for one in values.split("|"))
    rounds, metric = tuple(filter(None, row["rounds"].split("|"))), Metric.parse(row["metric"])
    return PublishedNumber(config, row["average_over"], row["method"], metric, value, std, rounds, row["notes"])


@cache
def with_deviations(name: str) -> tuple[PublishedNumber, ...]:
    """Return the table, with its deviations over clients as numbers of fedray's metrics for them; the same objects."""
    numbers = load(name)
    every = list(numbers)
    for ours, (printed, column) in OVER_CLIENTS.get(name.partition("/")[0], {}).items():
        for one in numbers:
            if one.metric.plain == printed:
                deviation = replace(one, metric=Metric.parse(ours + one.metric.name.removeprefix(printed)))
                every.append(deviation if column == "value" else replace(deviation, value=one.std, std=None))
    return tuple(every)


def find_numbers(name: str, metric: str) -> list[PublishedNumber]:
    """Return the numbers of a published table to compare a metric with, after any fine-tuning.

    Raises UserError if the table is unknown, or lacks the metric.
    """
    numbers, wanted = with_deviations(name), Metric.parse(metric)
    if not any(one.metric.plain == wanted.plain for one in numbers):
        printed = ", ".join(dict.fromkeys(one.metric.name for one in numbers))
        raise UserError(f"--metric: {name} prints {printed}; found {metric!r}")
    shared = attrgetter("plain", "target", "reference")  # neither the prefix nor the epochs
    return [one for one in numbers if one.config and shared(one.metric) == shared(wanted)]


def match_published(
    name: str, metric: str, groups: Groups, averaged: bool = False
) -> tuple[dict[Key, PublishedNumber], list[str]]:
    """Return the printed numbers of entries, and notes: doubts, and numbers and entries without a counterpart."""
    matches, numbers = match_numbers(name, metric, groups, averaged), find_numbers(name, metric)
    told = f"in brackets: {name} of the paper and our difference to it; {PROTOCOL[name.partition('/')[0]]}"
    notes = [told] if matches else []
    ours = {str(spec.get("training.rounds")) for group in groups.values() for spec in group} - {"None"}
    theirs = {value for one in matches.values() for value in one.rounds}
    if theirs and ours - theirs:
        here, there = (", ".join(sorted(values, key=float)) for values in (ours, theirs))
        notes.append(f"rounds: {here} here, {there} in the paper")
    if alone := [f"{row}, {column}" for row, column in groups if (row, column) not in matches]:
        notes.append(f"without a printed value: {'; '.join(alone)}")
    used = [id(one) for one in matches.values()]
    if left := Counter(one.method for one in numbers if id(one) not in used):
        notes.append(f"printed, but not in this table: {', '.join(f'{method} ({n})' for method, n in left.items())}")
    doubts, entries = dict[str, list[Key]](), Counter(row for row, _ in matches)
    for key, one in matches.items():
        for note in one.notes.split("; "):
            if note.startswith("doubt:"):
                doubts.setdefault(note, []).append(key)
    for note, keys in doubts.items():
        doubted = Counter(row for row, _ in keys)
        of = (row if doubted[row] == entries[row] else f"{row}, {column}" for row, column in keys)
        notes.append(f"{'; '.join(dict.fromkeys(of))}: {note}")
    return matches, notes


def match_numbers(name: str, metric: str, groups: Groups, averaged: bool = False) -> dict[Key, PublishedNumber]:
    """Return entry -> the one printed number that all its cells have; entries with none or several are left out.

    So are the rows of a column that share a number, since they differ in something that it does not name; a number that
    names several values of an option is meant for all of them.
    """
    numbers, place_of = find_numbers(name, metric), dict[Key, int]()
    for key, specs in groups.items():
        # cells of a setting differ in seed and method, so one configuration stands for each
        settings = list({repr([spec.get(one) for one in SETTING]): spec for spec in specs}.values())
        entries = [settings] if averaged else [[spec] for spec in specs]
        sets = {tuple(k for k, one in enumerate(numbers) if _is_of(one, key[0], of, metric)) for of in entries}
        places = sets.pop() if len(sets) == 1 else ()
        if len(places) == 1:
            place_of[key] = places[0]
    shared = Counter((key[1], place) for key, place in place_of.items())
    meant = {
        place
        for place in place_of.values()
        if any(len(values) > 1 for key, values in numbers[place].config.items() if key.startswith("algorithm."))
    }
    return {key: numbers[at] for key, at in place_of.items() if shared[key[1], at] == 1 or at in meant}


def _is_of(number: PublishedNumber, row: str, specs: Sequence[Cell], metric: str) -> bool:
    """Return True if a number is the result of one configuration, or the mean over several."""
    method = BEST_BASELINE if row == BEST else specs[0].get("algorithm.name")
    if method not in number.config["algorithm.name"] or bool(number.average_over) != (len(specs) > 1):
        return False
    tuned = specs[0].get("evaluation.personal.epochs") or 0  # before a client's test
    most = str(max(tuned) if isinstance(tuned, Sequence) else tuned)
    if number.metric.epochs and number.metric.epochs != (Metric.parse(metric).epochs or most):
        return False
    for key, values in number.config.items():
        if row == BEST and key.startswith("algorithm."):
            continue
        ours = {spec.get(key) for spec in specs}
        if key == "clients.per_round":  # a number, even if given as a fraction
            given = [spec.get("clients") for spec in specs]
            ours = {Clients.model_validate(one).cohort_size if one else None for one in given}
        if ours != set(values) if number.average_over else not ours <= set(values):
            return False
    return True
