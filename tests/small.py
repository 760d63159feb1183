"""Small runs on scikit-learn's digits, for tests to vary."""

import re
from contextlib import AbstractContextManager
from typing import Any

import pytest

from fedray.algorithms import algorithm
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.datasets.dataset import Dataset
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.result import make_result
from fedray.engine.server.simulation import Simulation


def sections(
    algorithm: Any = "fedavg", clients: Any = (6, 3), model: Any = 8, partition: Any = "iid", **other: Any
) -> dict[str, Any]:
    """The sections of a run, `data` instead of the digits among `other`; or of clients how many there are and how many
    are drawn per round, of the model the width of its only hidden layer, of the partition α of Dirichlet's."""
    return {
        "data": "digits",
        "partition": {"name": "dirichlet", "alpha": partition} if isinstance(partition, float) else partition,
        "clients": dict(zip(("total", "per_round"), clients, strict=True)) if isinstance(clients, tuple) else clients,
        "model": {"name": "mlp", "hidden": [model]} if isinstance(model, int) else model, "algorithm": algorithm,
        "runtime": {"backend": "inline"}, **other,
    }  # fmt: skip


def config(*args: Any, **options: Any) -> RunConfig:
    """The configuration of `sections`."""
    return RunConfig.parse(sections(*args, **options))


def list_cell(config: RunConfig, digest: str, label: str = "") -> dict[str, Any]:
    """The cell as a sweep lists it; its label is `s` and the seed unless one is given."""
    identity = {"hash": config.hash_cell(digest), "identity": config.make_identity(digest)}
    return identity | {"label": label or f"s{config.seed}", "config": config.resolve()}


def problem(*args: Any, arrays: Dataset | None = None, **options: Any) -> Problem:
    """The problem of `sections`, on other arrays if they are given."""
    return Problem.build(config(*args, **options), arrays)


def simulation(*args: Any, **options: Any) -> Simulation:
    """`problem` in this process."""
    return Simulation(problem(*args, **options), InlineBackend())


def refused(message: str) -> AbstractContextManager[Any]:
    """Expect a UserError of one line that contains the message."""
    return pytest.raises(UserError, match=rf"\A.*{re.escape(message)}.*\Z")


def momentum(name: Any, value: float = 0.5) -> float:
    """Local momentum for a method: 0 if its local optimiser is not SGD, which alone has it."""
    method = algorithm(name)
    return 0.0 if method.optimizer or method.overrides("local_optimizer") else value


def finish(running: Simulation) -> Simulation:
    """Continue to the end."""
    while not running.done:
        running.step()
    return running


def outcome(running: Simulation) -> tuple[str, str, list[dict[str, float]]]:
    """Continue to the end: the hashes of θ and of the state, and the rows."""
    result = make_result(finish(running))
    return result.summary()["theta_sha256"], result.summary()["state_sha256"], result.history
