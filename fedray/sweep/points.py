"""The points of a sweep: what its axes and the changes to it assign to dotted keys, a later value over an earlier one.

A value of one method is a list in an entry, a case's own `grid`, or a key of the grid that the other methods lack.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, field_validator

from fedray.cells.cell import get_dotted
from fedray.common.errors import UserError, truncate_repr
from fedray.components.base import Checked
from fedray.sweep.space import Space

COMPONENTS = ("data", "partition", "model", "algorithm")
"""Sections that a grid replaces whole, since their other keys belong to the name; other sections are merged."""
Axes = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of an axis (`grid.training.lr`, `cases.setting`) -> its settings, each a mapping of dotted keys."""


class Change(Checked):
    """Values that all points have: of `--set`, or of the `base` of `smoke` or of a file that extends another.

    An option of a component is set in the points whose component has it.
    """

    origin: Literal["--set", "smoke.base", "base"]
    values: dict[str, Any]
    before: list[str] = Field([], description="what the same origin varies, whose values are set after these")

    @field_validator("values")
    @classmethod
    def _check_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        for key in values:
            refuse_name(key, key)
        return values

    @property
    def pairs(self) -> list[tuple[str, Any]]:
        """Key and value of each change; of a plain section, each key."""
        given = ({key: value} if key in COMPONENTS else list_leaves(key, value) for key, value in self.values.items())
        return [pair for leaves in given for pair in leaves.items()]

    @property
    def leaves(self) -> list[str]:
        """The keys that it sets, of sections each key."""
        return [leaf for pair in self.values.items() for leaf in list_leaves(*pair)]

    def name_key(self, key: str) -> str:
        """Return what a message calls a key."""
        return f"{self.origin}{' ' if self.origin == '--set' else '.'}{key}"


def refuse_name(what: str, key: str) -> None:
    """Raise UserError for `algorithm.name`, say: options of the base would stay, and meet another class."""
    section = key.removesuffix(".name")
    if section != key and section in COMPONENTS:
        raise UserError(f"{what}: write {section}, which takes a name, or a name with options")


