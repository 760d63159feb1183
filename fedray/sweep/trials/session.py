"""What a call of a sweep knows while it runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedray.common.errors import UserError
from fedray.sweep.cells import Cell
from fedray.sweep.plan import Plan, value_of
from fedray.sweep.storage import Claims
from fedray.tracking.store import Outcome, outcomes
from fedray.tracking.tracker import Tracker, final_metrics


@dataclass
class Session:
    """A call of a sweep that is running.

    Attributes:
        plan: what is to be done, with numbers for `gpus_per_actor: auto`.
        claims: which cells this process runs.
        tracker: the writer to MLflow.
        parent: id of the sweep's run in MLflow.
        statuses: hash -> `fedray.status` of the cells that have an outcome.
        values: hash -> the metric that selects, of the cells that have an outcome; None unless it is `finished`.
        tried: hashes of the cells that this process has taken, or has found to be finished by another one.
    """

    plan: Plan
    claims: Claims
    tracker: Tracker
    parent: str
    statuses: dict[str, str] = field(default_factory=dict)
    values: dict[str, float | None] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)

    @property
    def counts(self) -> Counter[str]:
        """How many of the sweep's cells have which outcome (`missing`: none yet)."""
        return Counter(self.statuses.get(cell, "missing") for cell in self.plan.cells)

    @property
    def left(self) -> set[str]:
        """Hashes of the cells that are to be run and that this process has not taken."""
        return {cell.hash for cell in self.plan.to_run} - self.tried

    def closed(self, cell: str, status: str, history: Sequence[Mapping[str, float]]) -> None:
        """Note the outcome of a cell.

        Args:
            cell: its hash.
            status: `fedray.status`.
            history: its evaluated rounds.
        """
        self.statuses[cell] = status
        if self.plan.sweep.learns and status in ("finished", "diverged", "stopped", "pruned"):
            self.values[cell] = value_of(status, final_metrics(history), self.plan.sweep.select)

    def take(self, look_up: Callable[[Iterable[str]], dict[str, Outcome]]) -> list[Cell]:
        """Claim the cells that are left and that nobody else runs.

        Args:
            look_up: gives the outcomes that the store has of cells.

        Returns:
            Those of them that another sweep has not just finished.
        """
        claimed = self.claims.take(self.left)
        self.tried |= claimed
        # Read only now that nobody else can run them: the sweep that did may just have finished them.
        self.note(look_up(claimed))
        cells = [cell for cell in self.plan.to_run if cell.hash in claimed]
        for cell in claimed - {cell.hash for cell in cells}:
            self.claims.release(cell)
        return cells

    def note(self, found: Mapping[str, Outcome]) -> None:
        """Take over outcomes from the store, unless the plan is to run everything again."""
        self.statuses |= {cell: outcome.status for cell, outcome in found.items()}
        self.plan = replace(self.plan, known={**self.plan.known, **found})
        if not self.plan.force:
            self.values |= self.plan.values(found) if self.plan.sweep.learns else {}

    def learn(self) -> list[Cell]:
        """Draw what the outcomes so far allow, and take it."""
        grown = self.plan.learn(self.values)
        if grown is self.plan:
            return []
        self.plan = grown
        return self.take(_outcomes_if_there)


def _outcomes_if_there(cells: Iterable[str]) -> dict[str, Outcome]:
    """What the store has of cells, read beside the tracker's thread; a store that is away has nothing, for now."""
    try:
        return outcomes(cells)
    except UserError:
        return {}
