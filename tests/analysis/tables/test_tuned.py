"""Notes on the choice in the table of a final stage."""

from typing import Any

import pandas as pd

from fedray.analysis.data.collect import SweepTable
from fedray.analysis.tables.build import build
from fedray.cells.cell import Cell
from fedray.cells.sheet import Sheet

CHOSEN: dict[str, Any] = {
    "stage": "s/tune",
    "select": "last10_validation_accuracy",
    "held_out": {"fraction": 0.2, "from": "clients"},
    "train_on": "all",
    "seeds": [100, 101],
    "searcher": "sobol",
    "scheduler": "",
    "values": {"training.lr": 0.5, "algorithm.mu": 0.01},
    "score": 91.234,
    "draws": 8,
    "finished": 7,
    "rounds": 640,
    "gradients": 12800.0,
    "ranges": {"training.lr": "[0.01, 1], log", "algorithm.mu": "[0.001, 1], log"},
    "edges": ["training.lr"],
}


def table(**changes: Any) -> SweepTable:
    """Two settings of one method, one seed, whose chosen values differ."""
    rows = [
        {
            "cell": str(k),
            "label": "fedprox",
            "status": "finished",
            "run_id": str(k),
            "spec": Cell(
                "", "", {"algorithm": {"name": "fedprox"}, "partition": {"name": "dirichlet", "alpha": alpha}}
            ),
            "seed": "0",
            "algorithm.name": "fedprox",
            "partition.name": "dirichlet",
            "partition.alpha": alpha,
            "chosen.training.lr": lr,
            "chosen.algorithm.mu": "0.01",
            "metrics.last10_test_accuracy": 80.0 + k,
        }
        for k, (alpha, lr) in enumerate((("0.1", "0.5"), ("0.5", "0.2")))
    ]
    tuned = {"0": CHOSEN | changes, "1": CHOSEN | {"edges": []} | changes}
    cells = {hash: Cell(hash, "fedprox", {}, tuned=how) for hash, how in tuned.items()}
    return SweepTable(Sheet("s", cells), pd.DataFrame(rows))


def test_chosen_values_part_no_rows_and_are_told_below_with_range_budget_and_edge() -> None:
    found = build(table())
    assert found.rows == ["fedprox"]
    assert found.columns == ["dirichlet α=0.1", "dirichlet α=0.5"]
    said = "\n".join(found.notes)
    assert (
        "tuned by s/tune: best last10_validation_accuracy of sobol draws, mean over seeds 100, 101, on 20 % of every "
        "client's samples, held out; these runs train on all of them"
    ) in said
    assert (
        "chosen for fedprox (dirichlet α=0.1): lr=0.5 of [0.01, 1], log, μ=0.01 of [0.001, 1], log; 8 draws (1 did not "
        "finish), 640 rounds, 1.28e+04 gradients of a batch; scored 91.23"
    ) in said
    warned = [note for note in found.notes if note.startswith("WARNING")]
    assert warned == [
        "WARNING: lr=0.5 of fedprox (dirichlet α=0.1) is on the edge of [0.01, 1], log: nothing was tried beyond it"
    ]
    assert "selected on the test set" not in found.title


def test_keys_of_one_symbol_are_told_apart_by_their_whole_names() -> None:
    """FedAdam searches the clients' rate and the server's, both named lr."""
    ranges = {"training.lr": "[0.01, 1], log", "algorithm.lr": "[0.1, 2], log"}
    values = {"training.lr": 0.5, "algorithm.lr": 1.5}
    said = "\n".join(build(table(ranges=ranges, values=values, edges=["algorithm.lr"])).notes)
    assert "training.lr=0.5 of [0.01, 1], log, algorithm.lr=1.5 of [0.1, 2], log; 8 draws" in said
    assert "WARNING: algorithm.lr=1.5 of fedprox" in said


def test_a_choice_by_the_test_set_is_marked_where_the_numbers_are() -> None:
    found = build(table(select="last10_test_accuracy", held_out=None))
    assert found.title.endswith("(selected on the test set)")
    assert any("SELECTED ON THE TEST SET" in note for note in found.notes)
