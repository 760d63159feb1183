"""Methods about the classifier: the simplex, Φ, what never moves or leaves the client, what their models answer.
Refusals of all methods: models that cannot serve them, options; and their names."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic.fields import FieldInfo
from torch import Tensor, nn

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.algorithms.base import Client, Uploads
from fedray.algorithms.fedgela import simplex_etf
from fedray.algorithms.heads import FedRep, FedRod
from fedray.algorithms.linear_head import Unbiased
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.engine.loop import run
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State
from fedray.models.network import Layout
from tests import small
from tests.algorithms.digits import data, problem
from tests.algorithms.test_pieces import parse
from tests.conftest import each


@pytest.mark.parametrize(("classes", "width"), [(2, 2), (10, 10), (10, 84), (62, 64), (100, 512)])
def test_a_simplex(classes: int, width: int) -> None:
    """In float32: lengths 1, cosines -1/(C - 1), the sum of all class vectors 0."""
    m = simplex_etf(classes, width).float()
    gram = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1)
    assert m.shape == (classes, width)
    assert torch.allclose(m @ m.T, gram, rtol=0, atol=1e-6)
    assert torch.allclose(m.sum(0), torch.zeros(width), rtol=0, atol=1e-6)


class PoisonedRep(FedRep):
    """A client spoils its head and all that it keeps after its training."""

    def upload(self, c: Client) -> Uploads:
        uploads = super().upload(c)
        c.theta = torch.where(c.layout.part("head") > 0, torch.nan, c.theta)
        for name in c.state:
            c.state[name] = torch.full_like(c.state[name], torch.nan)
        return uploads


class PoisonedRod(FedRod):
    def upload(self, c: Client) -> Uploads:
        c.local.head = torch.full_like(c.local.head, torch.nan)
        return super().upload(c)


@pytest.mark.parametrize("kind", ["PoisonedRep", "PoisonedRod"])
def test_a_personal_part_that_is_no_number_stays_out_of_every_upload(kind: str) -> None:
    """0 x NaN would be NaN: what is personal is cut off, not masked."""
    worker = Worker(problem(f"tests.algorithms.test_classifiers:{kind}"))
    c, uploads = worker.trainer.train(
        Broadcast(round=0, lr=0.1, theta=worker.network.initial, buffers=torch.zeros(0), message=Vectors(), cohort=1),
        ClientTask(2, 1.0, Vectors()),
    )
    assert all(vector.isnan().all() for vector in c.state.values())
    assert c.state
    assert all(bool(sent.vector.isfinite().all()) for sent in uploads.values())


def evaluated(name: Any, **training: Any) -> tuple[Problem, State, dict[str, float]]:
    """A run in which nothing is drawn after the initialisation, and its last row with personal accuracies."""
    built = problem(name, shuffle=False, batch_size="full", rounds=2, **training)
    settings = built.config.resolve()
    settings["evaluation"] |= {"personal": {"epochs": 0, "split": "share"}}
    built = Problem.build(built.config.parse(settings), data())
    result = run(built, InlineBackend())
    return built, result.state, result.history[-1]


def by_hand(name: Any, logits: Any) -> None:
    """personal_accuracy against the mean over clients of what `logits(features, W, b, counts, kept)` gets right, of the
    model after a round's training from the state."""
    built, state, row = evaluated(name)
    worker, training = Worker(built), built.config.training
    lr = training.lr * training.lr_decay
    accuracies = []
    for i in range(6):
        kept = state.clients.get(i, Vectors())
        there = Broadcast(round=1, lr=lr, theta=state.theta, buffers=state.buffers, message=Vectors(), cohort=6)
        c, _ = worker.trainer.train(there, ClientTask(i, 1 / 6, kept))
        x, y = worker.test_samples.make_batch(built.split.test[i])
        one, first_bias, weight, bias = worker.network.layout.views(c.theta).values()
        h = torch.relu(x.flatten(1) @ one.T + first_bias)
        n = torch.bincount(torch.from_numpy(built.data.y_train[built.split.train[i]]), minlength=10).float()
        accuracies.append(float((logits(h, weight, bias, n, c.state).argmax(1) == y).float().mean()))
    assert row["personal_accuracy"] == pytest.approx(100 * float(np.mean(accuracies)), abs=1e-3)
    assert len(set(accuracies)) > 1


def test_personal_accuracy_of_scaled_classifiers() -> None:
    """Φ_k W h/||h||, the body trained for a round on the client; over its present classes alone; and without a norm.
    Of FedRoD both heads."""

    def scaled(h: Tensor, w: Tensor, b: Tensor, n: Tensor, kept: Vectors) -> Tensor:
        return (10 * n / n.sum()) * (h / h.norm(dim=1, keepdim=True) @ w.T)

    by_hand({"name": "fedgela", "scale_w": 9.0}, scaled)
    present = {"name": "fedgela@forms", "scale_w": 9.0, "softmax": "present"}
    by_hand(present, lambda h, w, b, n, kept: torch.where(n > 0, scaled(h, w, b, n, kept), -torch.inf))
    by_hand("fedavg-la", lambda h, w, b, n, kept: (10 * n / n.sum()) * (h @ w.T))
    by_hand("fedrod", lambda h, w, b, n, kept: h @ w.T + b + h @ kept["head"][:, :16].T + kept["head"][:, 16])


