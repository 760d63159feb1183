"""docs/algorithms.md, generated from the code: `python -m docs.generate.algorithms > docs/algorithms.md`.

A test keeps the page current. A method's entry consists of its docstring, fields and measured cost.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from fedray.algorithms import ALGORITHMS
from fedray.algorithms.base import Algorithm
from fedray.common.errors import FORMS
from fedray.components.base import describe_allowed, format_value
from fedray.components.plugins import list_form_options
from fedray.engine.cost import Cost, measure_cost
from fedray.papers.variants import VARIANTS

INTRODUCTION = """\
# Algorithms

Notation: `x` global model, `y` local model, `g(y)` mini-batch gradient of the mean loss at `y` (without weight decay),
`u_i = y_K - x` client i's update over its `K_i` local steps, `U = Σ π_i u_i` the cohort's average (`π` from
`training.aggregation`), `N` clients, `M` of them in the cohort, `η_t` the local and `η_g` the server's learning rate
(`training.server_lr`), `unit(v) = v/(||v|| + 1e-7)` with one norm over all parameters.

**Every local step** descends the method's direction `q` in the same way: `q` is clipped (`training.clip_norm`), then
`q <- q + wd y`, `v <- m v + q`, `y <- y - η_t v`; `v` starts at 0 in every round, and `η_t = lr · lr_decay^t`, unless
`training.lr_schedule` or `warmup` says otherwise. With `training.optimizer: adamw` or `muon` the clipped `q` enters
the moments, and `wd y` is added to what they give ([configuration](configuration.md#trainingadamw)); a method whose
formulas hold for SGD alone is refused with these.
With `training.clip_scope: code` the `α y` or `μ y` of dual and proximal methods is added after clipping, as in
FL-Simulator's code (D-12); that of `feddc`, `fedacg` and `fednova` stays in `q`. Unless a method says otherwise,
`x <- x + η_g U`. Perturbations of sharpness-aware methods include neither weight decay nor clipping, and use the
batch of the step.
Each gradient has a dropout mask of its own: that a method is another one for some value, as with ρ = 0, holds without
dropout if one of the two takes more gradients.

**Costs** are measured, in multiples of the model, per participant and round: sent down and up, kept by a client and
(in addition to `x`) by the server; then backward passes per local step. A tensor sent under two names counts once;
single numbers are free.
Marks such as D-22 name the entries of [Where papers and code differ](discrepancies.md), which explains each; a
method's entry says how fedray reads them.
"""

FORMS_INTRODUCTION = """
## Other forms

A method's class holds its paper's formula, what its tables vary and what one tunes. What other people's code has in the
formula's place, and what a paper prints otherwise, are options of METHOD@forms: `algorithm: {name: scaffold@forms,
divisor: effective}`. Its other options are METHOD's, and with the defaults it gives METHOD's numbers, in cells of its
own."""
TABLE = ["| option | default | allowed | meaning | papers' values |", "|---|---|---|---|---|"]


def page() -> str:
    """Return the whole page in Markdown."""
    kinds = {name: (kind, measure_cost(kind())) for name, kind in ALGORITHMS.items()}
    head = ["| method | idea | down | up | client | server | gradients |", "|---|---|---|---|---|---|---|"]
    rows = [
        f"| [{name}](#{name}) | {_cell(kind.idea)} | {' | '.join(_multiples(found))} |"
        for name, (kind, found) in kinds.items()
    ]
    entries = [entry(kind, found) for kind, found in kinds.values()]
    forms = [FORMS_INTRODUCTION]
    for kind in VARIANTS.values():
        added = list_form_options(kind.name.removesuffix(FORMS))
        forms += ["", f"### {kind.name}", "", _text(inspect.cleandoc(kind.__doc__ or "")), "", *TABLE]
        forms += [_option(name, field) for name, field in kind.model_fields.items() if name in added]
    return "\n".join([INTRODUCTION, *head, *rows, *entries, *forms]) + "\n"


def entry(kind: type[Algorithm], found: Cost) -> str:
    """Return one method's entry: its docstring (the first paragraph is the formula), options, cost."""
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
            *TABLE,
            *(_option(name, field) for name, field in kind.model_fields.items()),
        ]
    extra = [f", forward passes without gradient per step: {_number(found.predictions)}"] * (found.predictions > 0)
    of_shard = {"gradients": found.full_gradients, "forward passes": found.full_predictions}
    extra += [f", {what} of the whole shard per round: {_number(many)}" for what, many in of_shard.items() if many > 0]
    lines += [
        "",
        f"Cost: down {down}, up {up}, client {client}, server {server}; gradients per step: {gradients}"
        f"{''.join(extra)}.",
    ]
    return "\n".join(lines)


def _option(name: str, field: FieldInfo) -> str:
    default = str(field.default).lower() if isinstance(field.default, bool) else format_value(field.default)
    extra = field.json_schema_extra
    paper: Any = extra.get("paper", {}) if isinstance(extra, Mapping) else {}
    values = "; ".join(
        f"{who}: {format_value(value) if not isinstance(value, list) else ', '.join(map(str, value))}"
        for who, value in paper.items()
    )
    return f"| `{name}` | {default} | {describe_allowed(field)} | {_cell(field.description or '')} | {_cell(values)} |"


def _multiples(found: Cost) -> list[str]:
    return [_number(value) for value in (found.down, found.up, found.client, found.server, found.gradients)]


def _number(value: float) -> str:
    """Format `2`, `1.5`; less than a hundredth of a model counts as 0."""
    return f"{round(value, 2):g}"


def _text(text: str) -> str:
    """Turn a docstring's prose into Markdown, escaping its marks outside of `code`."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_~|\\]|\](?=\())", r"\\\1", part).replace("<", "&lt;")
        for part in parts
    )


def _cell(text: str) -> str:
    return _text(text).replace("\n", " ")


if __name__ == "__main__":
    print(page(), end="")
