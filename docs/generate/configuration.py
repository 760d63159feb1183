"""docs/configuration.md, made from the code: `python -m docs.generate.configuration > docs/configuration.md`."""

from collections.abc import Container, Mapping

from pydantic import BaseModel

from fedray.common.component import Component, as_written
from fedray.common.options import allowed
from fedray.config import RunConfig
from fedray.datasets import DATASETS
from fedray.datasets.base import DataSource, Validation
from fedray.models import MODELS
from fedray.partitions import PARTITIONS
from fedray.sections import Personal
from fedray.sweep.file.sections import Final, Scheduler, Tune
from fedray.sweep.file.space import Searcher

INTRODUCTION = """# A run's configuration

*Made by `python -m docs.generate.configuration > docs/configuration.md`; change the code, not this page.*

A run is a YAML file or a dictionary with these sections.
`data`, `partition`, `model` and `algorithm` are chosen by `name` and bring their own options (just a name will do where
no option is required). Unknown keys are refused. In a sweep file these sections stand under `base`; the
sections beside it come last here.
"""


def _table(kind: type[BaseModel], leave_out: Container[str] = ()) -> list[str]:
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for key, field in kind.model_fields.items():
        if key in leave_out:
            continue
        name = field.alias or key
        default = "required" if field.is_required() else f"`{as_written(field.default)}`"
        lines.append(f"| `{name}` | {default} | {allowed(field)} | {field.description or ''} |")
    return [*lines, ""]


def _components(registry: Mapping[str, type[Component]], leave_out: Container[str] = ()) -> list[str]:
    lines: list[str] = []
    for name, kind in registry.items():
        lines += [f"### `{name}`", "", " ".join((kind.__doc__ or "").split()), ""]
        lines += [f"*{kind.paper}*", ""] if kind.paper else []
        lines += _table(kind, leave_out) if kind.model_fields else []
    return lines


def page() -> str:
    """The whole page, markdown."""
    lines = [INTRODUCTION, "## `seed`", "", "Integer, at least 0 (the default). It fixes every random draw.", ""]
    for name in ("clients", "training", "evaluation", "runtime"):
        section = RunConfig.model_fields[name].annotation
        assert isinstance(section, type)  # noqa: S101 (for the type checker)
        lines += [f"## `{name}`", "", " ".join((section.__doc__ or "").split()), "", *_table(section)]
        if name == "evaluation":
            what = " ".join((Personal.__doc__ or "").split())
            lines += ["### `evaluation.personal`", "", what, "", *_table(Personal)]
    what = " ".join((Validation.__doc__ or "").split())
    lines += ["## `data`", "", "Every data set takes `validation` beside its own options:", ""]
    lines += ["### `data.validation`", "", what + " Default: nothing is held out.", "", *_table(Validation)]
    lines += _components(DATASETS, DataSource.model_fields)
    for title, registry in (("partition", PARTITIONS), ("model", MODELS)):
        lines += [f"## `{title}`", "", *_components(registry)]
    lines += ["## `algorithm`", "", "See [algorithms.md](algorithms.md).", ""]
    lines += [
        "## Sections of a sweep file",
        "",
        "Beside `base`; [the sweep file](sweep-file.md) has all of its keys.",
        "",
    ]
    for name, section in (("searcher", Searcher), ("scheduler", Scheduler), ("tune", Tune), ("final", Final)):
        lines += [f"### `{name}`", "", " ".join((section.__doc__ or "").split()), "", *_table(section)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
