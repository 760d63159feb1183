"""The sweep files that come with fedray, named without a path: `quickstart`, `fedtoga/table1`."""

from difflib import get_close_matches
from pathlib import Path

from fedray.common.errors import UserError, truncated_repr

CLAIMS = "claims.yaml"
"""A paper's claims, beside its sweeps."""


def get_sweeps_folder() -> Path:
    """Where they are: inside the package in an installed wheel, beside it in a checkout."""
    package = Path(__file__).parents[2]
    inside = package / "sweeps"
    return inside if inside.is_dir() else package.parent / "sweeps"


def list_sweeps() -> list[str]:
    """`quickstart`, `fedtoga/table1`, ..., sorted. Cluster templates and papers' claims are not sweeps."""
    root = get_sweeps_folder()
    found = (path.relative_to(root) for path in root.rglob("*.yaml") if path.name != CLAIMS)
    return sorted(
        path.with_suffix("").as_posix() for path in found if path.parts[0] != "clusters" and path.stem != "claims"
    )


def list_papers() -> list[str]:
    """The papers with a file of claims: `fedgela`, ..., sorted."""
    return sorted(path.parent.name for path in get_sweeps_folder().glob(f"*/{CLAIMS}"))


def locate_sweep(file: Path) -> Path:
    """The file itself where it exists, else the shipped sweep of that name; a folder does not hide it.

    Raises:
        UserError: there is neither; it names the nearest shipped sweep.
    """
    known = list_sweeps()
    if file.as_posix() in known and (file.is_dir() or not file.exists()):
        return get_sweeps_folder() / f"{file}.yaml"
    if file.exists() or file.suffix in (".yaml", ".yml"):
        return file
    near = get_close_matches(file.as_posix(), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`fedray list sweeps` names those that come with fedray"
    raise UserError(f"{truncated_repr(str(file))}: there is no such file and no shipped sweep of that name; {hint}")
