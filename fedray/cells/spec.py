"""A cell, a configuration with a seed, as a sweep lists it: planned, stored in `cells.json`, archived, read back.

A store is data from others: no class that it names is imported. So a cell keeps the typed values of its configuration,
and the words by which tables and figures show its plug-ins.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter

from fedray.common.errors import UserError, truncate_repr


def _refuse_long(name: str) -> str:
    """Refuse a name that no file can have, with a suffix: 255 bytes are the limit of all file systems."""
    if len(name.encode()) > 200:
        raise ValueError(f"files are named after it, and it has {len(name.encode())} bytes; at most 200 are allowed")
    return name


SweepName = Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$", max_length=120), AfterValidator(_refuse_long)]
"""A sweep's name: words of letters, digits and `_ - .`, joined by `/`; no word begins with a dot."""


def leave_out_seed(label: str, seed: object) -> str:
    """Return the part of a cell's label that cells of all seeds share: method and setting."""
    return label.removesuffix(f" s{seed}")


@dataclass(frozen=True)
class PluginLabels:
    """How tables and figures show a cell's plug-ins.

    Attributes:
        symbols: class -> option -> letter.
        required: class of a partition -> options without a default.
        names: class -> its own `name`.
        titles: metric -> title.
        lower: metrics whose smallest value is the best.
        unranked: metrics without a best value.
    """

    symbols: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    required: Mapping[str, list[str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    lower: list[str] = field(default_factory=list)
    unranked: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Search:
    """keys: dotted, in the file's order. select: the metric that decides which draw is best."""

    keys: tuple[str, ...] = ()
    select: str = ""


@dataclass(frozen=True)
class CellSpec:
    """A cell of a sweep.

    Attributes:
        hash: of its identity.
        label: its readable name.
        config: every key with its value, JSON types.
        identity: what the hash is computed from; empty if an older version listed the cell.
        plugins: the words of its plug-ins.
        names: display names of the sweep.
        search: what draws the sweep's cells; empty for a grid.
        tuned: for a final stage, how its configuration was chosen (`driver.stages.describe_choices`).
    """

    hash: str
    label: str
    config: Mapping[str, Any]
    identity: Mapping[str, Any] = field(default_factory=dict)
    plugins: PluginLabels = PluginLabels()
    names: Mapping[str, str] = field(default_factory=dict)
    search: Search = Search()
    tuned: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, listed: Mapping[str, Any]) -> "CellSpec":
        """Return a cell as `to_json` wrote it. Raises pydantic's ValidationError for another type or a missing key."""
        return LISTED_CELL.validate_python(listed)

    def to_json(self) -> dict[str, Any]:
        """Return the cell as `cells.json` holds it; what is empty is left out."""
        found: dict[str, Any] = {"hash": self.hash, "label": self.label, "config": self.config}
        found |= {"identity": self.identity} if self.identity else {}
        found |= {"plugins": asdict(self.plugins)} if self.plugins != PluginLabels() else {}
        found |= {"names": self.names} if self.names else {}
        found |= {"search": {"keys": list(self.search.keys), "select": self.search.select}} if self.search.keys else {}
        return found | ({"tuned": self.tuned} if self.tuned else {})

    def get(self, key: str) -> Any:
        """Return the value of a dotted key of the configuration; None if there is none."""
        return get_dotted(self.config, key)


LISTED_CELL = TypeAdapter(CellSpec)


def get_dotted(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, None if there is none."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Flatten a configuration to dotted names with a number, a truth value or a text.

    Lists are texts, and long texts digests (MLflow limits their length).
    """
    result: dict[str, bool | int | float | str] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            result |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float):
            result[prefix + key] = value
        elif value is not None:
            text = str(value)
            result[prefix + key] = text if len(text) <= 500 else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return result


def select_cells(labels: Mapping[str, str], text: str, option: str) -> list[str]:
    """Return the hashes of the cells that a text names.

    Args:
        labels: hash -> label, in the sweep's order.
        text: a cell's number in that order (from 1, as `--dry-run` shows it), the beginning of its hash (at least 4
            digits), or a pattern of labels with `*` and `?`.
        option: what a message begins with.

    Raises:
        UserError: the text names no cell.
    """
    hashes = list(labels)
    if text.isdecimal() and 1 <= int(text) <= len(hashes):
        return [hashes[int(text) - 1]]
    found = [hash for hash in hashes if len(text) >= 4 and hash.startswith(text)]
    found = found or [hash for hash, label in labels.items() if fnmatchcase(label, text)]
    if not found:
        example = next(iter(labels.values()), "fedavg").partition(" ")[0]
        raise UserError(
            f"{option}: {truncate_repr(text)} names no cell; give a number from 1 to {len(hashes)}, the beginning of a "
            f"hash or a pattern of labels such as '{example}*'"
        )
    return found
