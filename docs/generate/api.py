"""The site's page api.md, made from the docstrings by `make docs`; it is not committed."""

from collections.abc import Iterator

import griffe

import fedray
from fedray.algorithms import base

INTRODUCTION = """# API reference

`import fedray` provides the names in the first part. The second part lists the names that your own method imports from
`fedray.algorithms.base`; [Plug-ins](plug-ins.md) walks through one. The examples begin with these lines, and run from
the top of the page to its end:

```pycon
>>> from types import SimpleNamespace
>>> from typing import ClassVar
>>> import numpy as np
>>> import torch
>>> from torch import Tensor
>>> import fedray
>>> from fedray.algorithms.base import *
>>> from fedray.models.network import Layout, Output
>>> config = {
...     "data": "digits",
...     "partition": "iid",
...     "clients": {"total": 10, "per_round": 2},
...     "model": {"name": "mlp", "hidden": [64]},
...     "algorithm": "fedavg",
...     "training": {"rounds": 2},
... }
>>> client = SimpleNamespace(  # stands in for a client with the loss y²/2
...     theta_0=torch.tensor([1.0]),
...     theta=torch.tensor([2.0]),
...     weight=0.1,
...     grad=lambda theta: theta,
...     x=torch.tensor([[3.0, 4.0]]),
...     y=torch.tensor([1]),
... )
```
"""
ITEMS = {
    "parameters": "- `{0.name}`: ",
    "attributes": "- `{0.name}`: ",
    "raises": "- Raises `{0.annotation}`: ",
    "returns": "- Returns ",
    "yields": "- Returns ",
}
"""Section of a docstring -> the beginning of each of its items."""
HIDDEN = ("model_config", "model_post_init", "list_identity_entries")
"""Public names of a class that belong to pydantic or to the command line."""


def write_page() -> str:
    """Return the whole page in Markdown."""
    package = griffe.load("fedray", docstring_parser="google", resolve_aliases=True)
    lines = [INTRODUCTION, "## `fedray`", ""]
    for name in fedray.__all__:
        if not name.startswith("__"):
            lines += _describe(name, package[f"{fedray._HOMES[name]}.{name}".removeprefix("fedray.")])
    lines += ["## `fedray.algorithms.base`", ""]
    for name in base.__all__:
        if name not in fedray.__all__:
            lines += _describe(name, package[f"algorithms.base.{name}"])
    return "\n".join(lines).rstrip() + "\n"


def _describe(name: str, thing: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the lines of a name: heading, signature, docstring, and a class's members."""
    target = thing.final_target if isinstance(thing, griffe.Alias) else thing
    yield from (f"### `{name}`", "")
    if isinstance(target, griffe.Function):
        yield from ("```python", _signature(name, target), "```", "")
    elif isinstance(target, griffe.Attribute):
        yield from ("```python", f"{name} = {target.value}".replace("'", '"'), "```", "")
    yield from _document(target)
    for one, member in target.members.items() if isinstance(target, griffe.Class) else ():
        if one.startswith("_") or one in HIDDEN or member.is_alias or not member.docstring:
            continue
        if isinstance(member, griffe.Function) and "property" not in member.labels:
            yield from (f"#### `{target.name}.{one}`", "", "```python", _signature(one, member), "```", "")
        else:
            annotation = f": {member.annotation}" if isinstance(member, griffe.Attribute) else ""
            yield from (f"#### `{target.name}.{one}{annotation}`", "")
        yield from _document(member)


def _signature(name: str, function: griffe.Function) -> str:
    """Return the signature as it would be written, on a line for each parameter if it is long."""
    parts, star = [], False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not star:
            parts, star = [*parts, "*"], True
        text = parameter.name + (f": {parameter.annotation}" if parameter.annotation is not None else "")
        parts.append(text + (f" = {parameter.default}" if parameter.default is not None else ""))
    returns = f" -> {function.returns}" if function.returns is not None else ""
    line = f"{name}({', '.join(parts)}){returns}"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){returns}"


def _document(thing: griffe.Object) -> Iterator[str]:
    if thing.docstring is None:
        return
    for section in thing.docstring.parse("google", warnings=False):
        if section.kind.value == "text":
            yield from (section.value, "")
        elif section.kind.value == "examples":
            yield from ("```pycon", *(text for _, text in section.value), "```", "")
        elif begin := ITEMS.get(section.kind.value):
            yield from (begin.format(item) + " ".join(item.description.split()) for item in section.value)
            yield ""


if __name__ == "__main__":
    print(write_page(), end="")
