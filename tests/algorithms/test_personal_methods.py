"""Local-only, FedProto, PerFedAvg, kNN-Per, FedGen: the state they keep, and the answers of personal models."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedray.algorithms import algorithm
from fedray.algorithms.base import Algorithm, Finetuning
from fedray.algorithms.descent import SGD
from fedray.algorithms.fedproto import FedProto
from fedray.algorithms.personal import KNNPer, squared_distances
from fedray.client import LocalClient
from fedray.common.vectors import Vectors
from fedray.config import Training
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.models.network import Output
from tests.algorithms.digits import final, problem

FEDGEN = {"name": "fedgen", "hidden": 12, "noise": 4, "steps": 3}


class NoBias(nn.Module):
    """A linear head without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.top = nn.Linear(64, 8), nn.Linear(8, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.body(x.flatten(1)).relu())


@pytest.mark.parametrize("model", ["tests.algorithms.test_personal_methods:NoBias", {"name": "mlp", "hidden": []}])
def test_fedgen_with_a_head_without_bias_or_body(model: Any) -> None:
    """A missing bias is 0; if the whole model is head, the generated features are inputs."""
    state = final({**FEDGEN, "alpha": 1, "beta": 1}, model=model, rounds=2)
    assert state.server.generator.shape == (12 * (4 + 10) + 12 + 24 + (8 if "NoBias" in model else 64) * 13,)
    assert torch.isfinite(state.theta).all()


def trained_client(options: Any, client: int = 2, epochs: int = 0) -> LocalClient:
    """A client's personal model after a whole run; the network holds it."""
    built, state = problem(options), final(options)
    worker = Worker(built)
    running = Simulation(built, InlineBackend())
    running.restore(state)
    c = worker.trainer.personalise(
        replace(running._make_broadcast(running._make_server(3, 1)), theta=state.theta),
        ClientTask(client, 1.0, state.clients.get(client, Vectors())),
        epochs,
    )
    worker.network.load(c.theta)
    return c


def answers(c: LocalClient, method: Any, x: Tensor) -> Tensor:
    c.x = x
    with torch.no_grad():
        return method.personal_logits(c)


def test_squared_distances() -> None:
    """Also far from the origin, where |a|² + |b|² - 2ab would be off by 1e2; about 0 from a point to itself."""
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(30, 7, generator=g), torch.randn(40, 7, generator=g)
    direct = (a[:, None] - b).square().sum(2)
    assert torch.allclose(squared_distances(a, b), direct, rtol=1e-5, atol=1e-5)
    assert torch.allclose(squared_distances(a + 1e4, b + 1e4), direct, rtol=1e-2, atol=1e-2)
    assert squared_distances(b, b).diagonal().max() < 1e-5
    assert squared_distances(b, b).min() >= 0


def test_knnper_far_from_everything() -> None:
    """If every kernel underflows, the nearest samples still count: no 0/0."""
    c = trained_client({"name": "knnper"})
    c.local.features = c.local.features + 1e4
    p = answers(c, KNNPer(lam=1, scale=1e-3), c.population.samples.make_batch(c.indices)[0]).exp()
    assert torch.allclose(p.sum(1), torch.ones(len(p)))


def test_knnper_remembers_no_more_than_its_capacity() -> None:
    """7 of the shard's 50 samples with their labels, not simply the first."""
    c = trained_client({"name": "knnper", "capacity": 7})
    output, labels = c.shard(c.theta)
    nearest = torch.cdist(c.local.features, output.features, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    assert nearest.values.max() < 1e-5
    assert len(set(nearest.indices.tolist())) == 7
    assert max(nearest.indices) > 7
    assert torch.equal(c.local.labels, labels[nearest.indices])


class Asked:
    """The parts of a client that FedProto's answer reads: features (0, 1), a classifier that says 2."""

    theta = torch.zeros(0)

    def predict(self, theta: Tensor) -> Output:
        return Output(torch.tensor([[0.0, 0.0, 5.0]]), torch.tensor([[0.0, 1.0]]))

    def __init__(self, counts: list[float], known: list[float]) -> None:
        self.counts = torch.tensor(counts)
        self.message = Vectors(prototypes=torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]]), known=torch.tensor(known))


