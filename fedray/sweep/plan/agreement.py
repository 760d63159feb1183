"""Checks that a stranger's configuration of a cell is the one that the cell's identity describes."""

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import ValidationError

from fedray.algorithms import algorithm
from fedray.cells.spec import drop_removed
from fedray.common.errors import UserError, truncate_repr
from fedray.components.base import Checked, Component, describe
from fedray.components.identity import iter_parts, list_files
from fedray.components.plugins import NotTrusted, guard_imports, name_forms
from fedray.config import NUMERICS, RunConfig
from fedray.datasets import make_data_source
from fedray.models import make_model_spec
from fedray.partitions import make_partition

COMPONENTS = {"data": make_data_source, "partition": make_partition, "model": make_model_spec, "algorithm": algorithm}
DERIVED = {"data": {"digest"}, "training": {"channels_last"}}
"""Section -> entries of its identity that depend on more than this section of the configuration."""
DEFAULT = "the default"
"""Shown in messages as the value of an entry that an identity leaves out."""
ADDED = {"numerics", "revisions", "sources"}
"""Entries of an identity that belong to no section."""


def refuse_disagreement(config: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a configuration that differs from its cell's identity, as far as fedray knows the classes it names.

    Nothing is imported and no file is read: a section with a plug-in is not compared, and for a path only its presence
    is. Another `NUMERICS` or `revision` than this version's can mean other defaults, so those are not compared either,
    and neither are keys that this version no longer has.

    Raises:
        UserError: a key differs; the message names it.
    """
    if identity.get("numerics") != NUMERICS:
        return
    config, identity = name_forms(drop_removed(config)), name_forms(drop_removed(identity))
    if other := (identity.keys() - RunConfig.model_fields.keys() - ADDED) | (config.keys() - RunConfig.model_fields):
        raise UserError(f"{min(other)}: a configuration has no such key")
    with guard_imports(_refuse_import):
        try:
            run = RunConfig.parse(config)
        except NotTrusted:
            run = None
        for name in RunConfig.model_fields:
            try:
                section = getattr(run, name) if run is not None else _build(name, config)
            except NotTrusted as error:
                if str(error) not in _get_entries(identity, "sources"):
                    raise UserError(f"sources: the identity of the cell has no digest of {error}") from None
                continue
            _compare(name, section, identity)


def _refuse_import(path: str) -> NoReturn:
    raise NotTrusted(path)


def _build(name: str, config: Mapping[str, Any]) -> Any:
    """Return one section of a configuration whose other sections may be impossible to build."""
    field = RunConfig.model_fields[name]
    if name in COMPONENTS:
        return COMPONENTS[name](config.get(name))
    if name not in config:
        return field.default
    if not (inspect.isclass(kind := field.annotation) and issubclass(kind, Checked)):
        return config[name]
    try:
        return kind.model_validate(config[name])
    except ValidationError as error:
        raise describe(error, name, kind) from None


def _compare(name: str, section: Any, identity: Mapping[str, Any]) -> None:
    if not isinstance(section, Checked):
        _refuse_other(name, section, identity.get(name, RunConfig.model_fields[name].default))
        return
    revisions = _get_entries(identity, "revisions")
    for part in iter_parts(section):
        if part.count_revisions() != revisions.get(
            part.name if isinstance(part, Component) else type(part).__name__, 0
        ):
            return
    files = list_files(type(section))
    mine = section.model_copy(update=dict.fromkeys(files)).list_identity_entries()
    theirs = _get_entries(identity, name)
    for file in files:
        mine.pop(file, None)
        _refuse_other(f"{name}.{file}", getattr(section, file) is not None, theirs.pop(file, None) is not None)
    for key in sorted((mine.keys() | theirs.keys()) - DERIVED.get(name, set())):
        _refuse_other(f"{name}.{key}", mine.get(key, DEFAULT), theirs.get(key, DEFAULT))


def _get_entries(identity: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = identity.get(name, {})
    if not isinstance(found, Mapping):
        raise UserError(f"identity.{name}: expected a mapping, got {truncate_repr(found)}")
    return dict(found)


def _refuse_other(key: str, mine: Any, theirs: Any) -> None:
    if mine != theirs:
        raise UserError(
            f"{key}: the configuration says {truncate_repr(mine)}, the identity of the cell {truncate_repr(theirs)}"
        )
