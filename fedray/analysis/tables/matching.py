"""Matches printed numbers to entries of a table.

A number belongs to an entry if the configuration of each of its cells has the values that the published row names.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedray.analysis.tables.published import BEST_BASELINE, PublishedNumber, find_numbers, has_printed
from fedray.analysis.tables.result_table import BEST, Printed
from fedray.cells.metric import Metric
from fedray.cells.spec import CellSpec
from fedray.config import Clients

PROTOCOL = {
    "fedsam": "the paper does not say which round its accuracies are from; its deviation is over clients",
    "fedsol": "the paper calls its accuracies final",
    "fedgela": "the paper reports the best round",
    "fedtoga": "the paper does not say which round its accuracies are from",
}
SETTING = ("data", "model", "partition", "clients")
"""Sections that define a setting."""
Key = tuple[str, str]
Groups = Mapping[Key, Sequence[CellSpec]]
"""Row and column of an entry -> configurations of its cells."""


def match_published(
    name: str, metric: str, groups: Groups, averaged: bool = False
) -> tuple[dict[Key, Printed], list[str]]:
    """Find the printed numbers of entries.

    Args:
        name: `paper/tableN`.
        metric: metric of the table.
        groups: the cells of each entry.
        averaged: True if an entry is the mean of several settings.

    Returns:
        The numbers, and notes: doubts about them, and numbers and entries without a counterpart.

    Raises:
        UserError: the table is unknown, or lacks the metric.
    """
    numbers = find_numbers(name, metric)
    candidates = _find_candidates(numbers, groups, averaged, metric)
    matches = _drop_ambiguous(candidates)
    printed = {key: Printed(numbers[place].value, numbers[place].std) for key, place in matches.items()}
    alone = [
        f"{key[0]}, {key[1]}" + (" (mixed runs)" if len(sets) > 1 else " (several printed values)" * any(sets))
        for key, sets in candidates.items()
        if key not in matches
    ]
    used = set(matches.values())
    rounds = {spec.get("training.rounds") for group in groups.values() for spec in group}
    ours = {str(value) for value in rounds if value is not None}
    theirs = {value for place in used for value in numbers[place].rounds}
    notes = [f"in brackets: {name} of the paper and our difference to it; {PROTOCOL[name.partition('/')[0]]}"]
    if theirs and ours - theirs:
        here, there = (", ".join(sorted(values, key=float)) for values in (ours, theirs))
        notes.append(f"rounds: {here} here, {there} in the paper")
    if alone:
        notes.append(f"without a printed value: {'; '.join(alone)}")
    if left := Counter(one.method for place, one in enumerate(numbers) if place not in used):
        notes.append(f"printed, but not in this table: {', '.join(f'{method} ({n})' for method, n in left.items())}")
    notes += [
        f"{key[0]}, {key[1]}: {note}"
        for key, place in matches.items()
        for note in numbers[place].notes.split("; ")
        if note.startswith("doubt:")
    ]
    return printed, notes


def find_printed_values(name: str, metric: str, groups: Groups, averaged: bool = False) -> dict[Key, float]:
    """Return the printed numbers of the entries that have one; empty if the table lacks the metric."""
    matches = match_numbers(name, metric, groups, averaged)
    return {key: one.value for key, one in matches.items() if one.value is not None}


def find_best_others(name: str, metric: str, groups: Groups, averaged: bool, lower: bool) -> dict[Key, float]:
    """Return, for each entry with a printed number, the best printed for another method in the same setting."""
    best = {}
    for key, one in match_numbers(name, metric, groups, averaged).items():
        others = [
            other.value
            for other in find_numbers(name, metric)
            if other.value is not None
            and other.method != one.method
            and _get_setting(other) == _get_setting(one)
            and other.metric.name in (one.metric.name, one.metric.plain)
        ]
        if others:
            best[key] = (min if lower else max)(others)
    return best


def match_numbers(name: str, metric: str, groups: Groups, averaged: bool = False) -> dict[Key, PublishedNumber]:
    """Return entry -> its printed number, for entries that have one; empty if the table lacks the metric."""
    if not has_printed(name, metric):
        return {}
    numbers = find_numbers(name, metric)
    matches = _drop_ambiguous(_find_candidates(numbers, groups, averaged, metric))
    return {key: numbers[place] for key, place in matches.items()}


def _get_setting(number: PublishedNumber) -> tuple[str, dict[str, Any]]:
    """Return the setting of a comparison, without participation: some methods train without a federation."""
    own = {
        key: values
        for key, values in number.config.items()
        if not key.startswith("algorithm.") and key != "clients.per_round"
    }
    return number.average_over, own


def _drop_ambiguous(candidates: Mapping[Key, set[tuple[int, ...]]]) -> dict[Key, int]:
    """Return entry -> place of the one number that all its cells have; entries with none or several are left out."""
    alone = {key: next(iter(sets)) for key, sets in candidates.items() if len(sets) == 1}
    return {key: places[0] for key, places in alone.items() if len(places) == 1}


def _find_candidates(
    numbers: Sequence[PublishedNumber], groups: Groups, averaged: bool, metric: str
) -> dict[Key, set[tuple[int, ...]]]:
    """Return entry -> places of the numbers that each of its cells may have; several tuples if it mixes settings."""
    of_method: dict[str, list[int]] = {}
    for place, number in enumerate(numbers):
        for name in number.config["algorithm.name"]:
            of_method.setdefault(name, []).append(place)

    def places(row: str, specs: Sequence[CellSpec]) -> tuple[int, ...]:
        method = BEST_BASELINE if row == BEST else specs[0].get("algorithm.name")
        return tuple(one for one in of_method.get(method, ()) if _belongs(numbers[one], row, specs, metric))

    if averaged:
        # cells of a setting differ in seed and method, so one configuration stands for each
        settings = {
            key: {repr([spec.get(name) for name in SETTING]): spec for spec in group} for key, group in groups.items()
        }
        return {key: {places(key[0], list(specs.values()))} for key, specs in settings.items()}
    return {key: {places(key[0], [spec]) for spec in group} for key, group in groups.items()}


def _belongs(number: PublishedNumber, row: str, specs: Sequence[CellSpec], metric: str) -> bool:
    """Return True if a number is the result of one configuration, or the mean over several."""
    epochs = number.metric.epochs
    if epochs and epochs != (Metric.parse(metric).epochs or _find_most_epochs(specs[0])):
        return False
    if bool(number.average_over) != (len(specs) > 1):
        return False
    for key, values in number.config.items():
        if row == BEST and key.startswith("algorithm."):
            continue
        found = {_get_value(spec, key) for spec in specs}
        if found != set(values) if number.average_over else not found <= set(values):
            return False
    return True


def _get_value(spec: CellSpec, key: str) -> Any:
    """Return the value of a key in a configuration; clients per round as a number, even if given as a fraction."""
    if key != "clients.per_round" or not spec.get("clients"):
        return spec.get(key)
    return Clients.model_validate(spec.get("clients")).cohort_size


def _find_most_epochs(spec: CellSpec) -> str:
    """Return the number of epochs of the longest fine-tuning before a client's test; empty for none."""
    epochs = spec.get("evaluation.personal.epochs")
    most = max(epochs, default=0) if isinstance(epochs, Sequence) else epochs or 0
    return str(most or "")
