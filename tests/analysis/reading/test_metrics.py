"""What is known of a metric before any of its values is read."""

from typing import Any

import pandas as pd
import pytest

from analysis.reading import metrics


def test_evaluations_of_personal_models_are_rarer() -> None:
    """Every 4 of 7 rounds and the last: 4 and 7. Without that key, and of other metrics, what the run has logged."""
    cells = pd.DataFrame(
        {
            "metrics.evaluations": [7, 7, None],
            "evaluation.personal.every": ["4", None, "4"],
            "training.rounds": ["7", "7", "7"],
        }
    )
    assert metrics.evaluations(cells, "last10_personal_accuracy").fillna(-1).tolist() == [2, 7, -1]
    assert metrics.evaluations(cells, "last10_test_accuracy").fillna(-1).tolist() == [7, 7, -1]


def test_the_longest_wait_for_an_accuracy_begins_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated in rounds 10, 12 and 20: a target of round 1 would be seen in round 10, nine rounds late."""
    monkeypatch.setattr(metrics, "_accuracies", lambda sweep, run_id: dict.fromkeys((10, 12, 20), 50.0))
    sweep: Any = None
    assert metrics.rounds_between(sweep, "run") == 10
    monkeypatch.setattr(metrics, "_accuracies", lambda sweep, run_id: {})
    assert metrics.rounds_between(sweep, "run") == 0
