"""Claims of a paper or a sweep, and the runs that decide them: from the store or else the cells of the sweep's file."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from fedray.analysis.data.collect import SweepTable, collect, iter_specs, list_plugins
from fedray.analysis.data.expected import list_expected
from fedray.analysis.data.stored import UnknownSweep
from fedray.cells.spec import CellSpec
from fedray.common.errors import UserError, unknown
from fedray.common.location import is_there
from fedray.components.base import Checked, describe
from fedray.config import RunConfig
from fedray.sweep.file.claims import Claim
from fedray.sweep.file.document import load_document
from fedray.sweep.file.shipped import CLAIMS, get_sweeps_folder, list_papers, list_sweeps, locate_sweep
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.draws import count_gradients
from fedray.sweep.plan.estimate import make_key, measure_seconds
from fedray.tracking.store import StoreNotFound, find_sweeps, open_reader, read_list


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
    if not is_file and name not in (*list_papers(), *list_sweeps()) and is_there():
        client, experiment = open_reader()
        sweep = find_sweeps(client, experiment).get(name)
        # as the sweep's file had them at its last call
        if stored := [] if sweep is None else read_list(client, sweep.info.run_id, "claims"):
            return Claims(name=name, claims=tuple(Claim.model_validate(one) for one in stored)), None
    return read(find(name)), find(name)


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


def find_runs(name: str, file: Path | None) -> SweepTable:
    """Return the sweep as the store has it, or else the cells of its file, all missing.

    Args:
        name: name of the sweep.
        file: the file of the claims: the sweep's own, or a paper's, whose sweeps are shipped.

    Raises:
        UserError: neither exists.
    """
    try:
        found = collect(name)
        if found.name == name:  # a smoke version decides nothing
            return replace(found, cells=found.cells.assign(spec=found.cells["spec"].map(CellSpec.without_names)))
    except (StoreNotFound, UnknownSweep):
        pass
    if file is not None and "base" in (document := load_document(file)):
        own = Sweep.parse(document, file=file)
        if own.name == name:
            return list_expected(own)
    return list_expected(Sweep.load(locate_sweep(Path(name))))


def sum_hours(cells: pd.DataFrame) -> float:
    """Return the hours of training of the finished cells, without evaluation."""
    done = cells[cells["status"] == "finished"]
    if not len(done) or "metrics.seconds_per_round" not in done:
        return 0.0
    rounds = [spec.get("training.rounds") for spec in iter_specs(done)]
    return float((done["metrics.seconds_per_round"] * rounds).sum() / 3600)


class Price:
    """Cost of the missing cells: gradients of a batch, and if asked for hours on this machine."""

    def __init__(self, measured: bool) -> None:
        self.measured = measured
        self._known: dict[str, tuple[float, float] | None] = {}

    def estimate(self, specs: Sequence[CellSpec]) -> tuple[float, float] | None:
        """Return gradients and hours of all cells; None if some data or a user's class is not available here."""
        found = [self._estimate_one(spec) for spec in specs]
        whole = [one for one in found if one is not None]
        if len(whole) < len(found):
            return None
        return sum(one[0] for one in whole), sum(one[1] for one in whole)

    def _estimate_one(self, spec: CellSpec) -> tuple[float, float] | None:
        identity = repr({part: value for part, value in spec.config.items() if part != "seed"})
        if identity not in self._known:
            if any(path.partition(":")[0] not in sys.modules for path in list_plugins(spec.config)):
                self._known[identity] = None  # the store names a class that this process has not imported
                return None
            run = spec.run if isinstance(spec, Cell) else RunConfig.parse_stored(spec.config)
            count = count_gradients(run)
            each = (
                measure_seconds(make_key(run), run.runtime.torch_device) / 3600
                if self.measured and count is not None
                else 0.0
            )
            self._known[identity] = None if count is None else (count, count * each)
        return self._known[identity]
