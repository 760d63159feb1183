"""docs/configuration.md, generated from the code: `python -m docs.generate.configuration > docs/configuration.md`."""

from collections.abc import Collection, Container, Mapping

from pydantic import BaseModel

from fedray.algorithms.local_optimizers import AdamWOptions, MuonOptions
from fedray.components.base import Component, describe_allowed, format_value
from fedray.config import Personal, RunConfig
from fedray.config.training import LrStep
from fedray.datasets import DATASETS
from fedray.datasets.base import DataSource, Test, Validation
from fedray.models import MODELS
from fedray.models.base import ModelSpec
from fedray.models.lora import LoRA
from fedray.partitions import PARTITIONS
from fedray.sweep.space import Searcher
from fedray.sweep.sweep import Final, Scheduler, Tune

INNER: dict[str, dict[str, type[BaseModel]]] = {
    "training": {"adamw": AdamWOptions, "muon": MuonOptions, "lr_step": LrStep},
    "evaluation": {"personal": Personal},
}
"""Section -> the sections inside it."""
INTRODUCTION = """# A run's configuration

A run is a YAML file or a dictionary with these sections.
`data`, `partition`, `model` and `algorithm` are chosen by `name` and have their own options (the name alone is enough
if no option is required). Unknown keys are refused. In a sweep file these sections are below `base`; its other
sections come last on this page.
"""


MANY = 4
"""An option that this many entries of a section share stands in one table, with their names."""


def _table(kind: type[BaseModel], leave_out: Container[str] = ()) -> list[str]:
    """Return the lines of a table of a section's keys; none if there are no keys, or no others than `leave_out`."""
    lines = []
    for key, field in kind.model_fields.items():
        name = field.alias or key
        default = "required" if field.is_required() else f"`{format_value(field.default)}`"
        line = f"| `{name}` | {default} | {describe_allowed(field)} | {field.description or ''} |"
        lines += [line] if key not in leave_out and line not in leave_out else []
    return ["| key | default | allowed | meaning |", "|---|---|---|---|", *lines, ""] if lines else []


def _components(registry: Mapping[str, type[Component]], leave_out: Collection[str] = ()) -> list[str]:
    owners: dict[str, list[str]] = {}
    for name, kind in registry.items():
        for line in _table(kind, leave_out)[2:-1]:
            owners.setdefault(line, []).append(f"`{name}`")
    shared = {line: names for line, names in owners.items() if len(names) >= MANY}
    lines: list[str] = []
    if shared:
        lines += ["Several take these options:", ""]
        lines += ["| key | default | allowed | meaning | taken by |", "|---|---|---|---|---|"]
        lines += [*(f"{line} {', '.join(names)} |" for line, names in shared.items()), ""]
    for name, kind in registry.items():
        lines += [f"### `{name}`", "", " ".join((kind.__doc__ or "").split()), ""]
        lines += [f"*{kind.paper}*", ""] if kind.paper else []
        lines += _table(kind, {*leave_out, *shared})
    return lines


def page() -> str:
    """Return the whole page in Markdown."""
    lines = [INTRODUCTION, "## `seed`", "", "Integer in [0, 2^32), 0 by default. It fixes every random draw.", ""]
    for name in ("clients", "training", "evaluation", "runtime"):
        section = RunConfig.model_fields[name].annotation
        assert isinstance(section, type)  # noqa: S101 (for the type checker)
        lines += [f"## `{name}`", "", " ".join((section.__doc__ or "").split()), "", *_table(section)]
        for key, part in INNER.get(name, {}).items():
            lines += [f"### `{name}.{key}`", "", " ".join((part.__doc__ or "").split()), "", *_table(part)]
    lines += ["## `data`", "", "Every data set takes `validation` and `test` in addition to its own options:", ""]
    for key, held, default in (
        ("validation", Validation, "nothing is held out"),
        ("test", Test, "the official test set"),
    ):
        what = " ".join((held.__doc__ or "").split())
        lines += [f"### `data.{key}`", "", f"{what} Default: {default}.", "", *_table(held)]
    lines += _components(DATASETS, DataSource.model_fields)
    lines += ["## `partition`", "", *_components(PARTITIONS)]
    lines += [
        "## `model`",
        "",
        "[Models](models.md) explains these keys, which every model takes in addition to its own:",
    ]
    lines += ["", *_table(ModelSpec), "### `model.lora`", "", " ".join((LoRA.__doc__ or "").split()), "", *_table(LoRA)]
    lines += _components(MODELS, ModelSpec.model_fields)
    lines += ["## `algorithm`", "", "See [algorithms.md](algorithms.md).", ""]
    lines += [
        "## Sections of a sweep file",
        "",
        "In addition to `base`; [The sweep file](sweep-file.md) explains all keys.",
        "",
    ]
    for name, section in (("searcher", Searcher), ("scheduler", Scheduler), ("tune", Tune), ("final", Final)):
        lines += [f"### `{name}`", "", " ".join((section.__doc__ or "").split()), "", *_table(section)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
