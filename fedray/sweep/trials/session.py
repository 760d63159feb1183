"""What a call of a sweep knows while it runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedray.cluster.prepare import Placement
from fedray.common.errors import UserError
from fedray.runs.status import Status
from fedray.sweep.plan.cells import Cell
from fedray.sweep.plan.plan import Plan, get_value, look_up_outcomes
from fedray.sweep.plan.plugin_labels import describe_plugins
from fedray.sweep.plan.storage import CellLocks
from fedray.sweep.trials.writer import Writer
from fedray.tracking.records import Outcome, final_metrics

if TYPE_CHECKING:
    from fedray.sweep.trials.trainable import DataRef
    from fedray.tracking.tracker import Tracker


@dataclass
class Session:
    """A call of a sweep that is running.

    Attributes:
        plan: what is to be done, with numbers for `gpus_per_actor: auto`.
        claims: which cells this process runs.
        writer: the thread that uses `tracker`.
        tracker: MLflow, there from `open` on.
        parent: id of the sweep's run in MLflow, from then on.
        statuses: hash -> `fedray.status` of the cells that have an outcome.
        values: hash -> the metric that selects, of the cells that have an outcome; None unless it is `finished`.
        tried: hashes of the cells that this process has taken, or has found to be finished by another one.
        placement: gives cells numbers for `gpus_per_actor: auto`.
        data: key -> data set, of those that the processes of Tune's trials have.
    """

    plan: Plan
    claims: CellLocks
    writer: Writer
    tracker: "Tracker" = field(init=False)
    parent: str = ""
    statuses: dict[str, Status] = field(default_factory=dict)
    values: dict[str, float | None] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    placement: Placement = field(default_factory=Placement)
    data: dict[str, "DataRef"] = field(default_factory=dict)
    _asked: bool = False

    @property
    def counts(self) -> Counter[Status]:
        """How many of the sweep's cells have which outcome (`missing`: none yet)."""
        return Counter(self.statuses.get(cell, Status.MISSING) for cell in self.plan.cells)

    @property
    def left(self) -> set[str]:
        """Hashes of the cells that are to be run and that this process has not taken."""
        return {cell.hash for cell in self.plan.to_run} - self.tried

    @property
    def stopped(self) -> bool:
        """Whether a cell that this process has taken has no outcome, once Tune has returned: it was told to stop."""
        return any(self.statuses.get(cell, Status.MISSING).is_open for cell in self.tried)

    def closed(self, cell: str, status: Status, history: Sequence[Mapping[str, float]]) -> None:
        """Note the outcome of a cell.

        Args:
            cell: its hash.
            status: how its run ended.
            history: its evaluated rounds.
        """
        self.statuses[cell] = status
        if self.plan.sweep.learns and status.has_outcome:
            self.values[cell] = get_value(status, final_metrics(history), self.plan.sweep.select)

    def open(self) -> None:
        """Let the writer open the store and the sweep's run, which are made where they are missing; once.

        That takes seconds of a core, so it is left until a trial has something to write: until then Ray's processes
        use the cores to import.
        """
        if not self._asked:
            self._asked = True
            self.writer.send(self._open)

    def _open(self) -> None:
        from fedray.tracking.tracker import Tracker  # here: MLflow takes seconds to import

        self.tracker = Tracker()
        sweep = self.plan.sweep
        self.parent = self.tracker.open_sweep(sweep.name, sweep.description, describe_cells(self.plan))
        self._listed = len(self.plan.cells)

    def close(self) -> None:
        """Let the writer end the sweep's run, and wait until all has arrived in the store."""
        self.open()
        self.writer.ask(self._close)

    def _close(self) -> None:
        if not self.parent:
            return
        if len(self.plan.cells) > self._listed:
            self.tracker.list_cells(self.parent, describe_cells(self.plan))
        self.tracker.close_sweep(self.parent, self.counts)
        self.tracker.close()

    def look_up(self, cells: Iterable[str]) -> dict[str, Outcome]:
        """What the store has of cells, once all that was sent to it has arrived."""
        return self.writer.ask(lambda: self.tracker.outcomes(cells)) if self.parent else look_up_outcomes(cells)

    def take(
        self,
        wanted: Iterable[str] | None = None,
        look_up: Callable[[Iterable[str]], dict[str, Outcome]] | None = None,
    ) -> list[Cell]:
        """Claim the cells that are left and that nobody else runs.

        Args:
            wanted: hashes of those to claim; default all.
            look_up: gives the outcomes that the store has of cells; default `look_up`.

        Returns:
            Those of them that another sweep has not just finished, with numbers for `gpus_per_actor: auto`.

        Raises:
            UserError: the actors of a cell can never be placed.
        """
        claimed = self.claims.take(self.left if wanted is None else wanted)
        self.tried |= claimed
        # Read only now that nobody else can run them: the sweep that did may just have finished them.
        self.note((look_up or self.look_up)(claimed))
        cells = [cell for cell in self.plan.to_run if cell.hash in claimed]
        for hash in claimed - {cell.hash for cell in cells}:
            self.claims.release(hash)
        self.plan = self.plan.resolved(cells, self.placement)
        return [self.plan.cells[cell.hash] for cell in cells]

    def note(self, found: Mapping[str, Outcome]) -> None:
        """Take over outcomes from the store, unless the plan is to run everything again."""
        self.statuses |= {cell: outcome.status for cell, outcome in found.items()}
        self.plan = replace(self.plan, known={**self.plan.known, **found})
        if not self.plan.force:
            self.values |= self.plan.values(found) if self.plan.sweep.learns else {}

    def learn(self) -> set[str]:
        """Draw what the outcomes so far allow; hashes of the new cells, which nobody has taken yet."""
        grown = self.plan.learn(self.values)
        new = grown.cells.keys() - self.plan.cells.keys()
        self.plan = grown
        return new

    def learn_and_take(self) -> list[Cell]:
        """Draw what the outcomes so far allow, and take of it what can start while Tune runs; the rest is left.

        A data set that Tune's trials do not have is handed over when Tune starts again. So is what has to be measured
        first: that takes a whole GPU, which the trials may hold for as long as Tune waits here.
        """
        new = self.learn()
        cells, data = [self.plan.cells[hash] for hash in new], self.plan.problems.data
        can_start = [c.hash for c in cells if c.data in self.data and self.placement.knows(c.run, data[c.data])]
        return self.take(can_start, _look_up_if_reachable) if can_start else []


def _look_up_if_reachable(cells: Iterable[str]) -> dict[str, Outcome]:
    """What the store has of cells, read beside the writer; a store that is away has nothing, for now."""
    try:
        return look_up_outcomes(cells)
    except UserError:
        return {}


def describe_cells(plan: Plan) -> list[dict[str, Any]]:
    """The sweep's cells as its run in MLflow holds them; of a search and of a final stage with what analysis needs."""
    keys = list(dict.fromkeys(key for space in plan.sweep.spaces for key in space))
    search = {"search": {"keys": keys, "select": plan.sweep.select}} if keys else {}
    tuned = {cell: {"tuned": dict(chosen)} for cell, chosen in plan.tuned.items()}
    return [
        {
            "hash": cell.hash,
            "label": cell.label,
            "config": cell.run.resolved(),
            "identity": cell.identity,
            **({"plugins": words} if (words := describe_plugins(cell.run)) else {}),
            **search,
            **tuned.get(cell.hash, {}),
        }
        for cell in plan.cells.values()
    ]
