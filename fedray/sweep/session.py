"""What a call of a sweep knows while it runs."""

from collections import Counter
from dataclasses import dataclass, field

from fedray.sweep.plan import Plan
from fedray.sweep.storage import Claims
from fedray.tracking.tracker import Tracker


@dataclass
class Session:
    """A call of a sweep that is running.

    Attributes:
        plan: what is to be done, with numbers for `gpus_per_actor: auto`.
        claims: which cells this process runs.
        tracker: the writer to MLflow.
        parent: id of the sweep's run in MLflow.
        statuses: hash -> `fedray.status` of the cells that have an outcome.
    """

    plan: Plan
    claims: Claims
    tracker: Tracker
    parent: str
    statuses: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        """How many of the sweep's cells have which outcome (`missing`: none yet)."""
        return Counter(self.statuses.get(cell, "missing") for cell in self.plan.cells)
