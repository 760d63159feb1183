"""Names and colours under which a sweep's runs are told apart at a glance, in MLflow's list and charts."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from fedray.cells.cell import Cell

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7f7f7f", "#56b4e9", "#000000")
"""Okabe and Ito's palette, suitable for colour-blind readers; a method has one of them."""
DARKEST, LIGHTEST = -0.35, 0.45
"""How far the shades of a method's colour go towards black and white."""


class Look(NamedTuple):
    """name: what differs in the sweep, method, seed. colour: the method's, in a shade of its hyper-parameters.
    setting: what differs besides the method and its options, as in a column of the table."""

    name: str
    colour: str
    setting: str


def choose_looks(cells: Mapping[str, Cell]) -> dict[str, Look]:
    """Return hash -> a cell's look in its sweep, `ρ=0.05 dirichlet(0.1) fedtoga s0`, given all its cells in its order.

    What all cells share is left out, since MLflow's list cuts longer names.
    """
    split = {hash: _split(cell) for hash, cell in cells.items()}
    shared = set.intersection(*({*words.options, *words.others} for words in split.values())) if split else set()
    rows: dict[str, list[list[str]]] = {}
    for words in split.values():
        if words.options not in rows.setdefault(words.method, []):
            rows[words.method].append(words.options)
    looks = {}
    for hash, words in split.items():
        of_method = rows[words.method]
        same = set[str]().union(shared, set(of_method[0]).intersection(*of_method[1:]))
        options = [word for word in words.options if word not in same]
        setting = [word for word in words.others if word not in shared]
        colour = COLOURS[[*rows].index(words.method) % len(COLOURS)]
        if len(of_method) > 1:
            colour = shade(colour, of_method.index(words.options) / (len(of_method) - 1))
        looks[hash] = Look(" ".join([*options, *setting, words.method, *words.seed]), colour, " ".join(setting))
    return looks


def shade(colour: str, place: float) -> str:
    """Return a shade of a colour, from dark (0) to light (1)."""
    share = DARKEST + place * (LIGHTEST - DARKEST)
    target = 255 if share > 0 else 0
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + abs(share) * (target - part)):02x}" for part in parts)


class _Words(NamedTuple):
    """A label's words. others: the partition and the other keys."""

    method: str
    options: list[str]
    others: list[str]
    seed: list[str]


def _split(cell: Cell) -> _Words:
    """Return the words of a cell's label; a stranger's store can hold any partition."""
    name = cell.get("partition.name")
    kind = cell.plugins.names.get(str(name), name)
    method, *rest = re.split(r" (?![^\[(]*[\])])", cell.label)
    seed = [rest.pop()] if rest and rest[-1] == f"s{cell.config.get('seed')}" else []
    at = next((k for k, word in enumerate(rest) if word.split("(")[0] == kind), len(rest))
    return _Words(method, rest[:at], rest[at:], seed)
