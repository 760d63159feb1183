"""The common base of data sets, partitions, models, algorithms and probes: a name, typed options, a paper.

A component is a frozen pydantic model whose fields are the options a user writes next to `name:`.
`fedray.components.plugins` turns a section of a configuration into a component.
"""

import inspect
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from fedray.common.errors import NEAREST, UserError, truncate_repr, unknown
from fedray.common.yaml_files import format_flow
from fedray.components.identity import (
    EXCLUDED,
    digest_file,
    list_default_entries,
    list_files,
    make_entry,
    sum_revisions,
)

LARGEST = 3.4e38
"""Numbers above this are infinite in float32."""
WANTED = {"model_type": "mapping", "dict_type": "mapping", "tuple_type": "list", "list_type": "list"}
"""Pydantic's error types, and the YAML name of the type that each expected."""
ONE_VALUE = ("float_type", "int_type", "bool_type", "string_type", "literal_error")
"""Pydantic's error types for a key that takes one value."""
NAMES = {int: "integer", float: "number", str: "text", type(None): "null"}
PHRASES = {
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "a valid tuple": "a list",
}
"""Pydantic's words for a type, after which it says how its parser failed -> those of messages."""


class Checked(BaseModel):
    """Base of everything a user writes: frozen, without unknown keys or infinities; `true` is not 1."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )

    revision: ClassVar[int] = 0
    """Increment when a fix changes the numbers of this class (`fedray.components.identity`)."""

    section: ClassVar[str] = ""
    """The section of a configuration that chooses a component."""
    place: ClassVar[str] = "configuration"
    """What messages call the whole of it."""
    of_file: ClassVar[tuple[str, ...]] = ()
    """Keys that only a file may have, which are replaced while it is read."""

    @classmethod
    def suggest(cls, above: str, key: str) -> str:
        """Return what was probably meant by a key that is unknown here, as text; empty if only its spelling can tell.

        `above` is the dotted name of the section that holds it. Raises UserError if it belongs somewhere else
        altogether.
        """
        return ""

    def count_revisions(self) -> int:
        """Return the revision that enters an identity: the sum of its own and of its base classes'."""
        return sum_revisions(type(self))

    def list_identity_entries(self) -> dict[str, Any]:
        """Return the options that enter the identity of a cell (all that are not the default), in JSON types."""
        defaults, entries = list_default_entries(type(self)), dict(self.model_extra or {})
        files = list_files(type(self))
        for name, field in type(self).model_fields.items():
            value, default = make_entry(getattr(self, name)), defaults.get(name)
            is_mixed = len(_list_types(type(self), name) & {bool, int, float}) > 1  # 1, 1.0 and true differ then
            is_default = name in defaults and value == default and (not is_mixed or repr(value) == repr(default))
            if EXCLUDED not in field.metadata and not is_default:
                entries[name] = digest_file(f"{self.section}.{name}", value) if name in files else value
        return entries

    @field_validator("*", mode="before")
    @classmethod
    def _is_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = _list_types(cls, info.field_name or "")
        if kinds & {int, float}:
            if bool not in kinds and _holds_any(value, lambda item: isinstance(item, bool)):
                raise ValueError("expected a number, got a boolean")
            if _holds_any(value, _is_too_large):
                raise ValueError("the number is too large")
        return value


@cache
def _list_types(kind: type[BaseModel], field: str) -> set[Any]:
    """Return the type of a field and all types inside it."""

    def unfold(annotation: Any) -> set[Any]:
        return {annotation}.union(*map(unfold, get_args(annotation)))

    return unfold(kind.model_fields[field].annotation)


def _holds_any(value: Any, holds: Callable[[Any], bool]) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return any(_holds_any(item, holds) for item in value) if isinstance(value, list | tuple) else holds(value)


def _is_too_large(value: Any) -> bool:
    """Return True if a number fits neither float32 nor a 64-bit integer, in which everything is computed."""
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) > LARGEST
    return isinstance(value, int) and abs(value) >= 2**63


