"""Tune asks for one cell after another, and is told little of each: counted, not timed."""

import copy
import pickle
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.search import Searcher, SearchGenerator

from fedray.sweep.cells import Problems, cells
from fedray.sweep.grid import Sweep
from fedray.sweep.trials.searcher import NextCells
from fedray.sweep.trials.trial_cell import TrialCell
from tests.sweep.test_cells import sweep


def searcher(grid: Sweep) -> tuple[NextCells, list[str]]:
    planned = cells(grid, Problems())
    session: Any = SimpleNamespace(plan=SimpleNamespace(sweep=grid), values={}, statuses={}, tried=set(planned))
    nothing: Any = None
    shares: Any = SimpleNamespace(give=lambda cell, left: 1)
    return NextCells(session, list(planned.values()), nothing, shares), list(planned)


def test_a_grid_is_handed_out_cell_by_cell_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 cells; what a trial is told is made when Tune asks for it, and after the last cell Tune need not ask again."""
    made = []
    of = TrialCell.of
    monkeypatch.setattr(TrialCell, "of", lambda *arguments: made.append(arguments) or of(*arguments))
    asked, hashes = searcher(sweep(2))
    found = [asked.suggest(str(k))["cell"].hash for k in range(3)]
    assert found == hashes[:3]
    assert len(made) == 3
    found += [asked.suggest(str(k))["cell"].hash for k in range(3, 40)]
    assert found == hashes
    assert asked.suggest("40") == Searcher.FINISHED, "though none has ended: idle processes can go"


def test_tune_copies_no_configuration() -> None:
    """Tune deep-copies a suggestion, flattens it and makes a directory's name of it."""
    asked, hashes = searcher(sweep(1))
    suggestion = asked.suggest("0")
    cell = suggestion["cell"]
    assert copy.deepcopy(suggestion)["cell"] is cell
    assert str(cell) == hashes[0]
    assert pickle.loads(pickle.dumps(cell)).told == cell.told  # noqa: S301 (what was just made)
    assert cell.told["run"]["algorithm"]["name"] == "fedavg"
    assert cell.told["report_each"] is False


def test_what_tune_holds_of_a_cell_is_small() -> None:
    """At most 8 kB of each of 200 suggestions: with the plan's cell well below 20 kB."""
    asked, _ = searcher(sweep(10))
    asked.suggest("first")
    tracemalloc.start()
    try:
        held = [asked.suggest(str(k)) for k in range(199)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(held) < 8_000
    assert SearchGenerator(asked).searcher is asked
