"""What tuning with five draws loses, from the cells of `sweeps/pilot.yaml` in the store.

    fedray import results/leaderboard/pilot.zip
    python -m benchmarks.regret                          # within the range of training.lr that the boards offer
    python -m benchmarks.regret --low 0.01 --high 1

A tuning makes five draws, one from each fifth of the range of the rate on a log scale, each with one of the values of
the method's key; the best on held-out samples with the first seed is tested with the second one. Its regret is what it
is worse than tuning on the whole grid, with the same samples and seeds. Means are over 10,000 drawn tunings.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from benchmarks import pairs as p
from fedray import results

DRAWS, TUNINGS = 5, 10_000
SELECT, TEST = "metrics.last10_validation_client_accuracy", "metrics.last10_test_accuracy"


def find_regret(rates: Sequence[float], chosen: np.ndarray, tested: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the regret of each of 10,000 tunings, in percentage points.

    Args:
        rates: the grid's rates `(R,)`, ascending.
        chosen: accuracy on held-out samples `(R, V)`, V values of the method's key; NaN for a run that diverged.
        tested: test accuracy with the other seed `(R, V)`.
        low, high: the range of the rate.
    """
    fifths = [(math.log(rate / low) / math.log(high / low) * DRAWS) for rate in rates]
    inside = [
        [r for r, place in enumerate(fifths) if k <= place < k + 1 or place == k + 1 == DRAWS] for k in range(DRAWS)
    ]
    if not all(inside):
        raise ValueError(f"a fifth of {low} to {high} has no rate of the grid: {list(rates)}")
    chosen, tested = np.nan_to_num(chosen, nan=-1.0), np.nan_to_num(tested, nan=0.0)
    rng, values = np.random.default_rng(0), chosen.shape[1]
    rows = np.stack([rng.choice(fifth, TUNINGS) for fifth in inside], axis=1)
    columns = rng.integers(0, values, rows.shape)
    best = chosen[rows, columns].argmax(axis=1)
    found = tested[rows, columns][np.arange(TUNINGS), best]
    whole = [r for fifth in inside for r in fifth]
    reference = tested[whole].flat[chosen[whole].argmax()]
    return np.asarray(reference - found)


def make_grids(cells: pd.DataFrame) -> dict[str, tuple[list[float], np.ndarray, np.ndarray]]:
    """Return method -> rates, accuracies on held-out samples with the first seed, on the test set with the second.

    A method is left out while a cell of it is missing.
    """
    keys = [name for name in cells if name.startswith("algorithm.")]
    cells = cells.assign(setting=cells[keys].astype(object).fillna("").astype(str).agg(" ".join, axis=1))
    first, second = sorted(cells["seed"].unique())
    grids = {}
    for method, own in cells.groupby("algorithm.name"):
        if not own["status"].isin(["finished", "diverged"]).all():
            continue
        chosen = own[own["seed"] == first].pivot(index="training.lr", columns="setting", values=SELECT)
        tested = own[own["seed"] == second].pivot(index="training.lr", columns="setting", values=TEST)
        grids[str(method)] = (chosen.index.tolist(), chosen.to_numpy(), tested[chosen.columns].to_numpy())
    return grids


def main(
    low: float = 0.03,
    high: float = 1.0,
    sweep: str = "pilot",
    out: Annotated[Path | None, typer.Option(help="a JSON file")] = None,
) -> None:
    """Print each method's mean regret, the share of tunings that lose more than a point, and the mean of all."""
    with p.report(f"regret of five draws of training.lr in [{low:g}, {high:g}]", out) as told:
        means = []
        for method, (rates, chosen, tested) in make_grids(results(sweep).cells).items():
            regret = find_regret(rates, chosen, tested, low, high)
            means.append(regret.mean())
            told.add(
                f"{method}: points", round(float(regret.mean()), 2), "0.5", above_1=round(float((regret > 1).mean()), 3)
            )
        told.add("mean of the methods: points", round(float(np.mean(means)), 2) if means else "not measured", "0.5")


if __name__ == "__main__":
    typer.run(main)
