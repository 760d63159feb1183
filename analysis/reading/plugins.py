"""What the plug-ins of a sweep say of themselves (`fedray.sweep.presentation`): letters, titles, what is better lower.

The words travel with the sweep's cells, in `DataFrame.attrs`, JSON types only; without them plain names are shown.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fedray.common.errors import UserError
from fedray.sweep.grid import COMPONENTS


@dataclass(frozen=True)
class Words:
    """symbols: class -> option -> letter. required: class -> options. titles: metric -> title. lower: metrics."""

    symbols: dict[str, dict[str, str]] = field(default_factory=dict)
    required: dict[str, list[str]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    lower: list[str] = field(default_factory=list)


def attached(cells: pd.DataFrame, written: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The cells with the words that a sweep has written down for each of them."""
    merged = Words()
    for one in written:
        merged.symbols.update(one["symbols"])
        merged.required.update(one["required"])
        merged.titles.update(one["titles"])
        merged.lower.extend(set(one["lower"]) - set(merged.lower))
    if merged != Words():
        cells.attrs["plugins"] = vars(merged)
    return cells


def foreign(config: Mapping[str, Any]) -> list[str]:
    """The classes outside of fedray that a configuration names. Of a store's configuration none is imported."""
    probes = config.get("evaluation", {}).get("probes", ())
    sections = [config[name] for name in COMPONENTS if name in config]
    named = [one["name"] if isinstance(one, Mapping) else str(one) for one in (*sections, *probes)]
    return [name for name in named if ":" in name]


def refuse_foreign(option: str, config: Mapping[str, Any]) -> None:
    """Raise UserError where a configuration of the store names a class outside of fedray. option: for the message."""
    if names := foreign(config):
        raise UserError(f"{option}: {names[0]} is a plug-in; fedray imports no class that a store names")


def words(cells: pd.DataFrame) -> Words:
    """The words of the plug-ins of a sweep's cells."""
    return Words(**cells.attrs.get("plugins", {}))
