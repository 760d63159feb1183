"""A cell, a configuration with a seed, wherever it is: planned, in a trial, in `cells.json` or an archive, read back.

A store is data from others: no class that it names is imported. So a cell keeps the typed values of its configuration,
and the words by which tables and figures show its plug-ins; the parsed configuration is only in a cell made here.
"""

import hashlib
import pickle
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from fedray.components.base import Component

if TYPE_CHECKING:
    from fedray.config import RunConfig


NAME = r"^\w[\w.-]*(/\w[\w.-]*)*$"


def _refuse_other(name: Any) -> Any:
    """Refuse what is not such a name, in our words; the pattern of the field is for the schema of files."""
    if isinstance(name, str) and not re.fullmatch(NAME, name):
        raise ValueError("letters, digits and _ - . are allowed, without spaces, in parts joined by /")
    return name


def _refuse_long(name: str) -> str:
    """Refuse a name that no file can have, with a suffix: 255 bytes are the limit of all file systems."""
    if len(name.encode()) > 200:
        raise ValueError(f"files are named after it, and it has {len(name.encode())} bytes; at most 200 are allowed")
    return name


SweepName = Annotated[
    str, Field(pattern=NAME, max_length=120), BeforeValidator(_refuse_other), AfterValidator(_refuse_long)
]
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
class Cell:
    """A cell of a sweep.

    Attributes:
        hash: of its identity.
        label: its readable name.
        config: every key with its value, JSON types.
        identity: what the hash is computed from; empty if an older version listed the cell.
        plugins: the words of its plug-ins.
        names: display names of the sweep.
        searched: dotted keys that the sweep draws, in the file's order; empty for a grid.
        select: the metric that decides which draw is best; empty for a grid.
        tuned: for a final stage, how its configuration was chosen (`sweep.stages.describe_choices`).
        packed: the parsed configuration of a cell that was made here, and so can run, pickled.
    """

    hash: str
    label: str
    config: Mapping[str, Any]
    identity: Mapping[str, Any] = field(default_factory=dict)
    plugins: PluginLabels = PluginLabels()
    names: Mapping[str, str] = field(default_factory=dict)
    searched: tuple[str, ...] = ()
    select: str = ""
    tuned: Mapping[str, Any] = field(default_factory=dict)
    packed: bytes = field(default=b"", repr=False)

    @classmethod
    def from_json(cls, listed: Mapping[str, Any]) -> Self:
        """Return a cell as `to_json` wrote it. Raises pydantic's ValidationError for another type or a missing key."""
        cell: Self = LISTED_CELL.validate_python(listed)
        return cell

    def to_json(self) -> dict[str, Any]:
        """Return the cell as `cells.json` holds it; what is empty is left out."""
        listed: dict[str, Any] = {"hash": self.hash, "label": self.label, "config": self.config}
        listed |= {"identity": self.identity} if self.identity else {}
        listed |= {"plugins": asdict(self.plugins)} if self.plugins != PluginLabels() else {}
        listed |= {"names": self.names} if self.names else {}
        listed |= {"search": {"keys": list(self.searched), "select": self.select}} if self.searched else {}
        return listed | ({"tuned": self.tuned} if self.tuned else {})

    def get(self, key: str) -> Any:
        """Return the value of a dotted key of the configuration; None if there is none."""
        return get_dotted(self.config, key)

    def get_symbol(self, section: str, option: str) -> str:
        """Return the letter for an option of the class that a section chooses; the option's name if it has none."""
        declared = self.plugins.symbols.get(str(self.get(f"{section}.name")), {})
        return declared.get(option) or Component.get_symbol(option)

    @property
    def setting(self) -> str:
        """The part of the label that cells of all seeds share."""
        return leave_out_seed(self.label, self.config.get("seed"))

    @cached_property
    def run(self) -> "RunConfig":
        """The parsed configuration of a cell that was made here; a process that gets the cell unpacks it only now,
        where it can tell of a class that it lacks. Raises UserError if a class of the user's own cannot be imported."""
        run: RunConfig = pickle.loads(self.packed)  # noqa: S301 (from the process that started this one)
        return run

    @property
    def data(self) -> str:
        """Key of its data set in `Problems.data`: the digest of what was loaded, and how it was prepared."""
        return f"{self.identity['data']['digest']}/{self.run.model.side}" + "/merged" * (self.run.data.test is not None)

    def find_changed(self, digest: str, partition: Mapping[str, Any]) -> str:
        """Return `data` or `partition` if the cell was planned with another one; else, or if it does not tell, "".

        digest: of the data that are here; partition: its entries in an identity.
        """
        if self.identity.get("data", {}).get("digest", digest) != digest:
            return "data"
        return "partition" if self.identity.get("partition", partition) != partition else ""

    def __str__(self) -> str:
        return self.hash

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # Tune copies its trials' configurations

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "run"}


def _read_listed(listed: Any) -> Any:
    """Return the attributes of a listed cell; no other key, since a stranger's `packed` would be unpickled."""
    if not isinstance(listed, Mapping):
        return listed
    search = listed.get("search")
    searched = {"searched": search.get("keys"), "select": search.get("select")} if isinstance(search, Mapping) else {}
    keys = ("hash", "label", "config", "identity", "plugins", "names", "tuned")
    return {key: listed[key] for key in keys if key in listed} | searched


ListedCell = Annotated[Cell, BeforeValidator(_read_listed)]
"""A cell as `cells.json` and archives list it, for pydantic."""
LISTED_CELL: TypeAdapter[Any] = TypeAdapter(ListedCell)


def get_dotted(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, None if there is none."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def shorten_number(value: Any) -> str:
    """Return a value as tables and labels have it: `1.0` is `1`."""
    return re.sub(r"^(-?\d+)\.0$", r"\1", str(value))


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
