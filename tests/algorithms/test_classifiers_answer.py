"""Methods about the classifier: what their models answer, what they cost, and which models they refuse."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedray.algorithms import algorithm
from fedray.algorithms.linear_head import Unbiased
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.engine.backend import InlineBackend
from fedray.engine.cost import cost
from fedray.engine.local_training import train_client
from fedray.engine.loop import run
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.problem import Problem
from fedray.engine.simulation import Simulation
from fedray.engine.state import State
from fedray.engine.worker import Worker
from fedray.models.network import Layout
from tests.algorithms.clients import arguments
from tests.algorithms.digits import data, final, problem

BODY_END = 64 * 16 + 16
"""Where the head's entries of theta begin in the digits problem."""


def evaluated(name: Any, **training: Any) -> tuple[Problem, State, dict[str, float]]:
    """A run in which nothing is drawn after the initialisation, and its last row with personal accuracies."""
    built = problem(name, shuffle=False, batch_size="full", rounds=2, **training)
    settings = built.config.resolved()
    settings["evaluation"] |= {"personal": {"epochs": 0, "split": "share"}}
    built = Problem.build(built.config.parse(settings), data())
    result = run(built, InlineBackend())
    return built, result.state, result.history[-1]


def by_hand(name: Any, logits: Any, trained: bool) -> None:
    """personal_accuracy against the mean over clients of what `logits(features, W, b, counts, kept)` gets right.

    trained: of the model after a round's training from the state, else of the global model with the client's own part.
    """
    built, state, row = evaluated(name)
    worker, config = Worker(built), built.config
    tests = built.tests
    assert tests is not None
    accuracies = []
    for i in range(6):
        kept = state.clients.get(i, Vectors())
        theta = state.theta
        if trained:
            there = Broadcast(1, config.training.lr * config.training.lr_decay, theta, state.buffers, Vectors(), 6)
            c, _ = train_client(*arguments(worker, there, ClientTask(i, 1 / 6, kept)))
            theta, kept = c.theta, c.state
        elif "own" in kept:
            theta = torch.cat([theta[:BODY_END], kept["own"]])
        x, y = worker.test_samples.batch(tests[i])
        one, _, weight, bias = worker.network.layout.views(theta).values()
        h = torch.relu(x.flatten(1) @ one.T + worker.network.layout.views(theta)["1.bias"])
        n = torch.bincount(torch.from_numpy(built.data.y_train[built.shards[i]]), minlength=10).float()
        accuracies.append(float((logits(h, weight, bias, n, kept).argmax(1) == y).float().mean()))
    assert row["personal_accuracy"] == pytest.approx(100 * float(np.mean(accuracies)), abs=1e-3)
    assert len(set(accuracies)) > 1


def test_personal_accuracy_of_fedgela() -> None:
    """Φ_k W h/||h||, the body trained for a round on the client."""
    by_hand(
        {"name": "fedgela", "scale_w": 9.0},
        lambda h, w, b, n, kept: (10 * n / n.sum()) * (h / h.norm(dim=1, keepdim=True) @ w.T),
        trained=True,
    )


def test_personal_accuracy_of_fedgela_over_present_classes() -> None:
    by_hand(
        {"name": "fedgela", "scale_w": 9.0, "softmax": "present"},
        lambda h, w, b, n, kept: torch.where(
            n > 0, (10 * n / n.sum()) * (h / h.norm(dim=1, keepdim=True) @ w.T), -torch.inf
        ),
        trained=True,
    )


def test_personal_accuracy_of_la() -> None:
    by_hand("fedavg-la", lambda h, w, b, n, kept: (10 * n / n.sum()) * (h @ w.T), trained=True)


def test_personal_accuracy_of_fedrod() -> None:
    """Both heads."""
    by_hand(
        "fedrod", lambda h, w, b, n, kept: h @ w.T + b + h @ kept["head"][:, :16].T + kept["head"][:, 16], trained=True
    )


def test_personal_accuracy_of_fedrep() -> None:
    """The client's own head on the present body, without fine-tuning (0 epochs)."""
    by_hand("fedrep", lambda h, w, b, n, kept: h @ w.T + b, trained=False)


