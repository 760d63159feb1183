"""What tables and figures read of a cell. Its configuration is parsed only for what needs its components."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from fedray.cells.spec import CellSpec
from fedray.common.errors import UserError
from fedray.components.base import Component
from fedray.config import RunConfig
from fedray.partitions import PARTITIONS
from fedray.sweep.file.entries import COMPONENTS
from fedray.sweep.plan.cells import Cell


def get_symbol(cell: CellSpec, section: str, option: str) -> str:
    """Return the letter for an option of the class that a section chooses; the option's name if it has none."""
    own = cell.plugins.symbols.get(str(cell.get(f"{section}.name")), {})
    return own.get(option) or Component.get_symbol(option)


def list_always_named(cell: CellSpec) -> set[str]:
    """Return the keys that are part of a name even if all cells share their value: the partition's required options."""
    kind = str(cell.get("partition.name"))
    options = PARTITIONS[kind].list_required() if kind in PARTITIONS else cell.plugins.required.get(kind, [])
    return {f"partition.{option}" for option in options}


def parse(cell: CellSpec, option: str) -> RunConfig:
    """Return a cell's parsed configuration.

    Args:
        cell: of a user's file, or of a store.
        option: beginning of the message.

    Raises:
        UserError: it comes from a store and names a plug-in, or this version refuses it.
    """
    if isinstance(cell, Cell):
        return cell.run
    refuse_plugins(option, cell.config)
    return RunConfig.parse_stored(cell.config)


def list_plugins(values: Mapping[str, Any]) -> list[str]:
    """Classes outside of fedray that a configuration names, in its sections and its probes."""
    probes = values.get("evaluation", {}).get("probes", ())
    sections = [values[name] for name in COMPONENTS if name in values]
    named = [one["name"] if isinstance(one, Mapping) else str(one) for one in (*sections, *probes)]
    return [name for name in named if ":" in name]


def refuse_plugins(option: str, values: Mapping[str, Any]) -> None:
    """Raise UserError, which begins with `option`, if a configuration of a store names a class outside of fedray."""
    if names := list_plugins(values):
        raise UserError(f"{option}: {names[0]} is a plug-in; fedray imports no class that a store names")


def iter_specs(cells: pd.DataFrame) -> Iterator[CellSpec]:
    """Yield the configurations of cells, one per row."""
    yield from cells["spec"]


def list_titles(cells: pd.DataFrame) -> dict[str, str]:
    """Return metric -> title, for all plug-ins of the cells."""
    return {metric: title for spec in iter_specs(cells) for metric, title in spec.plugins.titles.items()}


def list_smaller_better(cells: pd.DataFrame) -> set[str]:
    """Return the metrics of the cells' plug-ins whose smallest value is the best."""
    return {metric for spec in iter_specs(cells) for metric in spec.plugins.lower}
