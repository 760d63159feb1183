"""What a trial is told of its cell."""

import json
from dataclasses import dataclass
from typing import Any

from fedray.sweep.cells import Cell
from fedray.sweep.grid import Sweep
from fedray.sweep.storage import directory


@dataclass(frozen=True)
class TrialCell:
    """A cell as it travels through Tune, which copies, flattens and keeps every mapping that it is given: as text.

    Attributes:
        hash: the cell's.
        actors: how many it gets.
        text: the JSON of the rest of `told`.
    """

    hash: str
    actors: int
    text: str

    @classmethod
    def of(cls, sweep: Sweep, cell: Cell, actors: int) -> "TrialCell":
        """What a trial of the cell has to know."""
        told = {
            "run": cell.run.resolved(),
            "data": cell.data,
            "directory": str(directory(cell)),
            "report_each": bool(sweep.scheduler or sweep.stop),
        }
        return cls(cell.hash, actors, json.dumps(told))

    @property
    def told(self) -> dict[str, Any]:
        """`run`: its resolved configuration; `actors`; `data`: key of its data set; `directory`: of its checkpoints;
        `report_each`: whether something other than its last round may end it."""
        return {**json.loads(self.text), "actors": self.actors}

    def __str__(self) -> str:
        return self.hash

    def __deepcopy__(self, memo: dict[int, Any]) -> "TrialCell":
        return self