def test_the_generic_model_of_fedgela_is_unscaled() -> None:
    built, state, row = evaluated({"name": "fedgela", "scale_w": 9.0})
    worker = Worker(built)
    x, y = worker.test_samples.make_batch(np.arange(len(worker.test_samples)))
    views = worker.network.layout.views(state.theta)
    h = torch.relu(x.flatten(1) @ views["1.weight"].T + views["1.bias"])
    z = h / h.norm(dim=1, keepdim=True) @ views["3.weight"].T
    accuracy = 100 * float((z.argmax(1) == y).float().mean())
    assert row["generic_accuracy"] == row["test_accuracy"] == pytest.approx(accuracy)
    assert row["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(z, y)), rel=1e-4)


def test_a_head_without_a_bias_of_its_own() -> None:
    """There is no bias to set to 0: the weight is found, and the initial model is unchanged."""
    layout = Layout(("body", "head"), ((3, 2), (2, 3)), frozenset({"head"}))
    theta = torch.arange(12.0)
    method = Unbiased()
    assert method.weight(layout) == "head"
    assert torch.equal(method.initial(theta, layout), theta)
    assert Simulation(problem("fedrs"), InlineBackend()).state.theta[-10:].tolist() == [0] * 10


class Headless(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


class TwoLayerHead(nn.Sequential):
    head = "2"

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 10)))


HERE = "tests.algorithms.test_classifiers"
BARE = {"name": "mlp", "hidden": []}
PROJECTED = {"name": "tests.algorithms.test_local_client:Projected", "own": True}
HEADS = "2.0.weight, 2.1.bias, 2.1.weight"


@each(
    *[
        (name, BARE, f"model.name: found mlp, all of it head; {name} needs a feature layer")
        for name in ("moon", "fedgela", "fedge", "fedrod", "fedbabu", "fedrep", "fedproto", "knnper")
    ],
    ({"name": "fedsol", "proximal": "moon"}, BARE, "moon needs a feature layer"),
    ("moon", f"{HERE}:Headless", "every trained parameter belongs to the head; moon needs a feature layer"),
    *[
        (name, f"{HERE}:TwoLayerHead", f"{HEADS}; {name} needs one linear layer")
        for name in ("fedgela", "fedge", "fedrod", "fedrs", "fedavg-la", "fedgen")
    ],
    *[(name, PROJECTED, f"features() of its own; {name} needs the input") for name in ("fedgela", "fedrod")],
    ("fedgela", {"name": "mlp", "hidden": [9]}, "9 features for 10 classes; fedgela's simplex needs"),
    ("fedrcl", f"{HERE}:Headless", "which names no taps; fedrcl reads inner layers"),
    ("fedrcl", BARE, "model.name: found mlp, which names no taps"),
    ("fedrobust", "char_lstm", "model.name: found char_lstm, whose inputs are tokens"),
)
def test_a_model_that_cannot_serve_is_refused(method: Any, model: Any, message: str) -> None:
    with small.refused(message):
        problem(method, model=model).build_network("cpu")


def outside(field: FieldInfo) -> list[float]:
    """Values a bounded field must refuse: beyond each bound, on each open bound, and values that are not numbers."""
    bad = [float("nan"), float("inf"), float("-inf")]
    past = 1 if field.annotation is int else 0.5
    for bound in field.metadata:
        for name, step in (("ge", -past), ("gt", 0), ("le", past), ("lt", 0)):
            if hasattr(bound, name):
                bad.append(getattr(bound, name) + step)
    return bad


NUMBERS = [
    (name, option)
    for name, kind in sorted(ALGORITHMS.items())
    for option, field in kind.model_fields.items()
    if field.annotation in (int, float)
]


@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_numbers(name: str, option: str) -> None:
    """Every number has at least one bound, and every bound is kept."""
    bad = outside(ALGORITHMS[name].model_fields[option])
    assert len(bad) > 3
    for value in bad:
        with pytest.raises(UserError, match=rf"\Aalgorithm\.{option}: found .*\Z"):
            algorithm({"name": name, option: value})


LABELS = {
    "fedtoga": "fedtoga", "fedtoga-sam+dr": "fedtoga@forms dual_correction=false sam_correction=false",
    "fedtoga-sam+dr+dual": "fedtoga@forms sam_correction=false", "fedsol": "fedsol", "fedsol-all": "fedsol perturb=all",
    "fedsol-body": "fedsol perturb=body", "fedsol-a3": "fedsol strategy=A3", "fedsol+feddyn": "fedsol proximal=feddyn",
    "fedsol+moon": "fedsol proximal={name:moon,mu:0.1}", "fedavg+kl-base": "fedavg-kl",
    "fedavg+kl-projection": "projection", "fedavg+l2-projection": "projection proximal=fedprox",
}  # fmt: skip
"""The published tables' names."""


@pytest.mark.parametrize("label", LABELS)
def test_labels(label: str) -> None:
    assert algorithm(parse(LABELS[label])).make_label() == label
