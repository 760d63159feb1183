"""Sharpness of a run's minimum: `fedray sharpness SWEEP [--cell CELL] [--plot random|eigen] [--out DIR]`.

The top Hessian eigenvalues of the global model in the run's newest checkpoint, λ1 and λ1/λ5, on training samples picked
by the run's seed; and the loss in a plane through it, as a picture (PNG, PDF) and as data (CSV). Results are printed
and written to files; the store is only read. Definitions: fedray/papers/hessian.py.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedray.analysis.data.runs import load_newest_state, read_configuration
from fedray.analysis.data.specs import refuse_plugins
from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.config import RunConfig
from fedray.datasets.dataset import Samples
from fedray.engine.problem import Problem
from fedray.engine.server.evaluate import get_tested_theta
from fedray.papers.hessian import compute_surface, draw_filter_normalised, find_top_eigenvalues
from fedray.probes.landscape import Landscape
from fedray.tracking.store import find_run, open_reader

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient

COUNT = 5
"""Number of eigenvalues; FedSOL's figure 8 prints λ1 and λ1/λ5."""
PLANES = ("none", "random", "eigen")


@dataclass(frozen=True)
class Sharpness:
    """eigenvalues: the largest of the Hessian, descending. samples: number of training samples."""

    run: str
    label: str
    round: int
    samples: int
    loss: float
    eigenvalues: list[float]

    @property
    def ratio(self) -> float:
        """λ1/λ5."""
        return self.eigenvalues[0] / self.eigenvalues[-1]

    def __str__(self) -> str:
        values = ", ".join(f"{value:.4g}" for value in self.eigenvalues)
        return (
            f"{self.label}: round {self.round}, loss {self.loss:.4g} on {self.samples} training samples\n"
            f"  λ1 {self.eigenvalues[0]:.4g}, λ1/λ5 {self.ratio:.4g}; eigenvalues {values}"
        )


class TrainedRun:
    """A run's global model, from its newest checkpoint, on its training samples.

    Args:
        run: its id in MLflow.
        device: device of the model.
        samples: number of samples, drawn without replacement by the run's seed; all if there are fewer.

    Raises:
        UserError: the run is not in the store, is not a cell, has no checkpoint here or no global model; or its test
            loss differs from the logged one, so data or model have changed.
    """

    def __init__(self, run: str, samples: int, device: str = "cpu") -> None:
        client, _ = open_reader()
        self.run, self.config, cell, self.label = run, *_read(client, run)
        self.state = load_newest_state("--run", cell)
        problem = Problem.build(self.config)
        data, network = problem.data, problem.build_network(device)
        self.layout, self.theta = network.layout, get_tested_theta(self.state).to(device)
        buffers = self.state.buffers.to(device)
        self._refuse_other(
            Landscape(
                network,
                buffers,
                Samples(data.x_test, data.y_test, data, device),
                problem.evaluated["test"],
                self.config.algorithm.logits,
            )
        )
        train = problem.evaluated["train"]
        self.indices = np.sort(train[generator(self.config.seed, "sharpness").permutation(len(train))[:samples]])
        self.landscape = Landscape(
            network,
            buffers,
            Samples(data.x_train, data.y_train, data, device),
            self.indices,
            self.config.algorithm.logits,
        )

    def _refuse_other(self, tests: Landscape) -> None:
        logged = [row["test_loss"] for row in self.state.history if row["round"] == self.state.round]
        if logged and not math.isclose(found := tests.compute_loss(self.theta), logged[0], rel_tol=1e-3, abs_tol=1e-6):
            raise UserError(
                f"--run: the checkpoint's test loss is {found:.6g} here, but {logged[0]:.6g} was logged: "
                "other data, or another version of the model"
            )

    def find_eigenvalues(self) -> tuple[Sharpness, np.ndarray]:
        """Return the top eigenvalues and their vectors `(5, P)`. Raises UserError if the model is too small."""
        if self.layout.size <= COUNT:
            raise UserError(f"model: {self.layout.size} parameters; more than {COUNT} are required")
        start = generator(self.config.seed, "lanczos").standard_normal(self.layout.size)
        values, vectors = find_top_eigenvalues(
            lambda v: self.landscape.multiply_hessian(self.theta, v.to(self.theta.device)), start, COUNT
        )
        return Sharpness(
            self.run,
            self.label,
            self.state.round,
            len(self.indices),
            self.landscape.compute_loss(self.theta),
            [float(value) for value in values],
        ), vectors

    def measure_plane(self, kind: str, vectors: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the loss at θ + steps[i] d1 + steps[j] d2.

        Args:
            kind: `random`, two random filter-normalised orthogonal directions; `eigen`, the top two unit eigenvectors.
            vectors: the unit eigenvectors.
            steps: the grid along each direction.

        Returns:
            A loss for each pair of steps.
        """
        if kind == "random":
            first, second = draw_filter_normalised(self.theta, self.layout, generator(self.config.seed, "surface"))
        else:
            first, second = (torch.from_numpy(v.copy()).to(self.theta.device) for v in vectors[:2])
        return compute_surface(self.landscape, self.theta, (first, second), steps)


def _read(client: "AnyClient", run: str) -> tuple[RunConfig, str, str]:
    """Return a run's configuration, its cell's hash and its name. No class that a store names is imported."""
    if (found := find_run(client, run)) is None:
        raise UserError(f"--run: {run!r} is not in this store; a report (fedray report) lists the runs' ids")
    if found.data.tags.get("fedray.kind") != "cell":
        raise UserError(f"--run: {run} is a sweep; one of its cells is required")
    config = read_configuration(client, run)
    refuse_plugins("--run", config)
    parsed = RunConfig.parse_stored(config)
    if parsed.algorithm.keeps != "none":
        raise UserError(f"--run: {parsed.algorithm.name} has no global model: each client keeps its own parameters")
    return parsed, found.data.tags["fedray.cell"], found.info.run_name