class Points:
    """All points of a sweep.

    Attributes:
        partial: options in the grid, the search or a change that some components lack -> the names of components with
            the option, and without.
    """

    def __init__(self, base: Mapping[str, Any], axes: Axes, search: Space, changes: Sequence[Change]) -> None:
        self._base, self._axes, self._search, self._changes = base, axes, search, changes
        given = [key for name in axes if name.startswith("grid.") for key in axes[name][0]]
        given += [*search, *(key for change in changes for key, _ in change.pairs)]
        self._optional = {key for key in given if key not in COMPONENTS and key.partition(".")[0] in COMPONENTS}
        self.partial = self._find_partial() if self._optional else {}

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Space]]:
        """Yield the configurations in the file's order, each with the space to draw for it; equal ones once."""
        seen = set[str]()
        for values, own in self._iter_assignments():
            config = dict(self._base)
            for key, value in values:
                if key not in self.partial or has_option(config, key):
                    config = with_key(config, key, value)
            space = {key: v for key, v in self._search.items() if key not in self.partial or has_option(config, key)}
            written = repr((config, space | own)) if self._changes or self.partial else ""
            if not written or written not in seen:
                seen.add(written)
                yield config, space | own

    def _iter_assignments(self) -> Iterator[tuple[list[tuple[str, Any]], Space]]:
        """Yield each combination of the axes as keys and values, in the order in which they are set, and its space."""
        levels = {
            name: max((k for k, change in enumerate(self._changes, 1) if name in change.before), default=0)
            for name in self._axes
        }
        first = [pair for change in self._changes for pair in change.pairs]
        for settings in itertools.product(*self._axes.values()):
            values, space = list(first), Space()
            for level, setting in zip(levels.values(), settings, strict=True):
                space |= setting.get("search", {})
                for key, value in setting.items():
                    if key != "search":
                        values += [(key, value), *self._list_undone(key, value, level)]
            yield values, space

    def _list_undone(self, key: str, value: Any, level: int) -> list[tuple[str, Any]]:
        """Return what the changes after an axis set that one of its values has undone."""
        leaves = list_leaves(key, value)
        return [
            (one, given)
            for change in self._changes[level:]
            for one, given in change.pairs
            if any(leaf == one or one.startswith(f"{leaf}.") or is_inside(leaf, one) for leaf in leaves)
        ]

    def _find_partial(self) -> dict[str, tuple[list[str], list[str]]]:
        names: dict[str, dict[bool, dict[str, None]]] = {key: {True: {}, False: {}} for key in self._optional}
        for values, _ in self._iter_assignments():
            config = dict(self._base)
            for key, value in values:
                if key not in self._optional:
                    config = with_key(config, key, value)
            for key in self._optional:
                entry = config.get(key.partition(".")[0])
                name = str(entry.get("name") if isinstance(entry, Mapping) else entry)
                names[key][has_option(config, key)][name] = None
        for key, each in names.items():
            if len(each[False]) > 1 and not each[True]:
                raise UserError(f"{key}: none of {', '.join(each[False])} has it")
        return {key: ([*each[True]], [*each[False]]) for key, each in names.items() if each[True] and each[False]}

    def refuse_varied(self) -> None:
        """Raise UserError if the grid or the search varies a key that a change sets in all points."""
        for number, change in enumerate(self._changes):
            after = {name for later in self._changes[number:] for name in later.before}
            axes = {name: axis for name, axis in self._axes.items() if name not in after}
            grid = [name for name in axes if name.startswith("grid.")]
            spaces = [self._search, *(setting.get("search", {}) for axis in axes.values() for setting in axis)]
            searched = dict.fromkeys(name for space in spaces for name in space if f"search.{name}" not in after)
            for key in change.leaves:
                for name in grid:
                    if _is_varied(name.removeprefix("grid."), self._axes[name], key):
                        where = "smoke." if change.origin == "smoke.base" else ""
                        raise UserError(f"{change.name_key(key)}: {name} varies it; set {where}{name}")
                for name in searched:
                    if name == key or is_inside(name, key) or key.startswith(f"{name}."):
                        raise UserError(f"{change.name_key(key)}: search.{name} draws it; set search.{name}")


def is_inside(key: str, section: str) -> bool:
    """Return True for a key of a section that is no component as a whole."""
    return section not in COMPONENTS and key.startswith(f"{section}.")


