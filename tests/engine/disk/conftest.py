"""The run whose checkpoints are inspected."""

import pytest

from fedray.engine.server.simulation import Simulation
from tests import small


@pytest.fixture
def simulation() -> Simulation:
    return small.simulation("scaffold", (6, 2), evaluation={"every": 1}, training={"rounds": 9, "local_epochs": 1})
