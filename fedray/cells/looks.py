"""Names and colours under which a sweep's runs are told apart at a glance, in MLflow's list and charts."""

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from fedray.cells.cell import Cell
from fedray.components.base import Component, format_value

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7f7f7f", "#56b4e9", "#000000")
"""Okabe and Ito's palette, suitable for colour-blind readers; a method has one of them."""
DARKEST, LIGHTEST = -0.35, 0.45
"""How far the shades of a method's colour go towards black and white."""


class Look(NamedTuple):
    """name: what differs in the sweep, method, seed. colour: the method's, in a shade of its hyper-parameters."""

    name: str
    colour: str


def choose_looks(cells: Mapping[str, Cell]) -> dict[str, Look]:
    """Return each cell's look in its sweep, hash -> `ρ=0.05 α=0.1 fedtoga s0`, given all its cells in its order."""
    # A stranger's store can hold any partition.
    listed = {hash: cell.config.get("partition") for hash, cell in cells.items()}
    sections = {hash: section if isinstance(section, Mapping) else {} for hash, section in listed.items()}
    split = {
        hash: _split(cell.label, cell.config.get("seed"), sections[hash].get("name")) for hash, cell in cells.items()
    }
    keys = _find_options((split[hash], section) for hash, section in sections.items())
    letters = {word.partition("=")[0] for words in split.values() for word in words.options}
    rest = {hash: [*words.options, *words.list_setting(keys, letters)] for hash, words in split.items()}
    shared = set.intersection(*map(set, rest.values())) if rest else set()
    rows: dict[str, list[list[str]]] = {}
    for words in split.values():
        if words.options not in rows.setdefault(words.method, []):
            rows[words.method].append(words.options)
    looks = {}
    for hash, words in split.items():
        name = " ".join([*(word for word in rest[hash] if word not in shared), words.method, *words.seed])
        colour, of_method = COLOURS[[*rows].index(words.method) % len(COLOURS)], rows[words.method]
        if len(of_method) > 1:
            colour = shade(colour, of_method.index(words.options) / (len(of_method) - 1))
        looks[hash] = Look(name, colour)
    return looks


def shade(colour: str, place: float) -> str:
    """Return a shade of a colour, from dark (0) to light (1)."""
    share = DARKEST + place * (LIGHTEST - DARKEST)
    target = 255 if share > 0 else 0
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + abs(share) * (target - part)):02x}" for part in parts)


class _Words(NamedTuple):
    """A label's words. setting: the partition and other keys; values: what stands in the partition's brackets."""

    method: str
    options: list[str]
    setting: list[str]
    values: list[str]
    seed: list[str]

    def list_setting(self, keys: Mapping[tuple[str, int], str], letters: Container[str]) -> list[str]:
        """Return the setting with `α=0.1` for `dirichlet(0.1)`, unless a method has an option of the same letter.

        keys: as `_find_options` returns them.
        """
        kind = self.setting[0].partition("(")[0] if self.setting else ""
        named = [keys.get((kind, place), "") for place in range(len(self.values))]
        symbols = [Component.get_symbol(key) for key in named]
        if not named or not all(named) or any(symbol in letters for symbol in symbols):
            return self.setting
        given = (f"{symbol}={value}" for symbol, value in zip(symbols, self.values, strict=True))
        return [kind, *given, *self.setting[1:]]


def _find_options(cells: Iterable[tuple[_Words, Mapping[str, Any]]]) -> dict[tuple[str, int], str]:
    """Return name of a partition and place in its brackets -> the option that `dirichlet(0.1)` has there.

    The label does not tell: several options may have that value in a cell, so it is one that has it in all cells.
    cells: label and section `partition` of each.
    """
    options: dict[tuple[str, int], list[str]] = {}
    for words, section in cells:
        for place, value in enumerate(words.values):
            having = [key for key, given in section.items() if key != "name" and format_value(given) == value]
            before = options.setdefault((section["name"], place), having)
            options[section["name"], place] = [key for key in before if key in having]
    symbols = {place: [key for key in keys if Component.get_symbol(key) != key] for place, keys in options.items()}
    return {place: [*symbols[place], *keys][0] for place, keys in options.items() if keys}


def _split(label: str, number: object, name: object) -> _Words:
    """Return a label's words, given the cell's seed and the name of its partition."""
    method, *rest = re.split(r" (?![^\[(]*[\])])", label)
    seed = [rest.pop()] if rest and rest[-1] == f"s{number}" else []
    at = next((k for k, word in enumerate(rest) if word.split("(")[0] == name), len(rest))
    values = re.fullmatch(r".*\((.*)\)", rest[at]) if at < len(rest) else None
    return _Words(method, rest[:at], rest[at:], values[1].split(", ") if values else [], seed)
