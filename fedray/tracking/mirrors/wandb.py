"""A cell as a run of Weights & Biases, offline unless $WANDB_MODE says otherwise.

`wandb sync .fedray/wandb/offline-run-*` uploads offline runs later.
"""

import os
import shutil
from pathlib import Path

import wandb

from fedray.cells.cell import Cell
from fedray.cells.record import Record, Rows


class WandbCopy:
    """A run of the project `fedray` ($WANDB_PROJECT), in the group of its sweep, with the cell's hash as its id."""

    def __init__(self, cell: Cell, sweep: str, storage: Path) -> None:
        for earlier in (storage / "wandb").glob(f"offline-run-*-{cell.hash}*"):
            shutil.rmtree(earlier, ignore_errors=True)
        storage.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedray"),
            group=sweep or None,
            name=cell.label,
            id=cell.hash,
            config=dict(cell.config),
            dir=str(storage),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", save_code=False, x_disable_stats=True),
        )

    def write(self, rows: Rows) -> None:
        for row in rows:
            self._run.log({name: value for name, value in row.items() if name != "round"}, step=int(row["round"]))

    def close(self, record: Record) -> None:
        self._run.summary.update({**record.summarise(), "status": str(record.ending.status)})
        self._run.finish(exit_code=0 if record.ending.status.is_success else 1)