class Component(Checked):
    """Base of everything that a configuration chooses by name."""

    name: ClassVar[str] = ""
    """Name in a configuration; for a class of your own it is set to `package.module:Class`."""
    own_name: ClassVar[str] = ""
    """The `name` that a class of your own gives itself: its label."""
    source: ClassVar[str] = ""
    """The digest of the source of a class of your own when this process first named it; empty if it has none."""
    hint: ClassVar[str] = ""
    """End of the error for an unknown name."""
    paper: ClassVar[str] = ""
    """Where the definition comes from: `Li et al., Title, VENUE 2024`, then a comma and a place in it; further papers
    or remarks follow a semicolon."""
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
    """Option -> the paper's letter for it in labels, tables and figures; added to the letters of the base classes."""

    def list_identity_entries(self) -> dict[str, Any]:
        return {"name": self.name, **super().list_identity_entries()}

    @classmethod
    def get_symbol(cls, option: str) -> str:
        """Return the paper's letter for an option, or the option's name if there is none."""
        declared = (vars(kind).get("symbols", {}) for kind in cls.__mro__)
        return next((symbols[option] for symbols in declared if option in symbols), option)

    def list_options(self) -> dict[str, Any]:
        """Return the section as a configuration holds it, in JSON types: `name` and every option, defaults included."""
        return {"name": self.name, **self.model_dump(mode="json")}

    def make_label(self) -> str:
        """Return the name with the options that have no default: `dirichlet(0.1)`, `pathological(3)`, `iid`."""
        required = [format_value(getattr(self, name)) for name in self.list_required()]
        return (self.own_name or self.name) + (f"({', '.join(required)})" if required else "")

    @classmethod
    def list_required(cls) -> list[str]:
        """Return the options without a default, which are part of a label even if they do not vary."""
        return [name for name, field in cls.model_fields.items() if field.is_required()]

    @classmethod
    def make_row(cls) -> tuple[str, str, str]:
        """Return options with defaults, first line of the docstring, and paper, as lists print them."""
        options = [
            (field.alias or name) + ("" if field.is_required() else f"={format_value(field.default)}")
            for name, field in cls.model_fields.items()
        ]
        return ", ".join(options), (cls.__doc__ or "").strip().splitlines()[0], cls.paper

    @classmethod
    def parse(
        cls, section: str, options: Mapping[str, Any], others: Mapping[str, type[BaseModel]] = MappingProxyType({})
    ) -> Self:
        """Build from the options of a section. Raises UserError that names `section.option`; `others` as `describe`."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            raise describe(error, section, cls, others) from None


def option(default: Any, *, paper: Mapping[str, Any], **limits: Any) -> Any:
    """Return a field as pydantic's `Field`, with its values in experiments, in papers and code: where -> which."""
    return Field(default, json_schema_extra={"paper": dict(paper)}, **limits)


