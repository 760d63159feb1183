"""Names and colours under which a sweep's runs are told apart at a glance, in MLflow's list and charts."""

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from fedray.components.base import Component, format_value

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7f7f7f", "#56b4e9", "#000000")
"""Okabe and Ito's palette, suitable for colour-blind readers; a method has one of them."""
DARKEST, LIGHTEST = -0.35, 0.45
"""How far the shades of a method's colour go towards black and white."""


class Look(NamedTuple):
    """name: what differs in the sweep, method, seed. colour: the method's, in a shade of its hyper-parameters."""

    name: str
    colour: str


def choose_looks(cells: Iterable[tuple[str, str, Mapping[str, Any]]]) -> dict[str, Look]:
    """Return each cell's look in its sweep: hash -> `ρ=0.05 α=0.1 fedtoga s0`.

    Args:
        cells: hash, label and configuration of all cells of the sweep, in its order.
    """
    cells = list(cells)
    options = _find_options((label, config.get("partition", {})) for _, label, config in cells)
    split = {hash: _split(label, config, options) for hash, label, config in cells}
    letters = {word.partition("=")[0] for words in split.values() for word in words.options}
    rest = {hash: [*words.options, *words.list_setting(letters)] for hash, words in split.items()}
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
    """A label's words. setting: the partition and other keys; named: the partition's options, `α=0.1`."""

    method: str
    options: list[str]
    setting: list[str]
    named: list[str]
    seed: list[str]

    def list_setting(self, letters: Container[str]) -> list[str]:
        """Return the setting with `α=0.1` for `dirichlet(0.1)`, unless a method has an option of the same letter."""
        if not self.named or any(word.partition("=")[0] in letters for word in self.named):
            return self.setting
        return [self.setting[0].partition("(")[0], *self.named, *self.setting[1:]]


def _find_options(cells: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[tuple[str, int], str]:
    """Return name of a partition and place in its brackets -> the option that `dirichlet(0.1)` has there.

    The label does not tell: several options may have that value in a cell, so it is one that has it in all cells.

    Args:
        cells: label and section `partition` of each.
    """
    found: dict[tuple[str, int], list[str]] = {}
    for label, section in cells:
        name = str(section.get("name"))
        values = re.search(rf" {re.escape(name)}\((.*?)\)", f" {label}")
        for place, value in enumerate(values[1].split(", ") if values else ()):
            having = [key for key, given in section.items() if key != "name" and format_value(given) == value]
            before = found.setdefault((name, place), having)
            found[name, place] = [key for key in before if key in having]
    symbols = {place: [key for key in keys if Component.get_symbol(key) != key] for place, keys in found.items()}
    return {place: [*symbols[place], *keys][0] for place, keys in found.items() if keys}


def _split(label: str, config: Mapping[str, Any], options: Mapping[tuple[str, int], str]) -> _Words:
    method, *rest = re.split(r" (?![^\[(]*[\])])", label)
    seed = [rest.pop()] if rest and rest[-1] == f"s{config.get('seed')}" else []
    name = str(config.get("partition", {}).get("name"))
    at = next((k for k, word in enumerate(rest) if word.split("(")[0] == name), len(rest))
    values = re.fullmatch(r".*\((.*)\)", rest[at]) if at < len(rest) else None
    words = values[1].split(", ") if values else []
    keys = [options.get((name, place), "") for place in range(len(words))]
    named = [f"{Component.get_symbol(key)}={word}" for key, word in zip(keys, words, strict=True)]
    return _Words(method, rest[:at], rest[at:], named if all(keys) else [], seed)
