"""Dotted keys of configurations, and values of one method: lists in an entry, a case's own `grid`, keys of its own."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedray.common.errors import UserError, truncate_repr
from fedray.components.base import describe

COMPONENTS = ("data", "partition", "model", "algorithm")
"""Sections that a grid replaces whole, since their other keys belong to the name; other sections are merged."""


def expand_entries(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings with one value for each list inside an entry of a section.

    Args:
        settings: dotted key -> value; `algorithm: {name: fedsam, rho: [0.05, 0.1]}` has two values of `algorithm.rho`.
            A list for an option that takes a list, such as `hidden` of `mlp`, is one value.

    Returns:
        One copy for each combination, the first list varying slowest.
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
    single = {
        name for name, field in fields.items() if not {list, tuple, dict, Any} & {*_list_origins(field.annotation)}
    }
    axes = [
        value if isinstance(value, list) and value and option in single else [value] for option, value in entry.items()
    ]
    return [dict(zip(entry, values, strict=True)) for values in itertools.product(*axes)]


def expand_case(where: str, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a case once for each combination of its own `grid` and of the lists in its entries.

    Raises:
        UserError: its `grid` is not a mapping of lists, or has `search` or a key that the case gives, too.
    """
    grid = case.get("grid", {})
    if not isinstance(grid, Mapping):
        raise UserError(f"{where}.grid: expected a mapping, got {truncate_repr(grid)}")
    own = {key: value for key, value in case.items() if key != "grid"}
    given = {leaf for key, value in own.items() for leaf in list_leaves(key, value)}
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"{where}.grid.{key}: expected a list of values, got {truncate_repr(values)}")
        if key == "search":
            raise UserError(f"{where}.grid.search: `search` belongs next to the case's keys, not in its grid")
        if both := next((leaf for value in values for leaf in list_leaves(key, value) if leaf in given), None):
            raise UserError(f"{where}.grid.{key}: the case gives {both}, too; leave one out")
    points = itertools.product(*grid.values())
    return [one for values in points for one in expand_entries(own | dict(zip(grid, values, strict=True)))]


def has_option(config: Mapping[str, Any], key: str) -> bool:
    """Return True unless `key` is an option of a section chosen by name and the class named there lacks it."""
    section, _, option = key.partition(".")
    kind = _find_kind(section, config.get(section)) if option and section in COMPONENTS else None
    if kind is None or kind.model_config.get("extra") == "allow":
        return True
    return option.partition(".")[0] in {field.alias or name for name, field in kind.model_fields.items()} | {"name"}


def describe_refusal(config: Mapping[str, Any], key: str, value: Any) -> str:
    """Return what an option of a section allows if it refuses this value; empty if it takes it or is not known here."""
    section, _, option = key.partition(".")
    kind = _find_kind(section, config.get(section))
    fields = {field.alias or name: field for name, field in kind.model_fields.items()} if kind else {}
    if kind is None or option not in fields:
        return ""
    try:
        _make_validator(kind, option).validate_python(value)
    except ValidationError as error:
        return str(describe(error, key)).partition("; ")[2]
    return ""


@cache
def _make_validator(kind: type[BaseModel], option: str) -> TypeAdapter[Any]:
    """Return what checks one option's type and bounds."""
    field = next(field for name, field in kind.model_fields.items() if option == (field.alias or name))
    return TypeAdapter(field.rebuild_annotation())


def find_partial(entries: Iterable[Any], key: str) -> tuple[list[str], list[str]]:
    """Return which entries of a key's section have this option, and which lack it, by name."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for entry in entries:
        section = key.partition(".")[0]
        name = str(entry.get("name") if isinstance(entry, Mapping) else entry)
        names = found[has_option({section: entry}, key)]
        names += [name] if name not in names else []
    return found[True], found[False]


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


def _list_origins(annotation: Any) -> Iterator[Any]:
    yield get_origin(annotation) or annotation
    for inner in get_args(annotation):
        yield from _list_origins(inner)


def with_key(config: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy with one dotted key set. A mapping replaces a component section and is merged into any other."""
    head, _, rest = key.partition(".")
    held = config.get(head)
    if rest:
        if isinstance(held, str) and head in COMPONENTS:
            held = {"name": held}
        if held is not None and not isinstance(held, Mapping):
            raise UserError(f"{key}: {head} holds {truncate_repr(held)}, which has no keys")
        return {**config, head: with_key(held or {}, rest, value)}
    if isinstance(value, Mapping) and isinstance(held, Mapping) and head not in COMPONENTS:
        return {**config, head: apply_draw(held, value)}
    return {**config, key: value}


def list_leaves(key: str, value: Any) -> list[str]:
    """Return the dotted keys that one setting gives values: `algorithm: {name: fedsam, rho: 0.1}` gives two."""
    if isinstance(value, Mapping) and value:
        return [leaf for inner, one in value.items() for leaf in list_leaves(f"{key}.{inner}", one)]
    return [f"{key}.name" if key in COMPONENTS else key]


def apply_draw(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with several dotted keys set, in their order: the values of a draw."""
    result = dict(config)
    for key, value in values.items():
        result = with_key(result, key, value)
    return result
