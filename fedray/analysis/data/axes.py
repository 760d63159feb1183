"""Names of cells along an axis of a table or in a figure's legend."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import combinations
from types import MappingProxyType
from typing import Any

import pandas as pd

from fedray.analysis.data.collect import SweepTable
from fedray.cells.cell import shorten_number
from fedray.cells.status import Status
from fedray.common.errors import UserError, find_nearest, unknown
from fedray.config.run import MEANT
from fedray.partitions import PARTITIONS
from fedray.sweep.points import COMPONENTS

FINISHED = (Status.FINISHED,)
ALIKE = ("data", "partition", "model", "clients.", "training.rounds", "evaluation.every", "evaluation.last", "seed")
"""Sections, and keys or their beginnings, that runs share which are compared with each other."""
WITH_CURVE = (*FINISHED, Status.STOPPED)
"""Statuses of a run that has a curve: all its rounds, or those up to where `stop` ended it."""


def list_names(cells: pd.DataFrame) -> dict[str, str]:
    """Return what the sweep's `names` and its plug-ins call components, dotted keys and whole labels."""
    own = {kind: name for spec in cells["spec"] for kind, name in spec.plugins.names.items()}
    given = {kind: name for spec in reversed([*cells["spec"]]) for kind, name in spec.names.items()}  # the first counts
    return {kind: given.get(name, name) for kind, name in own.items()} | given


def title_axes(keys: Sequence[str], cells: pd.DataFrame, among: Sequence[str] | None = None) -> list[str]:
    """Return the names of dotted keys; one that shares its letter has its section, too: `α (partition)`.

    among: keys that may share it, by default all of the cells' configurations. A display name stays as it is given.
    """
    letters = {key: find_symbol(key, cells) for key in {*keys, *(list_dotted(cells) if among is None else among)}}
    count, given = Counter(letters.values()), list_names(cells)
    return [
        f"{letters[key]} ({key.partition('.')[0]})" if count[letters[key]] > 1 and key not in given else letters[key]
        for key in keys
    ]


def find_symbol(key: str, cells: pd.DataFrame) -> str:
    """Return the name of a dotted key along an axis: its display name, the papers' Greek letter, or its last word."""
    if name := list_names(cells).get(key):
        return name
    section, _, option = key.rpartition(".")
    letters = (spec.get_symbol(section, option) for spec in cells["spec"])
    return next((letter for letter in letters if letter != option), option)


def choose_search_rows(cells: pd.DataFrame, keys: Iterable[str]) -> str:
    """Return the key of a search's rows: the method, and all searched keys outside of `algorithm`."""
    return ",".join(["algorithm", *(key for key in keys if key in cells and not key.startswith("algorithm."))])


def label_cells(cells: pd.DataFrame, key: str, always: Sequence[str] = ()) -> pd.Series:
    """Return each cell's name along an axis: `fedsam ρ=0.05`, `dirichlet α=0.1`; constant options are left out.

    key: a section that has a name (algorithm, partition, model, data), a dotted key (`seed` gives `seed=0`), or several
    of these with commas: `data,partition,clients.total` gives `cifar10 dirichlet α=0.1 total=100`, and
    `algorithm,algorithm.rho` names ρ even if it has a single value, as do the options of `always`. Labels that the
    sweep's `names` would make equal keep both. Beside a method whose ρ varies, one of a single row names its ρ, too.
    """
    plain, names = _join_labels(cells, key, always, {}), list_names(cells)
    if not names:
        return plain
    shown = _join_labels(cells, key, always, names)
    found = {label: names.get(label) or other.strip() or label for label, other in zip(plain, shown, strict=True)}
    count = Counter(found.values())
    return plain.map({label: f"{name} ({label})" if count[name] > 1 else name for label, name in found.items()})


def find_label(cells: pd.DataFrame, given: str, key: str = "algorithm", always: Sequence[str] = ()) -> str:
    """Return the label that a table shows for one without display names, or for a method that has a single row.

    Others are returned as given.
    """
    plain, shown = _join_labels(cells, key, always, {}), label_cells(cells, key, always)
    found = dict(zip(map(str, plain), map(str, shown), strict=True))
    of_method = set(shown[cells["algorithm.name"] == given]) if "algorithm" in key.split(",") else set()
    return found.get(given) or (str(*of_method) if len(of_method) == 1 else given)


