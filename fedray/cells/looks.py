"""Names and colours under which a sweep's runs are told apart at a glance, in MLflow's list and charts."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from fedray.cells.cell import Cell, shorten_number
from fedray.components.base import format_value

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7f7f7f", "#56b4e9", "#000000")
"""Okabe and Ito's palette, suitable for colour-blind readers; a method has one of them."""
DARKEST, LIGHTEST = -0.35, 0.45
"""How far the shades of a method's colour go towards black and white."""
OF_ALL_PARTITIONS = ("name", "min_size", "seed")
"""Keys of every partition, which come before its own."""


class Look(NamedTuple):
    """name: what differs in the sweep, method, seed. colour: the method's, in a shade of its hyper-parameters.
    setting: what differs besides the method and its options, as in a column of the table."""

    name: str
    colour: str
    setting: str


def choose_looks(cells: Mapping[str, Cell]) -> dict[str, Look]:
    """Return each cell's look in its sweep, hash -> `ρ=0.05 α=0.1 fedtoga s0`, given all its cells in its order.

    A partition reads as in tables, `dirichlet α=0.1`. What all cells share is left out, since MLflow's list cuts longer
    names, but not its name if a method of the sweep has an option with that letter: FedTOGA has an α of its own.
    """
    split = {hash: _split(cell) for hash, cell in cells.items()}
    letters = {word.partition("=")[0] for words in split.values() for word in words.options}
    if any(word.partition("=")[0] in letters for words in split.values() for word in words.partition):
        split = {hash: words._replace(partition=[" ".join(words.partition)]) for hash, words in split.items()}
    settings = {hash: [*words.partition, *words.others] for hash, words in split.items()}
    shared = set.intersection(*({*words.options, *settings[hash]} for hash, words in split.items())) if split else set()
    rows: dict[str, list[list[str]]] = {}
    for words in split.values():
        if words.options not in rows.setdefault(words.method, []):
            rows[words.method].append(words.options)
    looks = {}
    for hash, words in split.items():
        of_method = rows[words.method]
        same = set[str]().union(shared, set(of_method[0]).intersection(*of_method[1:]))
        options = [word for word in words.options if word not in same]
        setting = [word for word in settings[hash] if word not in shared]
        colour = COLOURS[[*rows].index(words.method) % len(COLOURS)]
        if len(of_method) > 1:
            colour = shade(colour, of_method.index(words.options) / (len(of_method) - 1))
        looks[hash] = Look(" ".join([*options, *setting, words.method, *words.seed]), colour, " ".join(setting))
    return looks


def describe_setting(cell: Cell) -> str:
    """Return a cell's label without its seed, with its partition as tables have it: `fedsam ρ=0.1 dirichlet α=0.1`."""
    words = _split(cell)
    return " ".join([words.method, *words.options, *words.partition, *words.others])


def shade(colour: str, place: float) -> str:
    """Return a shade of a colour, from dark (0) to light (1)."""
    share = DARKEST + place * (LIGHTEST - DARKEST)
    target = 255 if share > 0 else 0
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + abs(share) * (target - part)):02x}" for part in parts)


class _Words(NamedTuple):
    """A label's words. partition: its name, and its options as tables have them. others: the other keys."""

    method: str
    options: list[str]
    partition: list[str]
    others: list[str]
    seed: list[str]


def _split(cell: Cell) -> _Words:
    """Return the words of a cell's label; a stranger's store can hold any partition."""
    given = cell.config.get("partition")
    partition = given if isinstance(given, Mapping) else {"name": given}
    kind = cell.plugins.names.get(str(partition.get("name")), partition.get("name"))
    method, *rest = re.split(r" (?![^\[(]*[\])])", cell.label)
    seed = [rest.pop()] if rest and rest[-1] == f"s{cell.config.get('seed')}" else []
    at = next((k for k, word in enumerate(rest) if word.split("(")[0] == kind), len(rest))
    named, others = rest[at : at + 1], rest[at + 1 :]
    own = {option: value for option, value in partition.items() if option not in OF_ALL_PARTITIONS}
    told = named[0].partition("(")[2].removesuffix(")") if named else ""
    required = [*own][: told.count(", ") + 1] if told else []
    if ", ".join(format_value(own[option]) for option in required) == told:
        symbols = {option: cell.get_symbol("partition", option) for option in required}
        named = [str(kind)] * len(named) + [f"{symbols[option]}={shorten_number(own[option])}" for option in required]
        others = [word for word in others if word.partition("=")[0] not in symbols.values()]
    return _Words(method, rest[:at], named, others, seed)