def test_fedproto_answers() -> None:
    """Features (0, 1), at squared distances 1, 10, 9 of the prototypes (0, 0), (3, 0), (0, 4); the classifier says 2.

    Without class 0 the nearest is 2; with 0 and 1 alone known or held it is among these; with none, the classifier's.
    """

    def scores(counts: list[float], known: list[float], **options: Any) -> list[float]:
        return FedProto(**options).personal_logits(Asked(counts, known)).flatten().tolist()  # type: ignore

    assert scores([5, 5, 5], [1, 1, 1]) == pytest.approx([-1, -10, -9])
    assert scores([0, 5, 5], [1, 1, 1]) == pytest.approx([-110, -10, -9])
    assert scores([0, 5, 5], [1, 1, 0]) == pytest.approx([-110, -10, -110])
    assert scores([0, 0, 5], [1, 1, 0]) == [0, 0, 5]
    assert scores([5, 5, 5], [1, 1, 1], answer="classifier") == [0, 0, 5]


def tuned(options: Any, training: Training, lr: float = 0.05) -> Tensor:
    """Client 1's personal model after two epochs from PerFedAvg's parameters."""
    trainer = replace(Worker(problem("perfedavg")).trainer, algorithm=algorithm(options), training=training)
    message, theta = Vectors(), final("perfedavg").theta
    received = Broadcast(round=3, lr=lr, theta=theta, buffers=trainer.network.buffers, message=message, cohort=1)
    return trainer.personalise(received, ClientTask(1, 1.0, Vectors()), 2).theta


def test_perfedavg_is_tested_after_plain_steps_of_the_inner_length() -> None:
    """As FedAvg's fine-tuning at η = a without momentum, weight decay and clipping; a = 0 adapts nothing."""
    training = problem("perfedavg").config.training
    plain = training.model_copy(update={"momentum": 0.0, "weight_decay": 0.0, "clip_norm": None})
    assert torch.equal(tuned("perfedavg", training), tuned("fedavg", plain))
    assert torch.equal(tuned({"name": "perfedavg", "inner_lr": 0.3}, training), tuned("fedavg", plain, 0.3))
    assert torch.equal(tuned({"name": "perfedavg", "inner_lr": 0}, training), final("perfedavg").theta)
    assert not torch.allclose(tuned("fedavg", training), tuned("fedavg", plain), atol=1e-3)


class Slower(Algorithm):
    """Fine-tunes by the head alone, along half the gradient, with half the rate and no momentum."""

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning("head", False, lambda c: 0.5 * c.grad(c.theta), lambda c: 0.5 * c.lr, lambda c: SGD(0.0))


class SlowerWhole(Algorithm):
    """The same, but of all parameters."""

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning("all", False, lambda c: 0.5 * c.grad(c.theta), lambda c: 0.5 * c.lr, lambda c: SGD(0.0))


def test_a_method_says_how_its_models_are_fine_tuned() -> None:
    """Without clipping and weight decay, half the gradient at half the rate is the gradient at a quarter of it."""
    training = problem("perfedavg").config.training.model_copy(update={"weight_decay": 0.0, "clip_norm": None})
    fast = training.model_copy(update={"momentum": 0.0})
    whole, before = tuned({"name": SlowerWhole}, training), final("perfedavg").theta
    assert torch.allclose(whole, tuned("fedavg", fast, 0.0125), rtol=0, atol=1e-7)
    part, head = tuned({"name": Slower}, training), problem("perfedavg").build_network("cpu").layout.part("head")
    assert torch.equal(part[head == 0], before[head == 0])
    assert not torch.equal(part[head == 1], before[head == 1])
