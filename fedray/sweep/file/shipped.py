"""The sweep files that come with fedray, named without a path: `quickstart`, `fedtoga/table1`."""

from difflib import get_close_matches
from pathlib import Path

from fedray.common.errors import UserError, truncate_repr


def get_sweeps_folder() -> Path:
    """Return the folder of the sweeps: inside the package in an installed wheel, next to it in a checkout."""
    package = Path(__file__).parents[2]
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

    Raises:
        UserError: neither exists; the message names the nearest shipped sweep.
    """
    known = list_sweeps()
    if file.as_posix() in known and (file.is_dir() or not file.exists()):
        return get_sweeps_folder() / f"{file}.yaml"
    other = file.with_suffix({".yml": ".yaml", ".yaml": ".yml"}.get(file.suffix, file.suffix))
    if not file.exists() and other.is_file():
        raise UserError(f"{truncate_repr(str(file))}: there is no such file; did you mean {other.name}?")
    if file.exists() or file.suffix in (".yaml", ".yml"):
        return file
    near = get_close_matches(file.as_posix(), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`fedray list sweeps` names them all"
    raise UserError(f"{truncate_repr(str(file))}: there is no such file and no shipped sweep of that name; {hint}")
