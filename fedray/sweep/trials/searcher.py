"""The searcher that Tune asks for trials: the cells of a sweep in their order, made when there is room for one."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from ray.tune.search import Searcher

from fedray.sweep.cells import Cell
from fedray.sweep.trials.reporter import TuneReporter
from fedray.sweep.trials.session import Session
from fedray.sweep.trials.shares import Shares
from fedray.sweep.trials.trial_cell import TrialCell


class NextCells(Searcher):
    """Hands out cells one by one; of a search that learns the next generation of draws as soon as its results allow.

    A grid goes this way, too: Tune's own grid search copies all cells for each of them. It keeps no state: what is to
    be drawn (`sweep.studies`) follows from the outcomes, which are in `session` and in MLflow.
    """

    def __init__(self, session: Session, cells: Sequence[Cell], reporter: TuneReporter, shares: Shares) -> None:
        super().__init__()
        self.session, self.reporter, self.shares, self._queue = session, reporter, shares, deque(cells)
        self._known = -1

    def __deepcopy__(self, memo: dict[int, Any]) -> "NextCells":
        return self  # Tune copies what it is given; this one belongs to the sweep that runs

    def __getstate__(self) -> dict[str, Any]:
        return {}  # pickled for Tuner.restore, which is not used

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        """The next trial; None where results or room have to come first; FINISHED where nothing is left."""
        sweep = self.session.plan.sweep
        if not self._queue and sweep.learns and len(self.session.values) != self._known:
            self._known = len(self.session.values)
            self._learn()
        if self._queue:
            actors = self.shares.give(self._queue[0], len(self._queue))
            return {"cell": TrialCell.of(sweep, self._queue.popleft(), actors)} if actors else None
        running = (self.session.statuses.get(cell) in (None, "running") for cell in self.session.tried)
        return None if sweep.learns and any(running) else Searcher.FINISHED

    def _learn(self) -> None:
        cells = self.session.learn_and_take()
        if self.session.plan.force:
            self.reporter.forget(cells)
        self.reporter.progress.total += len(cells)
        self._queue.extend(cells)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Nothing: outcomes come through the reporter, whole."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: there is no state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: there is no state."""
