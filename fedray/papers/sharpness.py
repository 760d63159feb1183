"""Sharpness of a run's minimum: `fedray sharpness SWEEP [--cell CELL] [--plot random|eigen] [--out DIR]`.

The top Hessian eigenvalues of the global model in the run's newest checkpoint, λ1 and λ1/λ5, on training samples picked
by the run's seed; and the loss in a plane through it, as a picture (PNG, PDF) and as data (CSV). Results are printed
and written to files; the store is only read.

The loss is the mean cross-entropy over fixed samples, computed as in a test: no augmentation, no dropout, no weight
decay, running statistics if the model has them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.nn.functional import normalize

from fedray.analysis.data.collect import refuse_plugins
from fedray.analysis.data.runs import load_newest_state, read_configuration
from fedray.common.errors import UserError
from fedray.common.rng import generator
from fedray.config import RunConfig
from fedray.datasets.dataset import Samples
from fedray.engine.problem import Problem
from fedray.engine.server.evaluate import get_tested_theta
from fedray.models.network import Layout
from fedray.probes.landscape import Landscape
from fedray.tracking.store import find_run, get_label, open_reader

if TYPE_CHECKING:
    from fedray.tracking.store import AnyClient

COUNT = 5
"""Number of eigenvalues; FedSOL's figure 8 prints λ1 and λ1/λ5."""
PLANES = ("none", "random", "eigen")
TOLERANCE = 1e-4
"""Relative accuracy of an eigenvalue at which Lanczos stops; products are in float32."""


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
    parsed = RunConfig.parse(config)
    if parsed.algorithm.keeps != "none":
        raise UserError(f"--run: {parsed.algorithm.name} has no global model: each client keeps its own parameters")
    return parsed, found.data.tags["fedray.cell"], get_label(found)


def find_top_eigenvalues(
    times: Callable[[Tensor], Tensor], start: np.ndarray, count: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Return a symmetric matrix's largest eigenvalues, descending by sign, and their unit eigenvectors `(count, P)`.

    By Lanczos from `start`; `times` gives the product of the matrix with a float32 vector `(P,)`.
    """

    def matvec(v: np.ndarray) -> np.ndarray:
        return times(torch.from_numpy(np.ascontiguousarray(v.reshape(-1), dtype=np.float32))).cpu().numpy()

    operator = LinearOperator((len(start), len(start)), matvec=matvec, dtype=np.float32)
    values, vectors = eigsh(operator, k=count, which="LA", v0=start.astype(np.float32), tol=TOLERANCE)
    order = np.argsort(values)[::-1]
    return values[order].astype(float), vectors.T[order]


def draw_filter_normalised(theta: Tensor, layout: Layout, rng: np.random.Generator) -> list[Tensor]:
    """Return two orthogonal random directions with filters as long as those of θ (Li et al., NeurIPS 2018).

    A filter belongs to one output: a slice of a weight's first dimension. Biases and norm layers have none
    and are 0. Each filter of the second direction is orthogonal to the same filter of the first; a filter of one
    number has no orthogonal one and is 0 in the second.
    """
    directions: list[Tensor] = []
    for _ in range(2):
        d = torch.from_numpy(rng.standard_normal(layout.size, dtype=np.float32)).to(theta.device)
        parts, weights = layout.views(d), layout.views(theta)
        for name in layout.names:
            if parts[name].ndim < 2:
                parts[name].zero_()
                continue
            filters, like = parts[name].flatten(1), weights[name].flatten(1)
            if directions:
                first = normalize(layout.views(directions[0])[name].flatten(1), dim=1)
                filters -= (filters * first).sum(1, keepdim=True) * first
                filters *= filters.shape[1] > 1
            filters *= torch.linalg.vector_norm(like, dim=1, keepdim=True) / (
                torch.linalg.vector_norm(filters, dim=1, keepdim=True) + 1e-10
            )
        directions.append(d)
    return directions


def compute_surface(landscape: Landscape, theta: Tensor, directions: Sequence[Tensor], steps: np.ndarray) -> np.ndarray:
    """Return float64 `(len(steps), len(steps))`: entry (i, j) is the loss at θ + steps[i] d1 + steps[j] d2."""
    first, second = directions
    points = ([theta + float(a) * first + float(b) * second for b in steps] for a in steps)
    return np.array([[landscape.compute_loss(point) for point in row] for row in points])
