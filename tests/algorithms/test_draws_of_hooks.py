"""Draws of a plug-in's hooks are keyed by round and client: global generators and other draws change no bit."""

import random

import numpy as np
import torch
from torch import Tensor

import fedray
from fedray.algorithms.base import Algorithm, Client, Cohort, Received, Server, Vectors
from fedray.client import LocalClient
from fedray.probes.probe import EvaluatedRound, Probe
from tests import small


def draw() -> float:
    """A number that depends on the generators of torch, NumPy and Python."""
    return float(torch.rand(())) + float(np.random.rand()) + random.random()


class Noisy(Algorithm):
    """Draws in every hook of server and clients, as one with differential privacy does."""

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(v=theta + draw())

    def weights(self, cohort: Cohort) -> np.ndarray:
        given = np.array([1 + draw() for _ in cohort.samples])
        return given / given.sum()

    def broadcast(self, server: Server) -> Tensor:
        return server.theta + 1e-3 * draw()

    def message(self, server: Server) -> Vectors:
        return Vectors(v=server.state.v + draw())

    def direction(self, c: Client) -> Tensor:
        return c.grad(c.theta) + 1e-3 * draw() * c.message.v

    def aggregate(self, server: Server, got: Received) -> None:
        server.theta = server.theta + got.update + 1e-3 * draw()


class Rolling(Probe):
    metrics = {"rolled": "a number", "rolled_step": "a number"}

    def of_step(self, c: LocalClient, algorithm: Algorithm, q: Tensor) -> dict[str, float]:
        return {"rolled_step": draw()}

    def of_round(self, seen: EvaluatedRound) -> dict[str, float]:
        return {"rolled": draw()}


NOISY, ROLLING = f"{__name__}:Noisy", f"{__name__}:Rolling"


def train(seed: int, probes: list[str]) -> fedray.Result:
    """Train with the global generators in a state of their own, as after a resume."""
    for reset in (torch.manual_seed, np.random.seed, random.seed):
        reset(seed)
    brief = {"training": {"rounds": 3, "local_steps": 2}, "evaluation": {"every": 1, "probes": probes}}
    return fedray.simulate(small.sections(algorithm=NOISY, **brief), progress=False)


def test_bits_do_not_depend_on_global_generators_nor_on_probes() -> None:
    one, other, alone = train(1, [ROLLING]), train(2, [ROLLING]), train(3, [])
    assert one.summary()["theta_sha256"] == other.summary()["theta_sha256"] == alone.summary()["theta_sha256"]
    assert one.history == other.history
    assert {"rolled", "rolled_step"} <= one.history[-1].keys()
    assert len({row["rolled"] for row in one.history}) == len(one.history), "each round draws anew"
