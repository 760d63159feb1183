"""The run whose checkpoints are looked at."""

import pytest

from fedray.config import RunConfig
from fedray.engine.backend import InlineBackend
from fedray.engine.problem import Problem
from fedray.engine.simulation import Simulation


@pytest.fixture
def simulation() -> Simulation:
    run = RunConfig.parse(
        {
            "data": "digits",
            "partition": "iid",
            "model": {"name": "mlp", "hidden": [8]},
            "algorithm": "scaffold",
            "clients": {"total": 6, "per_round": 2},
            "evaluation": {"every": 1},
            "training": {"rounds": 9, "local_epochs": 1},
        }
    )
    return Simulation(Problem.build(run), InlineBackend())