def test_the_generic_model_of_fedgela_is_unscaled() -> None:
    """W h/||h||: accuracy and loss."""
    built, state, row = evaluated({"name": "fedgela", "scale_w": 9.0})
    worker = Worker(built)
    x, y = worker.test_samples.batch(np.arange(len(worker.test_samples)))
    views = worker.network.layout.views(state.theta)
    h = torch.relu(x.flatten(1) @ views["1.weight"].T + views["1.bias"])
    z = h / h.norm(dim=1, keepdim=True) @ views["3.weight"].T
    accuracy = 100 * float((z.argmax(1) == y).float().mean())
    assert row["generic_accuracy"] == row["test_accuracy"] == pytest.approx(accuracy)
    assert row["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(z, y)), rel=1e-4)


BODY, OWN_HEAD = 784 * 50 + 50, 50 * 10 + 10
COSTS = {
    "fedrs": (1, 0),
    "fedlc": (1, 0),
    "fedavg-la": (1, 0),
    "fedgela": ("body", 0),
    "fedge": ("body", 0),
    "fedbabu": ("body", 0),
    "fedrep": ("body", 1),
    "fedrod": (1, 1),
}
"""What is sent either way, and how many heads a client keeps."""


@pytest.mark.parametrize("name", COSTS)
def test_cost(name: str) -> None:
    """Of a model with a body of 39,250 and a head of 510 parameters: the body alone where the head is not shared."""
    sent, heads = COSTS[name]
    found, whole = cost(algorithm(name)), BODY + OWN_HEAD
    assert found.down == found.up == (1 if sent == 1 else BODY / whole)
    assert found.client == heads * OWN_HEAD / whole
    assert (found.server, found.gradients) == (0, 1)


class Normed(nn.Module):
    """A head that is more than one linear layer."""

    head = "classifier"

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classifier = nn.Linear(64, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x.flatten(1)))


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        *[
            (
                name,
                {"name": "mlp", "hidden": []},
                f"model.name: found mlp, all of it head; {name} needs a feature layer",
            )
            for name in ("fedgela", "fedge", "fedrod", "fedbabu", "fedrep")
        ],
        *[
            (
                name,
                "tests.algorithms.test_refusals:Headless",
                f"every parameter belongs to the head; {name} needs a feature layer",
            )
            for name in ("fedgela", "fedrod", "fedbabu", "fedrep")
        ],
        *[
            (
                name,
                "tests.algorithms.test_classifiers_answer:Normed",
                f"classifier.0.weight, classifier.1.bias, classifier.1.weight; {name} needs one linear layer",
            )
            for name in ("fedgela", "fedge", "fedrod", "fedrs", "fedavg-la")
        ],
        *[
            (
                name,
                {"name": "tests.algorithms.test_parts_and_taps:Projected", "own": True},
                f"features() of its own; {name} needs the input",
            )
            for name in ("fedgela", "fedrod")
        ],
        ("fedgela", {"name": "mlp", "hidden": [9]}, "9 features for 10 classes; fedgela's simplex needs"),
    ],
)
def test_a_model_that_cannot_serve_is_refused(method: str, model: Any, message: str) -> None:
    with pytest.raises(UserError) as raised:
        problem(method, model=model).network("cpu")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["fedlc", "fedbabu", "fedrep"])
def test_any_head_will_do(name: str) -> None:
    assert final(name, model="tests.algorithms.test_classifiers_answer:Normed", rounds=1).theta.isfinite().all()


def test_a_head_without_a_bias_of_its_own() -> None:
    """Nothing to put to 0: the weight is found, the initial model stays."""
    layout = Layout(("body", "head"), ((3, 2), (2, 3)), frozenset({"head"}))
    theta = torch.arange(12.0)
    method = Unbiased()
    assert method.weight(layout) == "head"
    assert torch.equal(method.initial(theta, layout), theta)
    assert Simulation(problem("fedrs"), InlineBackend()).state().theta[-10:].tolist() == [0] * 10
