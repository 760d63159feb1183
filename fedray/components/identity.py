"""The identity of a cell: what its configuration says beyond the defaults.

A finished cell is found again by the hash of its identity. One rule decides what enters: a field of a section,
algorithm, model, partition or probe enters if it has no default, or if its value is not the default. So a field that is
added later, with a default, changes no hash. The names of components always enter.

- A field that cannot change a number (scheduling, paths) is marked `EXCLUDED` and never enters:

      actors: Annotated[int, EXCLUDED] = Field(1, gt=0)

- A component's field that holds a path is marked `FILE` and enters by a digest of the file's content:

      init: Annotated[str | None, FILE] = Field(None, description="path of ...")

- Data sets enter by a digest of their arrays (`Dataset.digest`), not by their options or files, and a class given as
  `package.module:Class` by a digest of its module's source and of the modules of its folder that this imports.
- If you correct the numbers of a component or section, increment its class attribute `revision`: the cells that use
  it get new hashes. If they were wrong for one value of an option, override `count_revisions` instead: all other cells
  keep their hashes. If you change a default, increment `revision`, or `fedray.config.run.NUMERICS`, which enters every
  identity; `tests/test_defaults.py` holds every default and fails otherwise.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from fedray.common.errors import UserError
from fedray.common.yaml_files import locate_file

EXCLUDED, FILE = object(), object()
"""Marks of a field, in its annotation."""


@cache
def list_default_entries(section: type[BaseModel]) -> dict[str, Any]:
    """Return the defaults of the fields that may enter an identity, in JSON types."""
    return {
        name: make_entry(field.get_default(call_default_factory=True))
        for name, field in section.model_fields.items()
        if EXCLUDED not in field.metadata and not field.is_required()
    }


def make_entry(value: Any) -> Any:
    """Return a field's value as it enters an identity, in JSON types."""
    if hasattr(value, "list_identity_entries"):
        return value.list_identity_entries()
    if isinstance(value, tuple | list):
        return [make_entry(item) for item in value]
    if isinstance(value, set | frozenset):  # whose order differs from process to process
        return sorted(map(make_entry, value), key=repr)
    if isinstance(value, dict):
        return {key: make_entry(item) for key, item in value.items()}
    return to_jsonable_python(value)


def list_files(section: type[BaseModel]) -> list[str]:
    """Return the names of the fields that hold paths."""

    def is_marked(annotation: Any) -> bool:
        return FILE in getattr(annotation, "__metadata__", ()) or any(map(is_marked, get_args(annotation)))

    fields = section.model_fields.items()
    return [name for name, field in fields if FILE in field.metadata or is_marked(field.annotation)]


def iter_parts(value: Any) -> Iterator[Any]:
    """Yield a section or component, and all those inside it."""
    if hasattr(value, "list_identity_entries"):
        yield value
        value = [getattr(value, name) for name in type(value).model_fields]
    elif isinstance(value, dict):
        value = list(value.values())
    for one in value if isinstance(value, tuple | list) else ():
        yield from iter_parts(one)


def list_paths(value: Any) -> list[str]:
    """Return the files and folders that a section or component names, with the sections inside it."""
    named = (getattr(part, name) for part in iter_parts(value) for name in list_files(type(part)))
    paths = (path for one in named for path in (one if isinstance(one, list | tuple) else [one]))
    return [str(path) for path in paths if path is not None]


def sum_revisions(section: type) -> int:
    """Return the sum of the revisions of a class and of the classes it builds on."""
    return sum(vars(kind).get("revision", 0) for kind in section.__mro__)


def digest_file(key: str, path: Any) -> Any:
    """Return the SHA-256 of a file that a configuration names at `key`, or of each of several; None for none.

    Raises UserError if a file is missing or cannot be read.
    """
    if not isinstance(path, str):
        return path and [digest_file(key, one) for one in path]
    try:
        with locate_file(key, path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{key}: {path} cannot be read: {error.strerror}") from None


def hash_of(identity: Mapping[str, Any]) -> str:
    """Return the hash of a cell: the first 16 hexadecimal digits of the SHA-256 of its identity, as sorted JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
