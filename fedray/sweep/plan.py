"""What a call of a sweep will do: which cells there are, and which of them are done."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fedray.config import Runtime
from fedray.sweep.cells import Cell, Problems, cells
from fedray.sweep.grid import Sweep
from fedray.tracking.store import Outcome, outcomes


@dataclass(frozen=True)
class Plan:
    """What a call of a sweep will do. Nobody changes one; `dataclasses.replace` makes another.

    Attributes:
        cells: hash -> cell, in the sweep's order.
        problems: their data.
        known: hash -> outcome in MLflow, of those that have one.
        force: finished cells are run again.
    """

    sweep: Sweep
    cells: Mapping[str, Cell]
    problems: Problems
    known: Mapping[str, Outcome]
    force: bool = False

    @property
    def to_run(self) -> list[Cell]:
        """The cells that this call has to run."""
        return [cell for cell in self.cells.values() if self.force or not self._done(cell)]

    @property
    def requests(self) -> Counter[Runtime]:
        """What trials ask of the cluster, and how many ask for it."""
        return Counter(cell.run.runtime for cell in self.to_run)

    def summary(self) -> str:
        """One line: how many cells there are, are done and are left."""
        statuses = Counter(outcome.status for outcome in self.known.values())
        return (
            f"{self.sweep.name}: {len(self.cells)} cells, {statuses['finished']} finished, "
            f"{statuses['diverged']} diverged, {len(self.to_run)} to run"
        )

    def _done(self, cell: Cell) -> bool:
        """Whether another call would only repeat the outcome; what another rule stopped early is not done."""
        outcome = self.known.get(cell.hash)
        if outcome is None:
            return False
        stopped_alike = outcome.status == "stopped" and outcome.stopper == self.sweep.stopper
        return outcome.status in ("finished", "diverged") or stopped_alike


def plan(sweep: Sweep, force: bool = False) -> Plan:
    """Expand and check a sweep, and look its cells up; nothing is written. Raises UserError before anything starts."""
    problems = Problems()
    found = cells(sweep, problems)
    known = outcomes()
    return Plan(sweep, found, problems, {cell: known[cell] for cell in found if cell in known}, force)
