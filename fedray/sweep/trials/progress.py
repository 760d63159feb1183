"""Progress of a running sweep: a live table on a terminal, plain lines into a pipe, the text of its page in MLflow."""

import time
from collections.abc import Mapping, Sequence

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedray.cells.metric import mean
from fedray.cells.status import Status
from fedray.common.errors import escape, redact, shorten
from fedray.sweep.plan.plan import Plan

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
LONGEST = 5000
"""Characters of a tag's value that MLflow takes."""
ROWS = 25
"""Rows of the table."""


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


def describe_results(plan: Plan, accuracies: Mapping[str, float]) -> str:
    """Return Markdown with the best setting, a table and the parameters; empty before a cell has finished.

    Args:
        plan: of the sweep.
        accuracies: hash -> the accuracy that tables show, in %, of the cells that have finished.
    """
    found: dict[str, list[float]] = {}
    for cell in plan.cells.values():
        if cell.hash in accuracies:
            found.setdefault(cell.label.removesuffix(f" s{cell.run.seed}"), []).append(accuracies[cell.hash])
    if not found:
        return ""
    best, *_ = ranked = sorted(found, key=lambda label: -mean(found[label]))
    rows = [f"| {label} | {mean(found[label]):.2f} | {len(found[label])} |" for label in ranked[:ROWS]]
    more = [f"| and {len(ranked) - ROWS} more: `fedray tables {plan.sweep.name}` | | |"] if ranked[ROWS:] else []
    head = [plan.sweep.description, "", f"**Best: {best}, test accuracy {mean(found[best]):.2f} %**", ""]
    table = ["| method and setting | test accuracy % | seeds |", "|---|---:|---:|", *rows, *more]
    given = plan.sweep.model_dump(mode="json", include={"base", "grid", "cases", "search"}, exclude_defaults=True)
    written = yaml.safe_dump(given, sort_keys=False, allow_unicode=True)
    text = "\n".join([*head, *table, ""])
    whole = f"{text}\n```yaml\n{written}```"
    return whole if len(whole) <= LONGEST else text[:LONGEST]
