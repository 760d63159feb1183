"""Files of claims: a paper's `sweeps/PAPER/claims.yaml`, a sweep's section `claims`, or a file of either kind."""

from pathlib import Path

from pydantic import ValidationError

from fedray.common.errors import UserError, unknown
from fedray.common.location import is_there
from fedray.components.base import Checked, describe
from fedray.sweep.file.claims import Claim
from fedray.sweep.file.document import load_document
from fedray.sweep.file.shipped import CLAIMS, get_sweeps_folder, list_papers, list_sweeps
from fedray.sweep.file.sweep import Sweep
from fedray.tracking.store import find_sweeps, open_reader, read_list


class Claims(Checked):
    """A file of claims: about a paper, or about one sweep."""

    name: str
    sources: str = ""
    """The paper's sentences that were read, and their interpretation."""
    claims: tuple[Claim, ...]


def find(name: str) -> Path:
    """Return the file of a paper (`fedtoga`), of a sweep (`quickstart`, `fedtoga/table1`) or the given file itself.

    Raises:
        UserError: the name is none of these.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    if name in list_papers():
        return get_sweeps_folder() / name / CLAIMS
    if name in list_sweeps():
        return get_sweeps_folder() / f"{name}.yaml"
    valid = [*list_papers(), *list_sweeps()]
    raise unknown("claims: give the file of a sweep of yours, or a shipped name", name, valid, "`fedray list sweeps`")


def find_claims(name: str) -> tuple[Claims, Path | None]:
    """Return claims and their file: of a file, a paper, a shipped sweep, or a sweep of this store (without a file).

    Raises:
        UserError: as `find` and `read`.
    """
    is_file = Path(name).suffix in (".yaml", ".yml") or Path(name).is_file()
    stored = None if is_file or name in (*list_papers(), *list_sweeps()) else read_stored(name)
    if stored is not None:
        return stored, None
    return read(find(name)), find(name)


def read_stored(name: str) -> Claims | None:
    """Return the claims of a sweep of this store, as its file had them at its last call; None if there are none."""
    if not is_there():
        return None
    client, experiment = open_reader()
    sweep = find_sweeps(client, experiment).get(name)
    found = [] if sweep is None else read_list(client, sweep.info.run_id, "claims")
    return Claims(name=name, claims=tuple(Claim.model_validate(one) for one in found)) if found else None


def read(path: Path) -> Claims:
    """Read one file of either kind and check it. Raises UserError naming it."""
    document = load_document(path)
    of_a_sweep = "base" in document
    if of_a_sweep:
        sweep = Sweep.parse(document, file=path)
        found = Claims(name=sweep.name, claims=tuple(sweep.claims))
    else:
        try:
            found = Claims.model_validate(document)
        except ValidationError as error:
            raise UserError(f"{path}: {describe(error, '', Claims)}") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    if not found.claims:
        raise UserError(f"{path}: claims is required: at least one")
    names = [claim.name for claim in found.claims]
    if twice := next((one for one in names if names.count(one) > 1), ""):
        raise UserError(f"{path}: claims: lists {twice!r} more than once")
    for claim in found.claims:
        if not claim.sweep and not of_a_sweep:
            raise UserError(f"{path}: claims.{claim.name}.sweep is required")
    return found