def _join_labels(cells: pd.DataFrame, key: str, always: Sequence[str], names: Mapping[str, str]) -> pd.Series:
    keys = key.split(",")
    named = {one for one in keys if one.rpartition(".")[0] in keys and not one.endswith(".name")}
    if lost := sorted(one for one in named if one not in cells):
        raise unknown_key("--rows/--cols", lost[0], cells)
    keys, always = [one for one in keys if one not in named], [*always, *named]  # `algorithm,algorithm.rho`
    if len(keys) == 1 and (keys[0] not in cells or keys[0].endswith(".name")):
        return _label_by_key(cells, keys[0], always, names)
    titles = dict(zip(keys, title_axes(keys, cells, keys), strict=True))
    parts = [
        _label_by_key(cells, part, [*named], names)
        if f"{part}.name" in cells or part.endswith(".name")
        else f"{titles[part]}=" + _label_by_key(cells, part)
        for part in keys
    ]
    return reduce(lambda left, right: left + " " + right, parts)


def find_columns(cells: pd.DataFrame, rows: pd.Series) -> str:
    """Return `partition` and all other keys that columns must name so that entries mix only runs of different seeds."""
    keys, columns = ["partition"], label_cells(cells, "partition")
    sections = [name for name in COMPONENTS if f"{name}.name" in cells]
    others = [key for key in (*sections, *list_varying_settings(cells)) if key not in keys]
    for key in others:
        of_seed = [cells["seed"]] if key in sections else []  # each seed may have data of its own
        entries, first = zip(rows, columns, *of_seed, strict=True), dict[Any, str]()
        named = _label_by_key(cells, key)
        mixes = any(first.setdefault(e, label) != label for e, label in zip(entries, named, strict=True))
        if mixes or (key.startswith(ALIKE) and "sweep" in cells and _are_apart(cells["sweep"], named)):
            keys.append(key)
            columns = label_cells(cells, ",".join(keys))
    return ",".join(sorted(keys, key=lambda key: COMPONENTS.index(key) if key in COMPONENTS else len(COMPONENTS)))


def _are_apart(sweeps: pd.Series, labels: pd.Series) -> bool:
    """Return True if two sweeps have no value of a key in common."""
    of_sweep = [set(group) for _, group in labels.groupby(sweeps)]
    return any(not one & other for one, other in combinations(of_sweep, 2))


def list_unlike(cells: pd.DataFrame, *named: str) -> list[str]:
    """Return notes on the keys of `ALIKE` that differ between the rows of a column (`_row`, `_column`).

    named: sections and keys, with commas, that rows and columns name.
    """
    notes, taken = list[str](), ",".join(named).split(",")
    keys = [key for key in ("data", "model") if f"{key}.name" in cells]
    keys += [key for key in list_varying_settings(cells) if key.startswith(ALIKE)]
    for key in (key for key in keys if key not in taken):
        for _, column in cells.assign(_value=_label_by_key(cells, key)).groupby("_column", sort=False):
            values = column.groupby("_row", sort=False)["_value"].agg(lambda of: "/".join(map(str, dict.fromkeys(of))))
            if values.nunique() > 1:
                rows = {value: ", ".join(map(str, values.index[values == value])) for value in values.unique()}
                notes.append(f"rows differ in {key}: {'; '.join(f'{value} of {of}' for value, of in rows.items())}")
                break
    return notes


