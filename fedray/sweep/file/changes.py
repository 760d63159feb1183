"""Keys set in every run of a sweep: by `--set`, and by the `base` of `smoke` and of a file that extends another.

A value in the base or in a case is replaced, and so is one in the grid, as long as the grid does not vary it. A key
that the grid or the search varies is refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fedray.cells.spec import get_dotted
from fedray.common.errors import UserError
from fedray.sweep.file.entries import COMPONENTS, expand_case, expand_entries, has_option, list_leaves, with_key

Advise = Callable[[str, Any], str]
"""Returns what to do instead, given a key of the file that varies a key of runs and the value that it should have."""


def change_runs(document: Mapping[str, Any], changes: Mapping[str, Any], prefix: str, advise: Advise) -> dict[str, Any]:
    """Return a sweep's document in which all runs have other values of some keys.

    An option of a component is set in the entries that have it.

    Args:
        document: the contents of a file, or some of its sections.
        changes: dotted key of a run -> value.
        prefix: written before the key in messages.
        advise: ends the message about a key that the grid or the search varies.

    Raises:
        UserError: the grid or the search varies a key.
    """
    changed = dict(document)
    for key, value in changes.items():
        for leaf, one in _split(key, value):
            changed = _change(changed, leaf, one, prefix, advise, before="" if leaf == key else f" before {key}")
    return changed


def _split(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of a mapping one by one, after the section of a component as a whole."""
    if not isinstance(value, Mapping) or not value:
        yield key, value
        return
    if key in COMPONENTS:
        yield key, value
    for option, one in value.items():
        if key not in COMPONENTS or option != "name":
            yield from _split(f"{key}.{option}", one)


def _change(
    document: Mapping[str, Any], key: str, value: Any, prefix: str, advise: Advise, before: str
) -> dict[str, Any]:
    section = key.partition(".")[0]
    axes, grid = _list_cases(document), _list_grid(document)
    cases = [case for axis in axes.values() for case in axis]
    places = [*cases, *(one for axis in grid.values() for one in axis)]
    entries = [place[section] for place in places if section in place]
    base = dict(document["base"])
    held = [*entries, base[section]] if section in base else entries
    # If no entry has the option, each of them gets it: RunConfig says which options there are.
    taken = any(has_option({section: entry}, key) for entry in held)

    def put(place: Mapping[str, Any]) -> dict[str, Any]:
        return dict(_put(place, key, value, everywhere=not taken))

    for name, axis in grid.items():
        if _is_varied([one[name] for one in axis], name, key):
            inside = _is_inside(name, key)
            values = [axis[0][name]] if inside else _unique(put(one)[name] for one in axis)
            advice = advise(f"grid.{name}", values) + (f" before {key}" if inside else before)
            raise UserError(f"{prefix}{key}: an axis of the sweep sets it too; {advice}")
    for space in [document.get("search"), *(case.get("search") for case in cases)]:
        for name, distribution in space.items() if isinstance(space, Mapping) else ():
            inside = _is_inside(name, key) and key not in COMPONENTS
            if (name == key or _is_inside(key, name) or inside) and isinstance(distribution, Mapping):
                chosen = [value] if name == key else distribution.get("choice", ())
                chosen = chosen[:1] if inside else _unique(put({name: one})[name] for one in chosen)
                advice = advise(f"search.{name}", {"choice": chosen}) + (f" before {key}" if inside else before)
                raise UserError(f"{prefix}{key}: the search draws it; {advice}")
    if section not in COMPONENTS or (has_option(base, key) or not taken if section in base else not entries):
        base = with_key(base, key, value)
    changed = {**document, "base": base}
    if any(put(case) != case for case in cases):
        others = document["cases"] if isinstance(document["cases"], Mapping) else {}
        changed["cases"] = {**others, **{name: _unique(map(put, axis)) for name, axis in axes.items()}}
    if any(put(one) != one for axis in grid.values() for one in axis):
        found = {
            **document["grid"],
            **{name: [put(one).get(name) for one in axis if put(one)] for name, axis in grid.items()},
        }
        changed["grid"] = {name: values for name, values in found.items() if values or not grid.get(name)}
    return changed


def _put(place: Mapping[str, Any], key: str, value: Any, everywhere: bool) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a case, or of a value of the grid, with a key replaced where they would undo it."""
    for own, held in place.items():
        if own == key:
            yield own, value
        elif _is_inside(key, own) and own in COMPONENTS:
            takes = everywhere or has_option({own: held}, key)
            yield own, with_key({own: held}, key, value)[own] if takes else held
        elif _is_inside(key, own):
            sets = any(leaf == key or _is_inside(leaf, key) or _is_inside(key, leaf) for leaf in list_leaves(own, held))
            inner = key.removeprefix(f"{own}.")
            yield own, with_key(held if isinstance(held, Mapping) else {}, inner, value) if sets else held
        elif not _is_inside(own, key) or key in COMPONENTS:
            yield own, held


def _is_inside(key: str, section: str) -> bool:
    return key.startswith(f"{section}.")


def _is_varied(values: list[Any], axis: str, key: str) -> bool:
    """Return True if an axis of the grid has several values of a key; for a component's option, under one name."""
    if axis == key or (_is_inside(axis, key) and key not in COMPONENTS):
        return len(values) > 1
    if not _is_inside(key, axis):
        return False
    found = set()
    for value in values:
        section = value if isinstance(value, Mapping) else {"name": value}
        by_name = axis in COMPONENTS and key != f"{axis}.name"
        if not by_name or has_option({axis: value}, key):
            found.add((section.get("name") if by_name else None, repr(get_dotted({axis: section}, key))))
    return len(found) > len({name for name, _ in found})


def _list_cases(document: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the axes of cases of a document, each case once for each combination of its own lists.

    What is no axis of mappings is left out: `Sweep` refuses it.
    """
    cases = document.get("cases")
    axes = {"cases": cases} if isinstance(cases, list) else cases if isinstance(cases, Mapping) else {}
    return {
        name: [one for number, case in enumerate(axis) for one in expand_case(f"cases.{name}.{number}", case)]
        for name, axis in axes.items()
        if isinstance(axis, list) and all(isinstance(case, Mapping) for case in axis)
    }


def _list_grid(document: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the axes of a document's grid, each value as a setting of its key; what is no axis is left out."""
    grid = document.get("grid")
    return {
        name: [one for value in values for one in expand_entries({name: value})]
        for name, values in (grid.items() if isinstance(grid, Mapping) else ())
        if isinstance(values, list)
    }


def _unique(values: Iterable[Any]) -> list[Any]:
    """Return the values that differ, in their order; lists and mappings cannot be hashed."""
    return list({repr(value): value for value in values}.values())
