"""Models of the user's own: what they cast, draw, count and tie gives one theta through every door, or a refusal."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedray
from fedray.cluster.ray_backend import RayBackend
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from tests import small

HERE = "tests.models.test_own_models"


class Cast(nn.Module):
    """Casts weights in a block of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        self.out = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits: Tensor = self.out(self.body(x))
        return logits.float()


class Tied(nn.Module):
    """The head's weight is the body's first."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Linear(64, 10, bias=False)
        self.mid = nn.Linear(10, 64)
        self.out = nn.Linear(64, 10)
        self.out.weight = self.emb.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.relu(self.mid(self.emb(x.flatten(1)))))
        return logits


class Everything(Tied):
    """Ties and casts weights, counts, draws by NumPy and Python, drops out while testing."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.projection = torch.from_numpy(np.random.randn(64, 64).astype("float32")) * 0.1

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        x = x.flatten(1) + 0.01 * np.random.rand() + 0.01 * random.random() + 0.001 * float(self.count)
        with torch.autocast("cpu", torch.bfloat16):
            h = torch.relu(self.mid(self.emb(x))).float() @ self.projection
            logits: Tensor = self.out(nn.functional.dropout(h, 0.2, training=True))
        return logits.float()


class Masked(Cast):
    """A causal mask, whose infinities are no statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))


class Normalised(Cast):
    """BatchNorm that averages over the batches of a client's round."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(nn.BatchNorm1d(16, momentum=None))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.body(x))
        return logits


class Complex(Cast):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(16, dtype=torch.complex64))


def config(model: str, algorithm: Any = "fedavg", **options: Any) -> dict[str, Any]:
    found = small.sections(algorithm, (6, 3), {"name": f"{HERE}:{model}", **options}, 0.5)
    return found | {"training": {"rounds": 3, "local_epochs": 1, "lr": 0.1, "batch_size": 32}}


def finish(backend: Any, given: dict[str, Any]) -> tuple[str, list[float]]:
    result = run(Problem.build(RunConfig.parse(given)), backend)
    return result.summary()["theta_sha256"], [row["test_accuracy"] for row in result.history]


@pytest.mark.parametrize("model", ["Cast", "Everything", "Masked"])
def test_one_theta_through_all_doors(model: str, backends: dict[int, RayBackend]) -> None:
    """Whatever the caller's generators hold, and whichever block of autocast is open around a run."""
    given = config(model)
    expected = finish(InlineBackend(), given)
    np.random.seed(7)
    random.seed(7)
    assert finish(InlineBackend(), given) == expected
    for open_block in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=open_block):
            result = fedray.simulate(given)
        assert result.summary()["theta_sha256"] == expected[0]
    for count in backends:
        assert finish(backends[count], given) == expected
    assert expected[1][-1] > 20


def test_the_caller_s_generators_go_on() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    finish(InlineBackend(), config("Everything"))
    assert (random.random(), np.random.rand()) == expected


def test_all_buffers_follow_the_first_pass_of_a_step() -> None:
    """FedSAM takes two gradients a step; with a tiny ρ its running statistics are FedAvg's."""
    sam, plain = (
        run(Problem.build(RunConfig.parse(config("Normalised", method))), InlineBackend()).state.buffers
        for method in ({"name": "fedsam", "rho": 1e-9}, "fedavg")
    )
    assert torch.allclose(sam, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["fedbabu", "fedper", "fedrep", "lg-fedavg"])
def test_a_method_that_would_tear_a_tied_tensor_is_refused(method: str) -> None:
    with pytest.raises(UserError, match=rf"^model: emb.weight and out.weight are one tensor; {method} needs head and"):
        Problem.build(RunConfig.parse(config("Tied", method))).build_network("cpu")


@pytest.mark.parametrize("part", ["body", "head"])
def test_freezing_half_of_a_tied_tensor_is_refused(part: str) -> None:
    with pytest.raises(
        UserError, match=rf"^model\.freeze: found {part}; emb.weight of the body and out.weight are one"
    ):
        Problem.build(RunConfig.parse(config("Tied", freeze=[part]))).build_network("cpu")


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(UserError, match=r"Complex\.phase is complex; real numbers are required"):
        Problem.build(RunConfig.parse(config("Complex"))).build_network("cpu")
