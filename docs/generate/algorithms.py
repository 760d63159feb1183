"""docs/algorithms.md, generated from the code: `python -m docs.generate.algorithms > docs/algorithms.md`.

A test keeps the page current. What it says of a method is the method's docstring, fields and measured cost.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from fedray.algorithms import ALGORITHMS
from fedray.algorithms.base import Algorithm
from fedray.common.component import as_written
from fedray.common.options import allowed
from fedray.engine.cost import Cost, measure_cost

INTRODUCTION = """\
# Algorithms

*Made by `python -m docs.generate.algorithms > docs/algorithms.md`; change the code, not this page.*

Notation: `x` global model, `y` local model, `g(y)` mini-batch gradient of the mean loss at `y` (no weight decay in it),
`u_i = y_K - x` client i's update over its `K_i` local steps, `U = Σ π_i u_i` the cohort's average (`π` from
`training.aggregation`), `N` clients, `M` of them in the cohort, `η_t` the local and `η_g` the server's learning rate
(`training.server_lr`), `unit(v) = v/(||v|| + 1e-7)` with one norm over all parameters.

**Every local step** descends the method's direction `q` in the same way: `q` is clipped (`training.clip_norm`), then
`q <- q + wd y`, `v <- m v + q`, `y <- y - η_t v`; `v` starts at 0 in every round, and `η_t = lr · lr_decay^t`.
With `training.clip_scope: code` the `α y` or `μ y` of dual and proximal methods stays out of the clip, as in
FL-Simulator's code (D-12). Unless a method says otherwise, `x <- x + η_g U`. Perturbations of sharpness-aware methods
contain neither weight decay nor clipping, and use the batch of the step.

**Costs** are measured, in multiples of the model, per participant and round: sent down and up, kept by a client and
(beside `x`) by the server; then backward passes per local step. A tensor sent under two names is sent once; numbers are
free.
`D-..` refers to [differences between papers and code](discrepancies.md); each method's entry says how it reads them.
"""


def page() -> str:
    """The whole page, Markdown."""
    kinds = {name: (kind, measure_cost(kind())) for name, kind in ALGORITHMS.items()}
    head = ["| method | idea | down | up | client | server | gradients |", "|---|---|---|---|---|---|---|"]
    rows = [
        f"| [{name}](#{name}) | {_cell(kind.idea)} | {' | '.join(_multiples(found))} |"
        for name, (kind, found) in kinds.items()
    ]
    return "\n".join([INTRODUCTION, *head, *rows, *(entry(kind, found) for kind, found in kinds.values())]) + "\n"


def entry(kind: type[Algorithm], found: Cost) -> str:
    """One method: its docstring (the first paragraph is the formula), options, cost."""
    formula, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    down, up, client, server, gradients = _multiples(found)
    lines = [
        "",
        f"## {kind.name}",
        "",
        f"{kind.idea[:1].upper()}{_text(kind.idea[1:])}. *{_text(kind.paper)}*",
        "",
        "```text",
        formula,
        "```",
    ]
    if rest:
        lines += ["", _text(rest)]
    if kind.model_fields:
        lines += [
            "",
            "| option | default | allowed | meaning | papers' values |",
            "|---|---|---|---|---|",
            *(_option(name, field) for name, field in kind.model_fields.items()),
        ]
    extra = [f", forward passes without gradient per step: {_number(found.predictions)}"] * (found.predictions > 0)
    extra += [f", passes over the whole shard per round: {_number(found.full_gradients)}"] * (found.full_gradients > 0)
    lines += [
        "",
        f"Cost: down {down}, up {up}, client {client}, server {server}; gradients per step: {gradients}"
        f"{''.join(extra)}.",
    ]
    return "\n".join(lines)


def _option(name: str, field: FieldInfo) -> str:
    default = str(field.default).lower() if isinstance(field.default, bool) else as_written(field.default)
    extra = field.json_schema_extra
    paper: Any = extra.get("paper", {}) if isinstance(extra, Mapping) else {}
    values = "; ".join(
        f"{who}: {as_written(value) if not isinstance(value, list) else ', '.join(map(str, value))}"
        for who, value in paper.items()
    )
    return f"| `{name}` | {default} | {allowed(field)} | {_cell(field.description or '')} | {_cell(values)} |"


def _multiples(found: Cost) -> list[str]:
    return [_number(value) for value in (found.down, found.up, found.client, found.server, found.gradients)]


def _number(value: float) -> str:
    """`2`, `1.5`; less than a hundredth of a model counts as 0."""
    return f"{round(value, 2):g}"


def _text(text: str) -> str:
    """Prose of a docstring as Markdown: its marks are letters here, outside of `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_~<|\\])", r"\\\1", part) for part in parts)


def _cell(text: str) -> str:
    return _text(text).replace("\n", " ")


if __name__ == "__main__":
    print(page(), end="")
