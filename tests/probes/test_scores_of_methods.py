"""Testing the global model: exact sums over the chunks, for any loss, and a state that can be restored."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedray.common.errors import Diverged
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from tests.algorithms.digits import data, problem


def many(samples: int) -> Problem:
    """The digits, with a test set of this size (samples repeat)."""
    built, whole = problem("fedavg"), data()
    pick = np.arange(samples) % len(whole.y_test)
    return replace(built, data=replace(whole, x_test=whole.x_test[pick], y_test=whole.y_test[pick]))


@pytest.mark.parametrize("scale", [1.0, 100.0, 3000.0])
@pytest.mark.parametrize("samples", [1, 501, 90_000])
def test_loss_and_accuracy_over_chunks(scale: float, samples: int) -> None:
    """180 chunks of 500 give the mean over all 90,000 (the largest test set); a mean above 1e5 is a diverged run."""
    built = many(samples)
    running = Simulation(built, InlineBackend())
    state = running.state
    state = replace(state, theta=scale * state.theta)
    running.restore(state)
    network = built.build_network("cpu")
    network.load(state.theta)
    x = (torch.from_numpy(built.data.x_test).float() / 255 - built.data.mean[0]) / built.data.std[0]
    with torch.no_grad():
        logits, y = network(x).logits, torch.from_numpy(built.data.y_test)
    expected = float(cross_entropy(logits.double(), y))
    assert (expected > 1e5) == (scale == 3000.0)
    if expected > 1e5:
        with pytest.raises(Diverged, match="the test loss is not finite or above 100000"):
            running.evaluate()
        return
    found = running.evaluate()
    assert found["test_loss"] == pytest.approx(expected, rel=1e-5)
    assert found["test_accuracy"] == pytest.approx(100 * float((logits.argmax(1) == y).double().mean()))


def test_a_state_can_be_gone_back_to_twice() -> None:
    """Neither going on from a state nor going on after taking it changes it."""
    running = Simulation(problem("scaffold"), InlineBackend())
    running.step()
    state = running.state
    before = state.digest()
    running.step()
    after = running.state.digest()
    for _ in range(2):
        running.restore(state)
        running.step()
        assert running.state.digest() == after
        assert state.digest() == before
