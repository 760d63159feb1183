"""The recipe of docs/recipes.md for rliable and scikit-posthocs, with numbers by hand."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu, trim_mean

from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write


def compare_runs(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.mean(mannwhitneyu(ours, theirs).statistic / (len(ours) * len(theirs))))


def compare_columns(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(1.0, table.columns, table.columns)


STAND_INS: dict[str, dict[str, Any]] = {
    "rliable": {},
    "rliable.metrics": {
        "aggregate_iqm": lambda scores: trim_mean(scores, 0.25, axis=None),
        "probability_of_improvement": compare_runs,
    },
    "scikit_posthocs": {"posthoc_nemenyi_friedman": compare_columns},
}
"""For a library that is not installed; rliable's own statistics are these."""


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in ("rliable", "scikit_posthocs") if importlib.util.find_spec(name) is None]
    for name, functions in STAND_INS.items():
        if name.partition(".")[0] in missing:
            module = ModuleType(name)
            vars(module).update(functions)
            monkeypatch.setitem(sys.modules, name, module)
            if "." in name:
                setattr(sys.modules[name.partition(".")[0]], name.partition(".")[2], module)


@pytest.mark.usefixtures("libraries")
def test_aggregates_and_ranks_over_settings(store: Tracker) -> None:
    """fedsam 61, 62 against fedavg 60, 61.5: of four pairs 61 loses to 61.5 only, 0.75; at α = 0.5 it wins all: 0.875.

    The middle half of 60, 60, 60, 61.5 has the mean 60, that of 61, 62, 71, 72 66.5. Two settings rank both methods.
    """
    cells = [cell(method, alpha, seed) for alpha in (0.1, 0.5) for method in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, cells, [history(value) for value in (60, 61.5, 61, 62, 60, 60, 71, 72)], "quickstart")
    page = (Path(__file__).parents[3] / "docs/recipes.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(# aggregates\.py\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    assert {name: float(value) for name, value in names["iqm"].items()} == {"fedavg": 60, "fedsam": 66.5}
    assert {name: float(value) for name, value in names["better"].items()} == {"fedavg": 0.5, "fedsam": 0.875}
    assert names["p_values"].shape == (2, 2)
