"""Progress of a running sweep: a live table on a terminal, plain lines into a pipe."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedray.cells.status import Status
from fedray.common.errors import escape, redact, shorten

STYLE = {
    Status.FINISHED: "green",
    Status.DIVERGED: "yellow",
    Status.FAILED: "red",
    Status.STOPPED: "cyan",
    Status.PRUNED: "cyan",
    Status.RUNNING: "bold",
}


MINUTE = 60.0
"""Seconds between lines about running cells, where no table can be drawn."""


class Progress:
    """Shows the outcome of each cell as it comes in."""

    def __init__(self, total: int) -> None:
        self.console = Console(highlight=False)
        self.total = total
        self.outcomes: dict[str, Status] = {}
        self._running: dict[str, tuple[str, float]] = {}
        self._rows: dict[str, str] = {}
        self._tests: dict[str, str] = {}
        self._told = time.monotonic()
        self._began: float | None = None
        self._live = Live(get_renderable=self._make_table, console=self.console, refresh_per_second=2, transient=True)

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def note_start(self, cell: str, label: str) -> None:
        """Show that a trial of the cell begins."""
        now = time.monotonic()
        self._running[cell], self._began = (escape(label), now), self._began or now
        self._rows[cell] = "starting"

    def note_round(self, cell: str, made: int, rounds: int, rows: Sequence[Mapping[str, float]]) -> None:
        """Show the rounds that a running cell has made, and the last of its newly evaluated ones.

        Into a pipe goes a line about all running cells, once a minute.
        """
        self._tests[cell] = f"  {rows[-1]['test_accuracy']:.2f} %" if rows else self._tests.get(cell, "")
        self._rows[cell] = f"round {made}/{rounds}{self._tests[cell]}"
        if not self.console.is_terminal and time.monotonic() > self._told + MINUTE:
            self._told = time.monotonic()
            self.note("running: " + "; ".join(f"{label} {self._rows[c]}" for c, (label, _) in self._running.items()))

    def note(self, text: str) -> None:
        """Print one line that is not an outcome."""
        self.console.print(shorten(escape(redact(text))), markup=False, soft_wrap=True)

    def note_end(self, cell: str, status: Status, text: str) -> None:
        """Show the outcome of a cell."""
        label, since = self._running.pop(cell, (cell, time.monotonic()))
        self._rows.pop(cell, None)
        self.outcomes[cell] = status
        mark = f"[{len(self.outcomes)}/{self.total}]".rjust(2 * len(str(self.total)) + 3)
        took = f"({time.monotonic() - since:.1f} s{self._estimate_end()})"
        self.console.print(
            f"{mark} {status:<9} {label}: {shorten(escape(redact(text)))} {took}",
            style=STYLE.get(status),
            markup=False,
            soft_wrap=True,
        )

    def _estimate_end(self) -> str:
        left = self.total - len(self.outcomes)
        if not left or not self.outcomes or self._began is None:
            return ""
        seconds = (time.monotonic() - self._began) / len(self.outcomes) * left
        return f"; {left} to go, about {int(seconds // 60)}:{int(seconds % 60):02d}"

    def _make_table(self) -> Table:
        counts = {status: list(self.outcomes.values()).count(status) for status in STYLE}
        summary = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        table = Table(
            title=f"{len(self.outcomes)}/{self.total} done{', ' + summary if summary else ''}{self._estimate_end()}",
            box=None,
            title_justify="left",
        )
        table.add_column("running", no_wrap=True)
        table.add_column("rounds, last test", no_wrap=True)
        for cell, (name, _) in self._running.items():
            table.add_row(Text(name), self._rows[cell])
        return table
