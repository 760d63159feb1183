"""Descriptions of an option's type for readers."""

import inspect
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedray.components.base import Component

NAMES = {int: "integer", float: "number", str: "text", type(None): "null"}


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
