"""A cell as a run of TensorBoard: `tensorboard --logdir .fedray/tensorboard`."""

import re
import shutil
import warnings
from pathlib import Path

import yaml

from fedray.cells.cell import Cell
from fedray.cells.record import Record, Rows

LONGEST = 60
"""Maximum number of characters of a label in a folder's name."""


class TensorboardCopy:
    """Event files in `tensorboard/SWEEP/LABEL HASH` below the storage, the path by which TensorBoard names the run."""

    def __init__(self, cell: Cell, sweep: str, storage: Path) -> None:
        with warnings.catch_warnings(action="ignore"):  # TensorBoard's own, about NumPy
            from torch.utils.tensorboard import SummaryWriter

        label = re.sub(r"[^\w.=+@() -]", "_", cell.label)[:LONGEST]
        folder = storage / "tensorboard" / (sweep or "runs") / f"{label} {cell.hash}"
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = SummaryWriter(str(folder))
        text = yaml.safe_dump(dict(cell.config), sort_keys=False, allow_unicode=True)
        self._writer.add_text("configuration", f"```\n{text}```")

    def write(self, rows: Rows) -> None:
        for row in rows:
            for name, value in row.items():
                if name != "round":
                    self._writer.add_scalar(name, value, int(row["round"]))
        self._writer.flush()

    def close(self, record: Record) -> None:
        for name, value in record.summarise().items():
            self._writer.add_scalar(f"summary/{name}", value, record.last_round)
        self._writer.add_text("status", str(record.ending.status), record.last_round)
        self._writer.close()