def format_value(value: Any) -> str:
    """Return a value as a person writes it in a configuration, a float with at most four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def describe(
    error: ValidationError,
    section: str = "",
    model: type[BaseModel] | None = None,
    others: Mapping[str, type[BaseModel]] = MappingProxyType({}),
) -> UserError:
    """Return the first complaint of a pydantic error as one line: key, what was found, what is allowed.

    The key begins with `section`. Of `others`, which the section may choose, those that have an option that `model`
    lacks are named.
    """
    first = _join_complaints(error)
    if first["type"] == "missing":  # an unknown name next to it is its typing mistake
        strays = (complaint for complaint in error.errors() if complaint["type"] == "extra_forbidden")
        first = next((dict(complaint) for complaint in strays if complaint["loc"][:-1] == first["loc"][:-1]), first)
    if isinstance(cause := first.get("ctx", {}).get("error"), UserError):
        return cause
    path = ".".join(str(part) for part in (section, *first["loc"]) if part != "")
    if first["type"] == "extra_forbidden":
        valid = [] if model is None else _get_fields(model, first["loc"][:-1])
        if model is not None and issubclass(model, Checked) and len(first["loc"]) == 1:
            valid += model.of_file
        above = ".".join(str(part) for part in (section, *first["loc"][:-1]) if part != "")
        key = str(first["loc"][-1])
        having = [name for name, kind in others.items() if key in kind.model_fields and len(first["loc"]) == 1]
        owners = describe_owners(key, having)
        if not valid and model is not None and issubclass(model, Component):
            return UserError(f"{path}: {model.name} has no options{owners}")
        meant = model.suggest(above, key) if model is not None and issubclass(model, Checked) else ""
        place = above or getattr(model, "place", Checked.place)
        if model is not None and issubclass(model, Component) and len(first["loc"]) == 1:
            place += f" {model.name}"
        return UserError(f"{unknown(place, key, valid, meant=meant)}{owners}")
    if first["type"] == "missing":
        return UserError(f"{path} is required")
    if first["type"] in WANTED:
        given = first["input"]
        found = format_flow(given) if isinstance(given, Mapping) else truncate_repr(given)
        wanted = f"{path}: expected a {WANTED[first['type']]}, got {found}"
        keys = [] if model is None else _get_fields(model, first["loc"])
        return UserError(f"{wanted}; its keys: {', '.join(keys)}" if keys else wanted)
    message = first["msg"]
    text = f"{path}: found {truncate_repr(first['input'])}; {message[0].lower()}{message[1:]}"
    is_of_run = model is not None and (issubclass(model, Component) or "algorithm" in model.model_fields)
    if is_of_run and isinstance(first["input"], list) and first["type"] in ONE_VALUE:
        text += f"; several values go into a sweep's `grid`: `{path}: {truncate_repr(first['input'])}`"
    return UserError(text)


def describe_owners(found: str, owners: Sequence[str]) -> str:
    """Return the end of a message that names the classes of the section that allow what was found; empty for none."""
    more = f" and {len(owners) - NEAREST} others" if len(owners) > NEAREST else ""
    return f"; {found!r} belongs to {', '.join(owners[:NEAREST])}{more}" if owners else ""


ALTERNATIVE = re.compile(r"(constrained-)?(int|float|str|bool)$|(literal|list|tuple|dict)\[")
"""Labels that pydantic adds to a location besides keys and numbers: the union member it tried."""


def _join_complaints(error: ValidationError) -> dict[str, Any]:
    """Return the first complaint. The complaints of a union, one for each type, become one.

    If a list has wrong values, the first of them is reported.
    """
    complaints: list[dict[str, Any]] = [{**one, "msg": _rephrase(one["msg"])} for one in error.errors()]
    first, *others = complaints
    at = next((i for i, part in enumerate(first["loc"]) if i and ALTERNATIVE.match(str(part))), None)
    if at is None:
        return first
    place = first["loc"][:at]
    each = [first, *(other for other in others if other["loc"][:at] == place)]
    if inside := [complaint for complaint in each if len(complaint["loc"]) > at + 1]:
        return {**inside[0], "loc": (*place, *inside[0]["loc"][at + 1 :])}
    rest = [other["msg"].removeprefix("Input should be ") for other in each[1:]]
    return {**first, "loc": place, "msg": " or ".join([first["msg"], *rest])}


def _rephrase(message: str) -> str:
    """Return pydantic's message in the words of ours, without how it tried to parse a value."""
    said = message.removeprefix("Value error, ")
    kind = next((kind for kind in PHRASES if said.startswith(f"Input should be {kind}")), None)
    return f"Input should be {PHRASES[kind]}" if kind else said


def _get_fields(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
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


@dataclass(frozen=True)
class Allowed:
    """Marks a field whose checks are stricter than its type; `text` says what it accepts."""

    words: str


def describe_allowed(field: FieldInfo) -> str:
    """Return the values a field accepts: an interval, the names of a choice, or its type; `or` between alternatives."""
    if words := next((mark.words for mark in field.metadata if isinstance(mark, Allowed)), ""):
        return words
    kind = field.annotation
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else [kind]
    return " or ".join(dict.fromkeys(_describe_type(part, field) for part in parts))


def _describe_type(annotation: Any, field: FieldInfo) -> str:
    if get_origin(annotation) is Annotated:
        return _describe_type(*get_args(annotation))
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "a method" if issubclass(annotation, Component) else "a section"
    bounds = {
        name: getattr(bound, name)
        for bound in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(bound, name)
    }
    if annotation is float or (annotation is int and bounds):
        low = f"[{bounds['ge']}" if "ge" in bounds else f"({bounds.get('gt', '-∞')}"
        high = f"{bounds['le']}]" if "le" in bounds else f"{bounds.get('lt', '∞')})"
        return ("integer in " if annotation is int else "") + f"{low}, {high}"
    if annotation is bool:
        return "`true`, `false`"
    return "list" if get_origin(annotation) in (tuple, list) else NAMES.get(annotation, str(annotation))
