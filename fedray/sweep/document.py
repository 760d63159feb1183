"""Sweep files: the shipped ones, named without a path (`quickstart`, `fedtoga/table1`), and the contents of a file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.common.errors import UserError, find_nearest, name_place, truncate_repr
from fedray.common.yaml_files import is_yaml, load_yaml, locate


def get_sweeps_folder() -> Path:
    """Return the folder of the sweeps: inside the package in an installed wheel, next to it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "sweeps"
    return inside if inside.is_dir() else package.parent / "sweeps"


def list_sweeps() -> list[str]:
    """Return `quickstart`, `fedtoga/table1`, ..., sorted, without cluster templates."""
    root = get_sweeps_folder()
    files = (path.relative_to(root) for path in root.rglob("*.yaml"))
    return sorted(path.with_suffix("").as_posix() for path in files if path.parts[0] != "clusters")


def list_cluster_files() -> list[Path]:
    """Return the scripts and templates for clusters, and their page, sorted by name."""
    return sorted(path for path in (get_sweeps_folder() / "clusters").iterdir() if path.is_file())


def list_papers() -> list[str]:
    """Return the papers whose sweeps are shipped, sorted: `fedgela`, ..."""
    return sorted(path.parent.name for path in get_sweeps_folder().glob("*/printed.yaml"))


def locate_sweep(file: Path) -> Path:
    """Return the file itself if it exists, otherwise the shipped sweep of that name; a folder does not hide it.

    Raises UserError, which names the nearest shipped sweep, if neither exists; other YAML files are left alone.
    """
    known = list_sweeps()
    if file.as_posix() in known and (file.is_dir() or not file.exists()):
        return get_sweeps_folder() / f"{file}.yaml"
    if file.exists():
        return file
    missing = f"{truncate_repr(str(file))}: there is no such file"
    if is_yaml(file):
        if (shipped := file.with_suffix("").as_posix()) in known:
            raise UserError(f"{missing}; {shipped} is the sweep that fedray has")
        return file
    near = find_nearest(file.as_posix(), known, 0.5)
    hint = f"did you mean {near}?" if near else "`fedray list sweeps` names them all"
    raise UserError(f"{missing} and no shipped sweep of that name; {hint}")


EXTENDS = "extends"


def load_document(path: Path, readers: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the contents of a sweep's or a run's file.

    A sweep that `extends` another has the other's keys unless it gives them itself, an empty list for none; keys
    of its `base` are set in all runs of the other (`points.Change`). readers: files that extend this one. Raises
    UserError, which names the file, if one cannot be read, or extends something that it cannot.
    """
    document = load_yaml(path)
    if EXTENDS not in document:
        return document
    if path.resolve() in readers:
        raise UserError(f"{path}: {EXTENDS}: the file extends itself")
    file = _locate(path, document.pop(EXTENDS))
    other, changes = load_document(file, (*readers, path.resolve())), document.pop("base", {})
    if not isinstance(other.get("base"), Mapping):
        raise UserError(f"{path}: {EXTENDS}: {file} has no `base`; the file of a sweep is required")
    if document.get("name", other.get("name")) == other.get("name"):
        raise UserError(f"{path}: name: a sweep that extends {file} needs a name of its own")
    if not isinstance(changes, Mapping):
        raise UserError(f"{path}: base: found {truncate_repr(changes)}, which is not a mapping")
    whole = {key: value for key, value in (other | document).items() if value != [] or key not in other}
    earlier, before = other.get("changes", []), list_axes(document)
    if changes or (earlier and before):
        whole["changes"] = [*earlier, {"origin": "base", "values": changes, "before": before}]
    return whole


def list_axes(document: Mapping[str, Any]) -> list[str]:
    """Return the names of what a file varies: `grid.KEY`, `cases.NAME` (a list is one axis, `cases`), `search.KEY`."""
    given = [(section, document.get(section)) for section in ("grid", "cases", "search")]
    names = [(section, [section] if isinstance(of, list) else of) for section, of in given]
    return [f"{section}.{name}" for section, of in names if isinstance(of, list | Mapping) for name in of]


def _locate(path: Path, written: Any) -> Path:
    """Return the file that `path` extends: one relative to it, or a shipped sweep."""
    key = f"{path}: {EXTENDS}"
    if not isinstance(written, str):
        raise UserError(f"{key}: found {truncate_repr(written)}; a sweep's name or file is required")
    file = locate(key, written)
    if is_yaml(file):
        if not os.path.lexists(path.parent / file):
            raise UserError(f"{key}: {path.parent / file}: cannot be read: No such file or directory")
        return path.parent / file
    with name_place(key):
        return locate_sweep(file)
