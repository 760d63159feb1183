"""The probes `proximal` and `step`, against numbers derived by hand or by other means."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedray.common.vectors import Vectors
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.process.worker import Worker
from fedray.partitions.shards import Shards
from fedray.probes.proximal import _copy_client, _take_directions, measure_step
from tests.probes.probed import arrays, digits, last_row


def test_proximal_by_hand() -> None:
    """One sample x = 1 of class 0, logits W x with W = (0, 0), η = 2: two steps, of -2 (-½, ½) to (1, -1) and of
    -2 (-s, s) with s = 1/(1 + e²) to (m, -m), m = 1 + 2s.

    The received model says ½, ½; the local logits over τ = 3 are ±m/3: KL = log cosh(m/3). At the first
    step L_p has no gradient. At the second that of the cross-entropy is along (-1, 1), that of KL along (1, -1):
    cosine -1.
    """
    model = {"name": "tests.probes.probed:Rows", "rows": [[0], [0]]}
    row = last_row(arrays(model, [[1]], [0], [0], lr=2, local_steps=2, probes=["proximal"]))
    assert row["proximal_loss"] == pytest.approx(math.log(math.cosh((1 + 2 / (1 + math.exp(2))) / 3)), rel=1e-5)
    assert row["proximal_cosine"] == pytest.approx(-1)
    assert row["proximal_cosine_size"] == pytest.approx(1)


@pytest.mark.parametrize("mu", [None, 1.0])
def test_step_by_hand(mu: float | None) -> None:
    """As `test_proximal_by_hand`: y = (1, -1), and with s = 1/(1 + e²) the plain gradient there is (-s, s).

    A model (m, -m) has L_p = log cosh(m/3) and L = log(1 + e^-2m). A plain step of η = 2 makes m = 1 + 2s. FedProx with
    μ = 1 descends (-s, s) + (1, -1), which makes m = 2s - 1. ∇L_p = (t, -t)/6 with t = tanh(1/3).
    """
    method: Any = "fedavg" if mu is None else {"name": "fedprox", "mu": mu}
    model = {"name": "tests.probes.probed:Rows", "rows": [[0], [0]]}
    row = last_row(arrays(model, [[1]], [0], [0], method, lr=2, probes=["step"]))
    s = 1 / (1 + math.exp(2))
    q = -s if mu is None else 1 - s

    def change(of: Callable[[float], float], slope: float) -> float:
        return of(1 - 2 * slope) - of(1)

    def local(m: float) -> float:
        return math.log1p(math.exp(-2 * m))

    def proximal_loss(m: float) -> float:
        return math.log(math.cosh(m / 3))

    assert row["proximal_change"] == pytest.approx(change(proximal_loss, q), rel=1e-4)
    assert row["proximal_change_plain"] == pytest.approx(change(proximal_loss, -s), rel=1e-4)
    assert row["local_change"] == pytest.approx(change(local, q), rel=1e-4)
    assert row["local_change_plain"] == pytest.approx(change(local, -s), rel=1e-4)
    assert row["proximal_change_linear"] == pytest.approx(-2 * 2 * q * math.tanh(1 / 3) / 6, rel=1e-4)


def test_each_model_has_its_own_running_statistics() -> None:
    """η = 1e-12 moves no parameter, but the local model's running statistics are its shard's: the loss is not 0."""
    model = {"name": "tests.models.test_network:TinyBatchNorm"}
    row = last_row(arrays(model, [[0], [2], [6], [8]], [0, 1, 0, 1], [0, 0, 1, 1], lr=1e-12, probes=["proximal"]))
    assert row["proximal_loss"] > 1e-4


def test_every_batch_finds_the_running_statistics_that_training_left() -> None:
    """A step changes two equal batches equally, so the mean of both is that of the first alone."""
    problem = arrays({"name": "tests.probes.probed:Careful"}, 2 * [[0], [2], [5]], 2 * [0, 1, 0], [0] * 6, batch_size=3)
    config, worker = problem.config, Worker(problem)
    network = worker.network
    network.module.dropout.p = 0.0
    received = network.buffers.clone()
    broadcast = Broadcast(round=0, lr=0.1, theta=network.theta.clone(), buffers=received, message=Vectors(), cohort=1)
    c, _ = replace(worker.trainer, shards=Shards.from_lists([np.arange(6)])).train(
        broadcast, ClientTask(0, 1.0, Vectors())
    )
    c.steps = 2
    both = measure_step(c, config.algorithm)
    c.steps = 1
    assert measure_step(c, config.algorithm) == pytest.approx(both, rel=1e-6)


def test_no_other_batches_than_in_training() -> None:
    """Two samples and one, and a single step on the two: BatchNorm would refuse the batch of one."""
    model = {"name": "tests.models.test_network:TinyBatchNorm"}
    row = last_row(arrays(model, [[0], [2], [6]], [0, 1, 0], [0, 0, 0], batch_size=2, probes=["step"]))
    assert math.isfinite(row["proximal_change"])


def test_a_small_proximal_loss_keeps_its_digits() -> None:
    """As by hand above with η = 2e-3: y = (1, -1)/1000, KL = log cosh(1/3000) = 5.6e-8, less than float32's 1e-7."""
    row = last_row(
        arrays({"name": "tests.probes.probed:Rows", "rows": [[0], [0]]}, [[1]], [0], [0], lr=2e-3, probes=["proximal"])
    )
    assert row["proximal_loss"] == pytest.approx(math.log(math.cosh(1 / 3000)), rel=1e-4)


def test_no_cosine_where_nothing_was_learnt() -> None:
    row = last_row(
        arrays({"name": "tests.probes.probed:Rows", "rows": [[0], [0]]}, [[1]], [0], [0], lr=1e-12, probes=["proximal"])
    )
    assert row["proximal_loss"] == pytest.approx(0, abs=1e-12)
    assert "proximal_cosine" not in row


def test_the_received_model_keeps_its_running_statistics_in_both_probes() -> None:
    """Moving the client's own statistics makes no difference to z_x, batch by batch; z_y follows them."""
    problem = digits("fedavg", probes=["proximal", "step"])
    config, worker = problem.config, Worker(problem)
    network = worker.network
    c, _ = worker.trainer.train(
        Broadcast(
            round=0, lr=0.1, theta=network.theta.clone(), buffers=network.buffers.clone(), message=Vectors(), cohort=1
        ),
        ClientTask(0, 1.0, Vectors()),
    )
    left = [target for target, _, _ in _take_directions(_copy_client(c), config.algorithm, 3.0)]
    network.buffers.add_(1.0)
    right = [target for target, _, _ in _take_directions(_copy_client(c), config.algorithm, 3.0)]
    assert len(left) > 1
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_second_model_sees_the_batch_of_the_probe() -> None:
    """MOON asks its client's last model, which is not the one that the training has left at its last batch."""
    row = last_row(digits("moon", probes=["proximal", "step"], rounds=2))
    assert -1 <= row["proximal_cosine"] <= 1
    assert math.isfinite(row["proximal_change"])
