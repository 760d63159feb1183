"""The reference of a run's configuration, made from the code: `python -m fedray.reference > docs/configuration.md`."""

import typing

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedray.component import Component, as_written
from fedray.config import RunConfig
from fedray.data.partition import PARTITIONS
from fedray.data.sources import DATASETS
from fedray.models.zoo import MODELS

INTRODUCTION = """# A run's configuration

Made from the code by `python -m fedray.reference`; do not edit. A run is a YAML file or a dictionary with these sections.
`data`, `partition`, `model` and `algorithm` are chosen by `name` and bring their own options (just a name will do where
no option is required). Unknown keys are refused. In a sweep file these sections stand under `base`.
"""


def _allowed(field: FieldInfo) -> str:
    kind = field.annotation
    names = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "null"}
    parts = typing.get_args(kind) if typing.get_origin(kind) not in (tuple, list) else ()
    texts = []
    for part in parts or (kind,):
        if typing.get_origin(part) is typing.Literal:
            texts += [f"`{value}`" for value in typing.get_args(part)]
        elif isinstance(part, str):
            texts.append(f"`{part}`")
        else:
            texts.append(names.get(part, "list"))  # type: ignore[arg-type]
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    bounds = [f"{sign} {as_written(getattr(rule, name))}" for rule in field.metadata for name, sign in signs.items()
              if getattr(rule, name, None) is not None]
    return " or ".join(dict.fromkeys(texts)) + (f", {', '.join(bounds)}" if bounds else "")


def _table(kind: type[BaseModel]) -> list[str]:
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        default = "required" if field.is_required() else f"`{as_written(field.default)}`"
        lines.append(f"| `{name}` | {default} | {_allowed(field)} | {field.description or ''} |")
    return [*lines, ""]


def _components(registry: typing.Mapping[str, type[Component]]) -> list[str]:
    lines = []
    for name, kind in registry.items():
        lines += [f"### `{name}`", "", " ".join((kind.__doc__ or "").split()), ""]
        lines += [f"*{kind.paper}*", ""] if kind.paper else []
        lines += _table(kind) if kind.model_fields else []
    return lines


def reference() -> str:
    """The whole page, markdown."""
    lines = [INTRODUCTION, "## `seed`", "", "A non-negative integer, default 0. With it every random draw is fixed.", ""]
    for name in ("clients", "training", "evaluation", "runtime"):
        section = RunConfig.model_fields[name].annotation
        assert isinstance(section, type)  # noqa: S101 (for the type checker)
        lines += [f"## `{name}`", "", " ".join((section.__doc__ or "").split()), "", *_table(section)]
    for title, registry in (("data", DATASETS), ("partition", PARTITIONS), ("model", MODELS)):
        lines += [f"## `{title}`", "", *_components(registry)]
    lines += ["## `algorithm`", "", "See [algorithms.md](algorithms.md).", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(reference(), end="")
