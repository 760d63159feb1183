"""What data sets, partitions, models, algorithms and probes have in common: a name, typed options, a paper.

A component is a frozen pydantic model whose fields are the options a user writes beside `name:`.
`fedray.common.plugins` turns a section of a configuration into a component.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from fedray.common.errors import UserError, truncated_repr, unknown
from fedray.common.identity import Run, enters, nested, source_digest

LARGEST = 3.4e38
"""Numbers above this are infinite in float32."""
WANTED = {"model_type": "mapping", "dict_type": "mapping", "tuple_type": "list", "list_type": "list"}
"""Pydantic's names of complaints, and what YAML calls what it expected."""


class Checked(BaseModel):
    """Base of whatever a user writes: frozen, no unknown keys, no infinities, and `true` is not 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    revision: ClassVar[int] = 0
    """Raised by one where the numbers of this class were wrong and are corrected; see `fedray.common.identity`.

    A property where only those of some options were wrong."""

    def identity_entries(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """What of this section enters the identity of a cell (`fedray.common.identity`).

        Args:
            written: The section as a configuration holds it, every default filled in, JSON types only.
        """
        found = dict(written)
        for name, field in type(self).model_fields.items():
            if name in found:
                value, as_json = getattr(self, name), found.pop(name)
                found |= {name: nested(value, as_json)} if enters(field, value) else {}
        return found | ({"revision": self.revision} if self.revision else {})

    @field_validator("*", mode="before")
    @classmethod
    def _is_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = _kinds(cls.model_fields[info.field_name or ""].annotation)
        if kinds & {int, float}:
            if bool not in kinds and _any(value, lambda one: isinstance(one, bool)):
                raise ValueError("expected a number, got a boolean")
            if _any(value, _too_large):
                raise ValueError("the number is too large")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """A type and all types inside of it."""
    return {annotation}.union(*map(_kinds, get_args(annotation)))


def _any(value: Any, holds: Callable[[Any], bool]) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return any(_any(one, holds) for one in value) if isinstance(value, list | tuple) else holds(value)


def _too_large(value: Any) -> bool:
    """Whether float32 or a 64-bit integer, which everything is computed in, cannot hold a number."""
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) > LARGEST
    return isinstance(value, int) and abs(value) >= 2**63


class Component(Checked):
    """Base of everything that is chosen by name in a configuration."""

    name: ClassVar[str] = ""
    """The name in a configuration; of a class of the user's own it is set to `package.module:Class`."""
    section: ClassVar[str] = ""
    """The section of a configuration that chooses it."""
    paper: ClassVar[str] = ""
    """Authors, title, venue: where the definition comes from."""
    symbols: ClassVar[Mapping[str, str]] = {
        "rho": "ρ",
        "alpha": "α",
        "beta": "β",
        "kappa": "κ",
        "mu": "μ",
        "lambda": "λ",
        "tau": "τ",
        "gamma": "γ",
    }
    """Option -> the paper's letter for it in labels, tables and figures. A class adds to those of its bases."""

    compares_with_received: ClassVar[bool] = False
    """Whether a method or a probe asks what the received model answers (`c.predict(c.theta_0)`).

    That was answered with the present running statistics once. So cells of models that have such were corrected."""

    def revision_in(self, run: Run) -> int:
        """`revision`, and what was corrected in some runs alone; of methods and probes (`fedray.common.identity`)."""
        return self.revision + int(self.compares_with_received and run.tracks_statistics)

    def identity_entries(self, written: Mapping[str, Any]) -> dict[str, Any]:
        found = super().identity_entries(written)
        return found | ({"source": source_digest(self.section, self.name)} if ":" in self.name else {})

    @classmethod
    def symbol(cls, option: str) -> str:
        """The paper's letter for an option; its name where it has none."""
        declared = (vars(kind).get("symbols", {}) for kind in cls.__mro__)
        return next((symbols[option] for symbols in declared if option in symbols), option)

    def options(self) -> dict[str, Any]:
        """The section as a configuration holds it: `name` and every option, defaults filled in, JSON types only."""
        return {"name": self.name, **self.model_dump(mode="json")}

    def label(self) -> str:
        """`dirichlet(0.1)`, `pathological(3)`, `iid`: the name with the options that have no default."""
        required = [as_written(getattr(self, name)) for name in self.required()]
        return self.name + (f"({', '.join(required)})" if required else "")

    @classmethod
    def required(cls) -> list[str]:
        """The options that have no default: they are part of a name also where they do not vary."""
        return [name for name, field in cls.model_fields.items() if field.is_required()]

    @classmethod
    def row(cls) -> tuple[str, str, str]:
        """Options with defaults, first line of the docstring, paper: what lists print."""
        options = [
            name + ("" if field.is_required() else f"={as_written(field.default)}")
            for name, field in cls.model_fields.items()
        ]
        return ", ".join(options), (cls.__doc__ or "").strip().splitlines()[0], cls.paper

    @classmethod
    def parse(cls, section: str, options: Mapping[str, Any]) -> Self:
        """Build from the options of a section; raises UserError naming `section.option`."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            raise describe(error, section, cls) from None


def as_written(value: Any) -> str:
    """A value as a person writes it in a configuration."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def describe(error: ValidationError, section: str = "", model: type[BaseModel] | None = None) -> UserError:
    """The first complaint of a pydantic error as one line: key, what was found, what is allowed."""
    first = _joined(error)
    if isinstance(cause := first.get("ctx", {}).get("error"), UserError):
        return cause
    path = ".".join(str(part) for part in (section, *first["loc"]) if part != "")
    if first["type"] == "extra_forbidden":
        valid = [] if model is None else _fields_at(model, first["loc"][:-1])
        above = ".".join(str(part) for part in (section, *first["loc"][:-1]) if part != "")
        if not valid and model is not None and issubclass(model, Component):
            return UserError(f"{path}: {model.name} has no options")
        return unknown(above or "configuration", str(first["loc"][-1]), valid)
    if first["type"] == "missing":
        return UserError(f"{path} is required")
    if first["type"] in WANTED:
        return UserError(f"{path}: expected a {WANTED[first['type']]}, got {truncated_repr(first['input'])}")
    message = first["msg"].removeprefix("Value error, ")
    return UserError(f"{path}: found {truncated_repr(first['input'])}; {message[0].lower()}{message[1:]}")


ALTERNATIVE = re.compile(r"(constrained-)?(int|float|str|bool)$|(literal|list|tuple|dict)\[")
"""What pydantic puts into a complaint's place beside keys and numbers: which of several types it was held against."""


def _joined(error: ValidationError) -> dict[str, Any]:
    """The first complaint; where several types are allowed there is one for each, and they become one.

    Of a list that is right but for its values, the first of these is told.
    """
    first, *others = error.errors()
    at = next((i for i, part in enumerate(first["loc"]) if i and ALTERNATIVE.match(str(part))), None)
    if at is None:
        return dict(first)
    place = first["loc"][:at]
    each = [first, *(other for other in others if other["loc"][:at] == place)]
    if inside := [one for one in each if len(one["loc"]) > at + 1]:
        return {**inside[0], "loc": (*place, *inside[0]["loc"][at + 1 :])}
    rest = [other["msg"].removeprefix("Input should be ") for other in each[1:]]
    return {**first, "loc": place, "msg": " or ".join([first["msg"], *rest])}


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        if str(part) not in model.model_fields:
            return []
        annotation = model.model_fields[str(part)].annotation
        # an optional section is that section or null
        annotation = next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)
        if not (inspect.isclass(annotation) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return [field.alias or name for name, field in model.model_fields.items()]
