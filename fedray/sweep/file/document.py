"""The contents of a sweep file and of the file that it extends."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.common.errors import UserError, name_place, truncate_repr
from fedray.common.yaml_files import format_flow, load_yaml, locate
from fedray.sweep.file.changes import change_runs
from fedray.sweep.file.shipped import locate_sweep

EXTENDS = "extends"


def load_document(path: Path) -> dict[str, Any]:
    """Return the contents of a sweep's or a run's file.

    A sweep that `extends` another has the other's keys except those that it gives itself, an empty list for none; keys
    of its `base` are set in all runs of the other (`change_runs`).

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
    other, changes = _load(file, (*readers, path.resolve())), own.get("base", {})
    if not isinstance(other.get("base"), Mapping):
        raise UserError(f"{path}: {EXTENDS}: {file} has no `base`; the file of a sweep is required")
    if own.get("name", other.get("name")) == other.get("name"):
        raise UserError(f"{path}: name: a sweep that extends {file} needs a name of its own")
    if not isinstance(changes, Mapping):
        raise UserError(f"{path}: base: found {truncate_repr(changes)}, which is not a mapping")
    kept = {key: value for key, value in other.items() if key == "base" or key not in own}

    def advise(place: str, value: Any) -> str:
        section, _, key = place.partition(".")
        if section == "search":
            return "leave it out"
        return f"try a grid of your own, `grid: {format_flow({**kept[section], key: value})}`"

    left_out = [key for key, value in own.items() if value == [] and key in other]
    with name_place(f"{path}: base"):
        whole = other | own | change_runs(kept, changes, "", advise)
    return {key: value for key, value in whole.items() if key not in left_out}


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
