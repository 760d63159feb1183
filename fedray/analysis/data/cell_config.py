"""Configuration of a cell as a store or a sweep file holds it, with the labels of its plug-ins.

A store is data from others: no class that it names is imported. So a configuration keeps its typed values, and is
parsed only for a computation that needs its components. Labels of a plug-in for tables and figures are in the store,
with the cell (`fedray.sweep.plan.plugin_labels`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from fedray.common.errors import UserError
from fedray.components.base import Component
from fedray.config import RunConfig
from fedray.partitions import PARTITIONS
from fedray.sweep.file.dotted import COMPONENTS, get_dotted
from fedray.tracking.records import flatten


@dataclass(frozen=True)
class PluginLabels:
    """Labels of plug-ins.

    Attributes:
        symbols: class -> option -> letter.
        required: class of a partition -> options without a default.
        titles: metric -> title.
        names: class -> its own `name`.
        lower: metrics whose smallest value is the best.
    """

    symbols: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    required: Mapping[str, list[str]] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    lower: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class CellConfig:
    """Configuration of one cell.

    Attributes:
        values: every key with its value, JSON types.
        labels: labels of its plug-ins.
        names: display names of the sweep (`names`).
        run: the parsed configuration if it comes from a user's file; None if it comes from a store.
    """

    values: Mapping[str, Any]
    labels: PluginLabels = PluginLabels()
    names: Mapping[str, str] = field(default_factory=dict)
    run: RunConfig | None = None

    def get(self, key: str) -> Any:
        """Value of a dotted key; None if there is none."""
        return get_dotted(self.values, key)

    @property
    def texts(self) -> dict[str, str]:
        """Dotted key -> value as text, without `runtime`, which changes no number."""
        return flatten({key: value for key, value in self.values.items() if key != "runtime"})

    def without_names(self) -> "CellConfig":
        """Return the configuration without display names."""
        return replace(self, names={}, labels=replace(self.labels, names={}))

    def get_symbol(self, section: str, option: str) -> str:
        """Return the letter for an option of the class that a section chooses; the option's name if it has none."""
        own = self.labels.symbols.get(str(self.get(f"{section}.name")), {})
        return own.get(option) or Component.get_symbol(option)

    @property
    def always_named(self) -> set[str]:
        """Keys that are part of a name even if all cells share their value: required options of the partition."""
        kind = str(self.get("partition.name"))
        options = PARTITIONS[kind].list_required() if kind in PARTITIONS else self.labels.required.get(kind, [])
        return {f"partition.{option}" for option in options}

    @property
    def plugins(self) -> list[str]:
        """Classes outside of fedray that the configuration names."""
        return list_plugins(self.values)

    def parse(self, option: str) -> RunConfig:
        """Return the parsed configuration.

        Args:
            option: beginning of the message.

        Raises:
            UserError: it comes from a store and names a plug-in, or this version refuses it.
        """
        if self.run is not None:
            return self.run
        refuse_plugins(option, self.values)
        return RunConfig.parse(self.values)


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


def iter_configs(cells: pd.DataFrame) -> Iterator[CellConfig]:
    """Yield the configurations of cells, one per row."""
    yield from cells["config"]


def list_titles(cells: pd.DataFrame) -> dict[str, str]:
    """Return metric -> title, for all plug-ins of the cells."""
    return {metric: title for config in iter_configs(cells) for metric, title in config.labels.titles.items()}


def list_smaller_better(cells: pd.DataFrame) -> set[str]:
    """Return the metrics of the cells' plug-ins whose smallest value is the best."""
    return {metric for config in iter_configs(cells) for metric in config.labels.lower}
