"""`fedray verify NAME`: run some of a sweep's finished cells again; hash and last row have to be those of the store."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedray.cells.cell import Cell
from fedray.cells.record import Record
from fedray.cells.status import Status
from fedray.common.errors import Diverged, UserError
from fedray.components.identity import hash_of
from fedray.config import RunConfig
from fedray.datasets.base import load_data
from fedray.engine.problem import Problem
from fedray.sweep.driver.single import run_problem
from fedray.tracking.environment import PREFIX, make_environment_tags
from fedray.tracking.stored_sweep import read_stored_sweep

DECIDING = ("system", "cpu", "gpu", "torch")
"""Tags of the environment that the last bits of a run depend on."""


@dataclass(frozen=True)
class Repeated:
    """A cell that was run again: `same`, `different` or `not comparable`, and why."""

    label: str
    word: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word:<14} {self.label}" + (f": {self.reason}" if self.reason else "")


def verify(name: str, count: int) -> Iterator[Repeated]:
    """Run `count` finished cells, spread evenly over a sweep of the store, again in this process; yield their verdicts.

    Raises UserError if there is no such sweep, or it has no finished cell.
    """
    sweep = read_stored_sweep(name)
    finished = [cell for hash, cell in sweep.cells.items() if sweep.get_status(hash) is Status.FINISHED]
    if not finished:
        raise UserError(f"{name}: has no finished cell to verify")
    count = min(count, len(finished))
    for k in range(count):
        cell = finished[k * len(finished) // count]
        yield _judge(cell, sweep.records[cell.hash])


def _judge(cell: Cell, stored: Record) -> Repeated:
    try:
        run = RunConfig.parse(cell.config)
        config = run.model_copy(update={"runtime": run.runtime.model_copy(update={"backend": "inline"})})
        data = load_data(config.data)
        identity = config.make_identity(data.digest)
        if hash_of(identity) != cell.hash:
            keys = sorted(key for key in identity.keys() | cell.identity if identity.get(key) != cell.identity.get(key))
            return Repeated(cell.label, "not comparable", f"other settings, data or sources: {', '.join(keys)}")
        record = run_problem(Problem.build(config, data)).record()
    except Diverged as error:
        return Repeated(cell.label, "different", str(error))
    except UserError as error:  # no GPU here, or no such class
        return Repeated(cell.label, "not comparable", str(error))
    theta = record.hashes["theta_sha256"], stored.hashes.get("theta_sha256", "missing")
    wrong = [f"theta_sha256 is {theta[0][:16]}, was {theta[1][:16]}"] if theta[0] != theta[1] else []
    for name, value in record.history[-1].items():
        if name != "round" and value != (there := stored.totals.get(name, math.nan)):
            wrong.append(f"{name} is {value:.17g}, was {there:.17g}")
    here = make_environment_tags()
    tags = {key: (stored.tags.get(PREFIX + key, "none"), here.get(PREFIX + key, "none")) for key in DECIDING}
    why = [f"{key} was {there}, here it is {mine}" for key, (there, mine) in tags.items() if wrong and there != mine]
    more = [f"and {len(wrong) - 3} more"] if wrong[3:] else []
    return Repeated(cell.label, "different" if wrong else "same", "; ".join([", ".join(wrong[:3]), *more, *why]))
