"""A progress bar for one run, on a terminal and in a notebook."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Moved = Callable[[int, Sequence[Mapping[str, float]]], None]
"""Callback after each round, with its number (from 1) and the rows of the evaluated rounds so far."""


def describe_resumption(name: str, made: int, rounds: int) -> str:
    """Return a line about a run that begins at a checkpoint; empty if it begins at the start, or is finished."""
    return f"{name}: resumed, goes on with round {made + 1} of {rounds}" if 0 < made < rounds else ""


@contextlib.contextmanager
def show_bar(name: str, rounds: int, shown: bool | None = None) -> Iterator[Moved]:
    """Show a bar that disappears at the end of a block; yield the callback for each round."""
    console = Console(stderr=True)
    if shown is None:
        shown = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    if not shown or (sys.stderr is not None and sys.stderr.closed):
        yield lambda round, rows: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[last]}"), console=console, transient=True) as progress:
        task = progress.add_task(name, total=rounds, last="")

        def moved(round: int, rows: Sequence[Mapping[str, float]]) -> None:
            last = f"round {rows[-1]['round']:.0f}: {rows[-1]['test_accuracy']:.2f} %" if rows else ""
            progress.update(task, completed=round, last=last)

        yield moved
