"""The contents of a sweep file and of the file that it extends."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.common.errors import UserError, name_place, truncate_repr
from fedray.common.yaml_files import load_yaml, locate
from fedray.sweep.file.shipped import locate_sweep

EXTENDS = "extends"


def load_document(path: Path) -> dict[str, Any]:
    """Return the contents of a sweep's or a run's file.

    A sweep that `extends` another has the other's keys unless it gives them itself, an empty list for none; keys
    of its `base` are set in all runs of the other (`points.Change`).

    Raises:
        UserError: a file cannot be read, or it extends something that it cannot; the message names the file.
    """
    return _load(path, ())


def _load(path: Path, readers: tuple[Path, ...]) -> dict[str, Any]:
    own = load_yaml(path)
    if EXTENDS not in own:
        return own
    if path.resolve() in readers:
        raise UserError(f"{path}: {EXTENDS}: the file extends itself")
    file = _locate(path, own.pop(EXTENDS))
    other, changes = _load(file, (*readers, path.resolve())), own.pop("base", {})
    if not isinstance(other.get("base"), Mapping):
        raise UserError(f"{path}: {EXTENDS}: {file} has no `base`; the file of a sweep is required")
    if own.get("name", other.get("name")) == other.get("name"):
        raise UserError(f"{path}: name: a sweep that extends {file} needs a name of its own")
    if not isinstance(changes, Mapping):
        raise UserError(f"{path}: base: found {truncate_repr(changes)}, which is not a mapping")
    whole = {key: value for key, value in (other | own).items() if value != [] or key not in other}
    if changes:
        before = [f"{axes}.{name}" for axes in ("grid", "cases") for name in _list_axes(axes, own.get(axes))]
        whole["changes"] = [*other.get("changes", []), {"origin": "base", "values": changes, "before": before}]
    return whole


def _list_axes(section: str, axes: Any) -> list[str]:
    """Return the names of a section's axes; a list of cases is one axis, named `cases`."""
    return [section] if isinstance(axes, list) else [*axes] if isinstance(axes, Mapping) else []


def _locate(path: Path, written: Any) -> Path:
    """Return the file that `path` extends: one relative to it, or a shipped sweep."""
    key = f"{path}: {EXTENDS}"
    if not isinstance(written, str):
        raise UserError(f"{key}: found {truncate_repr(written)}; a sweep's name or file is required")
    file = locate(key, written)
    if file.suffix in (".yaml", ".yml"):
        return path.parent / file
    with name_place(key):
        return locate_sweep(file)
