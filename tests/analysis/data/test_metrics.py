"""Facts about a metric that are known before any of its values is read."""

from typing import Any

import pytest

from fedray.analysis.data import metrics
from fedray.analysis.data.collect import collect
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, cell, history, write


def test_the_longest_wait_for_an_accuracy_begins_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated in rounds 10, 12 and 20: a target of round 1 would be seen in round 10, nine rounds late."""
    monkeypatch.setattr(metrics, "_read_accuracies", lambda sweep, run_id: dict.fromkeys((10, 12, 20), 50.0))
    sweep: Any = None
    assert metrics.find_longest_wait(sweep, "run") == 10
    monkeypatch.setattr(metrics, "_read_accuracies", lambda sweep, run_id: {})
    assert metrics.find_longest_wait(sweep, "run") == 0


def test_a_metric_by_its_plain_name_is_that_of_the_last_round(store: Tracker) -> None:
    """75 after 90, and its loss; for any deviation the smallest is the best."""
    one = cell(FEDAVG, 0.5, 0)
    write(store, [one], [history(70, 90, 75)])
    sweep = collect("sweep")
    found = {
        name: metrics.read_values(sweep, name).item() for name in ("test_accuracy", "best_test_accuracy", "test_loss")
    }
    assert found == pytest.approx({"test_accuracy": 75, "best_test_accuracy": 90, "test_loss": 0.25})
    deviations = ("local_test_accuracy_std", "personal_std", "drift_std")
    assert all(metrics.is_smaller_better(name, sweep.cells) for name in deviations)
    assert not metrics.is_smaller_better("local_test_accuracy", sweep.cells)
