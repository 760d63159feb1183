"""What the personal models of kNN-Per, FedProto and PerFedAvg answer, and what they are made from."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedray.algorithms import algorithm
from fedray.algorithms.fedproto import FedProto
from fedray.algorithms.personal import KNNPer, squared_distances
from fedray.client import LocalClient
from fedray.common.vectors import Vectors
from fedray.engine.backend import InlineBackend
from fedray.engine.local_training import personal_client
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.simulation import Simulation
from fedray.engine.worker import Worker
from fedray.models.network import Output
from fedray.sections import Training
from tests.algorithms.clients import arguments
from tests.algorithms.digits import final, problem


def test_every_draw_is_another_batch_of_the_shard() -> None:
    """Without repetition, of the size of the step's batch; the same again in a second run of that step."""
    c = trained_client("fedavg")
    c.start_step(3, *c.population.samples.batch(c.indices[:16]))
    first, second = c.draw()[0], c.draw()[0]
    assert first.shape == second.shape == c.x.shape
    assert not torch.equal(first, second)
    assert len(torch.unique(first.flatten(1), dim=0)) == 16
    own = {tuple(x.tolist()) for x in c.population.samples.batch(c.indices)[0].flatten(1)}
    assert {tuple(x.tolist()) for x in torch.cat([first, second]).flatten(1)} <= own
    c.start_step(3, c.x, c.y)
    assert torch.equal(c.draw()[0], first)
    c.start_step(4, c.x, c.y)
    assert not torch.equal(c.draw()[0], first)


def trained_client(options: Any, client: int = 2, epochs: int = 0) -> LocalClient:
    """A client's personal model after a whole run; the network holds it."""
    built, state = problem(options), final(options)
    worker = Worker(built)
    running = Simulation(built, InlineBackend())
    running.restore(state)
    c = personal_client(
        *arguments(
            worker,
            replace(running._broadcast(running._server(3, 1)), theta=state.theta),
            ClientTask(client, 1.0, state.clients.get(client, Vectors())),
        ),
        epochs,
    )
    worker.network.load(c.theta)
    return c


def answers(c: LocalClient, method: Any, x: Tensor) -> Tensor:
    c.x = x
    with torch.no_grad():
        return method.personal_logits(c)


def test_knnper_answers() -> None:
    """λ = 0: the model's own probabilities; λ = 1, k = 1: a training sample gets its label, surely; else in between."""
    c = trained_client({"name": "knnper"})
    x, y = c.population.samples.batch(c.indices)
    model = answers(c, KNNPer(lam=0), x)
    assert torch.allclose(model, c.network(x).logits.log_softmax(1), atol=1e-5)
    sure = answers(c, KNNPer(lam=1, k=1), x).exp()
    assert torch.equal(sure.argmax(1), y)
    assert torch.equal(sure.max(1).values, torch.ones(len(y)))
    assert torch.allclose(
        answers(c, KNNPer(), x).exp(), 0.5 * model.exp() + 0.5 * answers(c, KNNPer(lam=1), x).exp(), atol=1e-6
    )


def test_squared_distances() -> None:
    """Far from the origin too, where |a|² + |b|² - 2ab alone would be off by 1e2; of a point to itself about 0."""
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(30, 7, generator=g), torch.randn(40, 7, generator=g)
    direct = (a[:, None] - b).square().sum(2)
    assert torch.allclose(squared_distances(a, b), direct, rtol=1e-5, atol=1e-5)
    assert torch.allclose(squared_distances(a + 1e4, b + 1e4), direct, rtol=1e-2, atol=1e-2)
    assert squared_distances(b, b).diagonal().max() < 1e-5
    assert squared_distances(b, b).min() >= 0


def test_knnper_far_from_everything() -> None:
    """Where every kernel underflows the nearest still count: no 0/0."""
    c = trained_client({"name": "knnper"})
    c.local.features = c.local.features + 1e4
    p = answers(c, KNNPer(lam=1, scale=1e-3), c.population.samples.batch(c.indices)[0]).exp()
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
    """What FedProto's answer reads of a client: features (0, 1), a classifier that says 2."""

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


def test_perfedavg_is_tested_after_plain_steps_of_the_inner_length() -> None:
    """As FedAvg's fine-tuning at η = a without momentum, weight decay and clipping; a = 0 adapts nothing."""
    built = problem("perfedavg")
    state, worker, training = final("perfedavg"), Worker(built), built.config.training
    plain = training.model_copy(update={"momentum": 0.0, "weight_decay": 0.0, "clip_norm": None})

    def tuned(options: Any, training: Training, lr: float) -> Tensor:
        return personal_client(
            *arguments(
                worker,
                Broadcast(3, lr, state.theta, worker.network.buffers, Vectors(), 1),
                ClientTask(1, 1.0, Vectors()),
                algorithm=algorithm(options),
                training=training,
            ),
            2,
        ).theta

    assert torch.equal(tuned("perfedavg", training, 0.05), tuned("fedavg", plain, 0.05))
    assert torch.equal(tuned({"name": "perfedavg", "inner_lr": 0.3}, training, 0.05), tuned("fedavg", plain, 0.3))
    assert torch.equal(tuned({"name": "perfedavg", "inner_lr": 0}, training, 0.05), state.theta)
    assert not torch.allclose(tuned("fedavg", training, 0.05), tuned("fedavg", plain, 0.05), atol=1e-3)
