"""Copies of tracked runs for other viewers, chosen by `runtime.mirror`. MLflow keeps the results; nothing reads a copy.

Each viewer has a thread of its own, so neither MLflow's writer nor training waits for it. A viewer that fails is
reported once and left out until the call ends.
"""

import logging
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import yaml

from fedray.cells.cell import Cell
from fedray.cells.record import Record, Rows
from fedray.common.errors import join_lines, redact, refuse_missing_package

log = logging.getLogger("fedray")
PATIENCE = 60.0
"""Seconds that the end of a call waits for each viewer's copies."""


def refuse_missing_extras(kinds: Iterable[str]) -> None:
    """Refuse a viewer whose package is not installed. Raises UserError."""
    for kind in kinds:
        refuse_missing_package("runtime.mirror", kind, kind)


class Mirror:
    """One viewer's thread. It ends with the process, even in the middle of a write, and raises nothing."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._copies: dict[str, TensorboardCopy | WandbCopy] = {}
        self._last: dict[str, float] = {}
        self._steps: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"mirror-{kind}", daemon=True)
        self._thread.start()

    def send(self, step: Callable[..., None], *arguments: Any) -> None:
        """Let the thread take a step, of the methods below, after everything sent before."""
        self._steps.put(partial(step, *arguments))

    def finish(self) -> None:
        """Wait until everything is written, for at most `PATIENCE` seconds."""
        self._steps.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            log.warning("runtime.mirror: %s takes longer than %.0f s; its copy is incomplete", self._kind, PATIENCE)

    def _work(self) -> None:
        failed = False
        while (step := self._steps.get()) is not None:
            try:
                if not failed:
                    step()
            except Exception as error:  # a viewer's package can raise anything
                failed, why = True, redact(join_lines(error))
                log.warning(
                    "runtime.mirror: %s failed (%s); its copy ends here, MLflow has everything", self._kind, why
                )

    def open(self, cell: Cell, sweep: str, storage: Path) -> None:
        """Begin the copy of a cell."""
        self._copies[cell.hash], self._last[cell.hash] = COPIES[self._kind](cell, sweep, storage), 0

    def write(self, cell: str, rows: Rows) -> None:
        """Write the rows that the copy lacks: a trial that starts again sends all rows so far."""
        new = [row for row in rows if row["round"] > self._last.get(cell, float("inf"))]
        if new:
            self._copies[cell].write(new)
            self._last[cell] = new[-1]["round"]

    def close(self, cell: str, record: Record) -> None:
        """Write the rest of a cell that has ended."""
        if cell in self._copies:
            self.write(cell, record.history)
            self._copies.pop(cell).close(record)
            del self._last[cell]


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


class WandbCopy:
    """A run of the project `fedray` ($WANDB_PROJECT), in the group of its sweep, with the cell's hash as its id."""

    def __init__(self, cell: Cell, sweep: str, storage: Path) -> None:
        import wandb

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


COPIES: dict[str, type[TensorboardCopy | WandbCopy]] = {"tensorboard": TensorboardCopy, "wandb": WandbCopy}
"""Word of `runtime.mirror` -> a cell's copy in that viewer, below the folder `storage`; sweep: its sweep's name, empty
for a run on its own. A new copy replaces earlier calls' files: a cell's rows come whole again."""