def label_table(cells: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return each cell's name of method and setting: a table's default rows and columns."""
    methods = label_cells(cells, "algorithm")
    return methods, label_cells(cells, find_columns(cells, methods))


def pick_finished(sweep: SweepTable, statuses: Sequence[str] = FINISHED) -> pd.DataFrame:
    """Return the cells of these statuses. Raises UserError if there are none."""
    cells: pd.DataFrame = sweep.cells[sweep.cells["status"].isin(statuses)]
    if not len(cells):
        raise UserError(f"sweep: {sweep.name!r} has no finished run")
    return cells


def label_finished(sweep: SweepTable, without: Sequence[str] = (), statuses: Sequence[str] = FINISHED) -> pd.DataFrame:
    """Return the cells of these statuses with `_row` (the method) and `_column` (the setting), without some keys.

    `_figure` names the data set and model of a figure. Settings of others have accuracies of another order, so they
    share no axes. All cells are named, as in tables. Raises UserError if no cell has finished.
    """
    cells, shown = sweep.cells.drop(columns=list(without), errors="ignore"), pick_finished(sweep, statuses).index
    methods, settings = label_table(cells)
    named = [name for name in ("data", "model") if f"{name}.name" in cells]
    apart = [name for name in named if label_cells(cells, name).nunique() > 1]
    figures = label_cells(cells, ",".join(apart)) if apart else ""
    found: pd.DataFrame = cells.assign(_row=methods, _column=settings, _figure=figures).loc[shown]
    return found


def list_varying_settings(cells: pd.DataFrame) -> list[str]:
    """Return the varying dotted keys of a configuration's plain sections (clients, training, evaluation)."""
    return [
        name
        for name in map(str, cells)
        if "." in name
        and name.partition(".")[0] not in (*COMPONENTS, "metrics", "chosen")
        and cells[name].nunique(dropna=False) > 1
    ]


def _label_by_key(
    cells: pd.DataFrame, key: str, always: Sequence[str] = (), names: Mapping[str, str] = MappingProxyType({})
) -> pd.Series:
    columns = [str(name) for name in cells]
    if key in columns and key != "spec":
        words = cells[key].where(cells[key].notna(), "-").map(str if key == "clients.per_round" else _format)
        return words.map(lambda word: names.get(word, word)) if key.endswith(".name") else words
    if f"{key}.name" not in cells:
        sections = {name.removesuffix(".name") for name in columns if name.endswith(".name")}
        raise unknown_key("--rows/--cols", key, cells, {*sections, "seed"})
    options = [name for name in columns if name.startswith(f"{key}.") and name != f"{key}.name"]
    kinds, specs = list(cells[f"{key}.name"]), list(cells["spec"])
    values = {name: cells[name].astype(object).where(cells[name].notna(), None).tolist() for name in options}
    of_kind: dict[str, list[int]] = defaultdict(list)
    for row, kind in enumerate(kinds):
        of_kind[kind].append(row)
    titles = dict[str, dict[str, str]]()
    varying = {
        kind: {name for name in options if len({values[name][row] for row in rows}) > 1}
        for kind, rows in of_kind.items()
    }
    of_any = set().union(*varying.values())  # a method with a single row says what it has of these
    for kind, rows in of_kind.items():
        spec = specs[rows[0]]
        known = PARTITIONS.get(str(spec.get("partition.name")))  # its required options are part of a partition's name
        required = known.list_required() if known else spec.plugins.required.get(str(spec.get("partition.name")), [])
        named = {*(f"partition.{option}" for option in required), *always}
        titles[kind] = {
            name: names.get(name) or spec.get_symbol(key, name.removeprefix(f"{key}."))
            for name in options
            if name in named or name in (varying[kind] or of_any)
        }
    labels = list[str]()
    for row, kind in enumerate(kinds):
        given = [(title, values[name][row]) for name, title in titles[kind].items()]
        said = [f"{title}={_format(value)}" for title, value in given if value is not None]
        labels.append(" ".join(filter(None, [names.get(kind, kind), *said])))
    return pd.Series(labels, cells.index, dtype=object)


def _format(value: Any) -> str:
    """Return a value as labels have it; a text, such as `1.0` (`make_frame`), as it is."""
    return value if isinstance(value, str) else shorten_number(value)


def list_dotted(cells: pd.DataFrame) -> list[str]:
    """Return the dotted keys of the cells' configurations."""
    return [str(name) for name in cells if "." in str(name) and not str(name).startswith(("metrics.", "chosen."))]


def find_key(given: str, cells: pd.DataFrame) -> str:
    """Return the dotted key that its last part or its letter names, `rho` or `ρ`, if one alone does; else as given."""
    keys = list_dotted(cells)
    if given in ("", *keys):
        return given
    named = [key for key in keys if given in (key.split(".")[-1], find_symbol(key, cells))]
    found = [key for key in named if cells[key].nunique() > 1] or named
    return found[0] if len(found) == 1 else given


def find_keys(given: str, cells: pd.DataFrame) -> str:
    """Return sections and keys with commas, each key as `find_key` completes it."""
    sections = {name.partition(".")[0] for name in list_dotted(cells)}
    return ",".join(one if one in {*sections, "seed"} else find_key(one, cells) for one in given.split(","))


def refuse_one_value(option: str, key: str, values: pd.Series) -> None:
    """Raise UserError if the values of a key along an axis are none or one."""
    if values.nunique() < 2:
        beside = ", not counting none" * bool(values.isna().any())
        raise UserError(f"{option}: {key} has one value in this sweep{beside}; a key that varies is required")


def unknown_row(option: str, given: str, rows: Iterable[str]) -> UserError:
    """Return the error for a label that is no row; a method's name may mean each of its rows."""
    known = list(dict.fromkeys(rows))
    return unknown(
        option,
        given,
        known,
        meant=" or ".join(repr(row) for row in known if row.lower().startswith(f"{given.lower()} ")),
    )


def unknown_key(option: str, key: str, cells: pd.DataFrame, others: Iterable[str] = ()) -> UserError:
    """Return the error for an option that is neither a dotted key of the cells nor one of the other names.

    It names the keys that vary, and what was meant among all: a key may be given by its last part, `rho` or `roh`, or
    by another framework's word.
    """
    keys = set(list_dotted(cells))
    words = {name: [name] for name in keys.union(others)}
    for name in sorted(keys):
        words.setdefault(name.rpartition(".")[2], []).append(name)
    meant = words.get(MEANT[key] if MEANT.get(key) in words else find_nearest(key, words, 0.5), [])
    varying = {name for name in keys if cells[name].nunique(dropna=False) > 1}
    return unknown(option, key, varying.union(others), meant=" or ".join(map(repr, meant)))
