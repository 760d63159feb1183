"""`fedray list`: what there is to choose from, a line each, or one entry's page."""

import inspect
import shutil
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedray.common.errors import unknown

COMPONENTS = ("algorithms", "models", "datasets", "partitions")
KINDS = (*COMPONENTS, "metrics", "sweeps")


def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(KINDS))],
    name: Annotated[str | None, typer.Argument(help="show this entry's page: formula, options, paper, cost")] = None,
) -> None:
    """What there is to choose from, a line each; with a NAME all about that one."""
    if what not in KINDS:
        raise unknown("list", what, KINDS)
    if name is None:
        print(overview(what))
        return
    entries = registry(what) if what in COMPONENTS else lines(what)
    if name not in entries:
        raise unknown(f"list {what}", name, entries)
    print(page(what, name) if what in COMPONENTS else f"{name}: {entries[name]}")


def registry(what: str) -> Mapping[str, Any]:
    """Name -> class of one of COMPONENTS."""
    from fedray.algorithms import ALGORITHMS
    from fedray.datasets import DATASETS
    from fedray.models import MODELS
    from fedray.partitions import PARTITIONS

    registries: dict[str, Mapping[str, Any]] = {
        "algorithms": ALGORITHMS,
        "models": MODELS,
        "datasets": DATASETS,
        "partitions": PARTITIONS,
    }
    return registries[what]


def lines(what: str) -> dict[str, str]:
    """Name -> what it is, in one line."""
    if what == "metrics":
        from analysis.reading.metrics import COMPUTED, NAMES

        return NAMES | COMPUTED | {"rounds_to:PERCENT": "first evaluated round with that test accuracy"}
    if what == "sweeps":
        from fedray.sweep.file.shipped import folder, names
        from fedray.sweep.grid import Sweep

        files = {name: folder() / f"{name}.yaml" for name in names()}
        return {name: _description(Sweep, file) for name, file in files.items()}
    return {name: getattr(kind, "idea", "") or kind.row()[1] for name, kind in sorted(registry(what).items())}


def _description(sweep: Any, file: Any) -> str:
    from fedray.common.yaml_files import load_yaml

    return sweep.load(file).description if "base" in load_yaml(file) else "one run, for `fedray run`"


def overview(what: str) -> str:
    """A line each; on a terminal cut to its width, in a pipe to 100 characters."""
    entries = lines(what)
    widest = max(map(len, entries)) + 2
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    rows = [f"{name:<{widest}}{text}".rstrip() for name, text in entries.items()]
    if what == "metrics":
        notes = (
            "With `last10_` before a name: the mean of the last 10 evaluated rounds; `best_` (accuracies): the best "
            "round on the\ntest set; without either: the last round. evaluation.probes adds metrics of its own."
        )
        return "\n".join([*(_cut(row, width) for row in rows), "", notes])
    return "\n".join(_cut(row, width) for row in rows)


def _cut(row: str, width: int) -> str:
    return row if len(row) <= width else row[: width - 1].rstrip() + "…"


def page(what: str, name: str) -> str:
    """An entry: what it is, where from, its definition, its options; of a method what it costs."""
    from fedray.common.component import as_written
    from fedray.common.options import allowed

    kind = registry(what)[name]
    idea = getattr(kind, "idea", "")
    text = [f"{name}: {idea}" if idea else name, *([f"  {kind.paper}"] if kind.paper else []), ""]
    text += [f"  {line}".rstrip() for line in inspect.cleandoc(kind.__doc__ or "").splitlines()]
    if kind.model_fields:
        text += ["", "options:"]
    for option, field in kind.model_fields.items():
        default = field.default.name if hasattr(field.default, "name") else as_written(field.default)
        given = "required" if field.is_required() else default
        text.append(f"  {option} = {given}    ({allowed(field).replace('`', '')})")
        text += [f"      {field.description}"] if field.description else []
    if what == "algorithms":
        from fedray.engine.cost import cost

        text += ["", f"cost, in multiples of the model: {cost(kind())}"]
    return "\n".join(text)