def _is_varied(axis: str, settings: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Return True if an axis of the grid has several values of a key; for a component's option, under one name."""
    if axis == key or is_inside(axis, key):
        return len(settings) > 1
    if not key.startswith(f"{axis}."):
        return False
    values, by_name = set(), axis in COMPONENTS and key != f"{axis}.name"
    for setting in settings:
        section = setting[axis] if isinstance(setting[axis], Mapping) else {"name": setting[axis]}
        if not by_name or has_option({axis: section}, key):
            values.add((section.get("name") if by_name else None, repr(get_dotted({axis: section}, key))))
    return len(values) > len({name for name, _ in values})


def expand_entries(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings (dotted key -> value) with one value for each list inside an entry of a section.

    `algorithm: {name: fedsam, rho: [0.05, 0.1]}` has two values of `algorithm.rho`; a list for an option that takes
    one, such as `hidden` of `mlp`, is one value. One copy for each combination, the first list varying slowest.
    """
    return [
        dict(zip(settings, values, strict=True))
        for values in itertools.product(*(_expand_entry(section, value) for section, value in settings.items()))
    ]


def _expand_entry(section: str, entry: Any) -> list[Any]:
    if not isinstance(entry, Mapping) or not any(isinstance(value, list) for value in entry.values()):
        return [entry]
    kind = _find_kind(section, entry)
    fields = {field.alias or name: field for name, field in kind.model_fields.items()} if kind else {}
    single = {name for name, field in fields.items() if not any(map(_takes_list, _list_origins(field.annotation)))}
    axes = [
        value if isinstance(value, list) and value and option in single else [value] for option, value in entry.items()
    ]
    return [dict(zip(entry, values, strict=True)) for values in itertools.product(*axes)]


def expand_case(where: str, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a case once for each combination of its own `grid` and of the lists in its entries."""
    grid = case.get("grid", {})
    if not isinstance(grid, Mapping):
        raise UserError(f"{where}.grid: expected a mapping, got {truncate_repr(grid)}")
    entries = {key: value for key, value in case.items() if key != "grid"}
    given = {leaf for key, value in entries.items() for leaf in list_leaves(key, value)}
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"{where}.grid.{key}: expected a list of values, got {truncate_repr(values)}")
        if key == "search":
            raise UserError(f"{where}.grid.search: `search` belongs next to the case's keys, not in its grid")
        if both := next((leaf for value in values for leaf in list_leaves(key, value) if leaf in given), None):
            raise UserError(f"{where}.grid.{key}: the case gives {both}, too; leave one out")
    points = itertools.product(*grid.values())
    return [one for values in points for one in expand_entries(entries | dict(zip(grid, values, strict=True)))]


def has_option(config: Mapping[str, Any], key: str) -> bool:
    """Return True unless `key` is an option of a section chosen by name and the class named there lacks it."""
    section, _, option = key.partition(".")
    kind = _find_kind(section, config.get(section)) if option and section in COMPONENTS else None
    if kind is None or kind.model_config.get("extra") == "allow":
        return True
    return option.partition(".")[0] in {field.alias or name for name, field in kind.model_fields.items()} | {"name"}


def _find_kind(section: str, entry: Any) -> type[BaseModel] | None:
    """Return the class of a section's entry; None if it names none, which is refused when its cell is made."""
    from fedray.config import RunConfig, find_component  # here: imports PyTorch, which mistakes in a file do not need

    if section not in COMPONENTS:
        kind = RunConfig.model_fields[section].annotation if section in RunConfig.model_fields else None
        return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    name = entry.get("name") if isinstance(entry, Mapping) else entry
    try:
        return find_component(section, name) if isinstance(name, str | type) else None
    except UserError:
        return None


def _takes_list(kind: Any) -> bool:
    return kind is Any or (
        isinstance(kind, type) and issubclass(kind, Collection) and not issubclass(kind, str | bytes)
    )


def _list_origins(annotation: Any) -> Iterator[Any]:
    yield get_origin(annotation) or annotation
    for inner in get_args(annotation):
        yield from _list_origins(inner)


def with_key(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy with one dotted key set. A mapping replaces a component section and is merged into any other."""
    head, _, rest = key.partition(".")
    inner = config.get(head)
    if rest:
        if isinstance(inner, str) and head in COMPONENTS:
            inner = {"name": inner}
        if inner is not None and not isinstance(inner, Mapping):
            raise UserError(f"{key}: {head} holds {truncate_repr(inner)}, which has no keys")
        return {**config, head: with_key(inner or {}, rest, value)}
    if isinstance(value, Mapping) and isinstance(inner, Mapping) and head not in COMPONENTS:
        return {**config, head: apply_draw(inner, value)}
    return {**config, key: value}


def list_leaves(key: str, value: Any) -> dict[str, Any]:
    """Return dotted key -> value of one setting: `algorithm: {name: fedsam, rho: 0.1}` sets `algorithm` as a whole, and
    `algorithm.rho`."""
    leaves, is_whole = dict[str, Any](), key in COMPONENTS
    for inner, one in value.items() if isinstance(value, Mapping) else ():
        leaves |= list_leaves(f"{key}.{inner}", one) if not is_whole or inner != "name" else {}
    return leaves if leaves and not is_whole else {key: value, **leaves}


def apply_draw(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with several dotted keys set, in their order: the values of a draw."""
    result = dict(config)
    for key, value in values.items():
        result = with_key(result, key, value)
    return result
