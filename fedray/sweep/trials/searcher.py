"""Searcher that Tune asks for trials: the cells of a sweep in order, made when there is room for them."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from ray.tune.search import Searcher

from fedray.cells.status import Status
from fedray.sweep.plan.cells import Cell, get_values
from fedray.sweep.trials.allocator import ActorAllocator
from fedray.sweep.trials.reporter import TuneReporter
from fedray.sweep.trials.session import Session


class NextCells(Searcher):
    """Hands out cells one by one; for a search that learns, the next generation of draws as soon as results allow.

    Grids use it, too: Tune's own grid search copies all cells for each of them. It keeps no state: the next draws
    (`sweep.plan.studies`) follow from the outcomes, which are in `session` and in MLflow.
    """

    def __init__(self, session: Session, cells: Sequence[Cell], reporter: TuneReporter, shares: ActorAllocator) -> None:
        super().__init__()
        self.session, self.reporter, self.shares, self._queue = session, reporter, shares, deque(cells)
        self._known = -1

    def __deepcopy__(self, memo: dict[int, Any]) -> "NextCells":
        return self  # Tune copies its arguments; this one belongs to the running sweep

    def __getstate__(self) -> dict[str, Any]:
        return {}  # pickled for Tuner.restore, which is not used

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        """Return the next trial; None if results or free capacity must come first; FINISHED if nothing is left."""
        sweep = self.session.plan.sweep
        if not self._queue and sweep.learns and len(self.session.values) != self._known:
            self._known = len(self.session.values)
            cells = self.session.learn_and_take()
            if self.session.plan.force:
                self.reporter.forget(cells)
            self.reporter.progress.total += len(cells)
            self._queue.extend(cells)
        if self._queue:
            actors = self.shares.give(self._queue[0], len(self._queue))
            return self._make_config(self._queue.popleft(), actors) if actors else None
        running = (
            self.session.statuses.get(cell, Status.MISSING) in (Status.MISSING, Status.RUNNING)
            for cell in self.session.tried
        )
        return None if sweep.learns and any(running) else Searcher.FINISHED

    def _make_config(self, cell: Cell, actors: int) -> dict[str, Any]:
        """Return a trial's config: its cell and actors, and the sweep's axes by name, for Tune to compare and show."""
        return {"cell": cell, "actors": actors, **get_values(cell.run, self.session.plan.maker.axes)}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: outcomes come through the reporter, complete."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: there is no state."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: there is no state."""
