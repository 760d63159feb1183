"""What a call of a sweep will do: which cells there are, which are done, where their checkpoints lie."""

from collections import Counter
from dataclasses import dataclass

from fedray.config import Runtime
from fedray.sweep.cells import Cell, Cells
from fedray.sweep.grid import Sweep
from fedray.tracking.store import Outcome, outcomes


@dataclass(frozen=True)
class Plan:
    """What a call of a sweep will do."""

    cells: Cells
    known: dict[str, Outcome]
    """Hash -> outcome in MLflow."""
    force: bool
    chosen: frozenset[str] | None = None
    """Hashes of the cells that this process may run; None: all."""

    @property
    def to_run(self) -> list[Cell]:
        return [
            cell
            for cell in self.cells.cells.values()
            if (self.chosen is None or cell.hash in self.chosen) and (self.force or not self._done(cell))
        ]

    @property
    def requests(self) -> Counter[Runtime]:
        """What trials ask for, and how many ask it."""
        return Counter(cell.run.runtime for cell in self.to_run)

    def _done(self, cell: Cell) -> bool:
        """Whether another call would only repeat the outcome; what another rule stopped early is not done."""
        outcome = self.known.get(cell.hash)
        if outcome is None:
            return False
        stopped_alike = outcome.status == "stopped" and outcome.stopper == self.cells.sweep.stopper
        return outcome.status in ("finished", "diverged") or stopped_alike


def plan(sweep: Sweep, force: bool = False) -> Plan:
    """Expand and check a sweep; nothing is written. Raises UserError before anything starts."""
    cells = Cells(sweep)
    known = outcomes()
    return Plan(cells, {cell: known[cell] for cell in cells.cells if cell in known}, force)
