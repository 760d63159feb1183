"""Personalised methods: the state they keep, reductions bit for bit, and the answers of personal models. Parts that
stay: frozen parameters, on which every method runs or says what it lacks; own parts with their running statistics.
Classifiers: the simplex, Φ, what never moves or leaves the client. Refusals of all methods: models that cannot serve
them, options; and their names."""

from collections.abc import Sequence
from dataclasses import replace
from math import floor, log, log2
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import Field
from pydantic.fields import FieldInfo
from torch import Tensor, nn

from fedray.algorithms import ALGORITHMS, algorithm
from fedray.algorithms.base import Algorithm, Client, Finetuning, Received, Server, Uploads
from fedray.algorithms.descent import SGD
from fedray.algorithms.fedas import FedAS
from fedray.algorithms.fedgela import simplex_etf
from fedray.algorithms.fedproto import FedProto
from fedray.algorithms.heads import FedRep, FedRod
from fedray.algorithms.linear_head import Unbiased
from fedray.algorithms.personal import squared_distances
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.config import RunConfig, Training
from fedray.engine.loop import run
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State, load_state
from fedray.models.network import Layout, Output
from tests import small
from tests.algorithms.digits import SIZES, TRAINING, data, final, problem
from tests.algorithms.test_pieces import parse
from tests.conftest import each
from tests.methods import METHODS
from tests.probes.probed import Careful

FEDGEN = {"name": "fedgen", "hidden": 12, "noise": 4, "steps": 3}


def test_fedgen_without_a_body() -> None:
    """If the whole model is head, the generated features are inputs."""
    state = final({**FEDGEN, "alpha": 1, "beta": 1}, model={"name": "mlp", "hidden": []}, rounds=2)
    assert state.server.generator.shape == (12 * (4 + 10) + 12 + 24 + 64 * 13,)
    assert torch.isfinite(state.theta).all()


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


def test_distances_far_from_zero() -> None:
    """⅛² and ⅛² + ¼², which squares of 1,000 in float32, to 1/16, do not tell from 0."""
    stored = torch.tensor([[1000.125, 1000.0], [999.875, 1000.25]])
    assert squared_distances(torch.full((1, 2), 1000.0), stored).tolist() == [[1 / 64, 5 / 64]]


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


def test_the_second_order_term_of_perfedavg_is_a_difference_under_one_dropout() -> None:
    """So another δ changes it by O(δ²). Under two masks it would be their difference over 2δ, half of it at 2δ."""
    small_steps: dict[str, Any] = {"model": PARTLY, "batch_size": 18, "rounds": 1, "lr": 0.05, "weight_decay": 0.0}
    own = {"name": "perfedavg", "inner_lr": 1.0}
    plain, one, other = (
        final(own | each, **small_steps, local_steps=1, local_epochs=None, clip_norm=None).theta
        for each in ({}, {"hessian_free": True, "delta": 0.01}, {"hessian_free": True, "delta": 0.02})
    )
    assert (one - other).norm() < 0.02 * (one - plain).norm()


class Slower(Algorithm):
    part: str = "head"

    @property
    def finetuning(self) -> Finetuning:
        return Finetuning(self.part, False, lambda c: 0.5 * c.grad(c.theta), lambda c: 0.5 * c.lr, lambda c: SGD(0.0))


def test_a_method_says_how_its_models_are_fine_tuned() -> None:
    """Without clipping and weight decay, half the gradient at half the rate is the gradient at a quarter of it."""
    training = problem("perfedavg").config.training.model_copy(update={"weight_decay": 0.0, "clip_norm": None})
    fast = training.model_copy(update={"momentum": 0.0})
    whole, before = tuned({"name": Slower, "part": "all"}, training), final("perfedavg").theta
    assert torch.allclose(whole, tuned("fedavg", fast, 0.0125), rtol=0, atol=1e-7)
    part, head = tuned({"name": Slower}, training), problem("perfedavg").build_network("cpu").layout.part("head")
    assert torch.equal(part[head == 0], before[head == 0])
    assert not torch.equal(part[head == 1], before[head == 1])


def personal(options: dict[str, Any], epochs: int = 0) -> list[float]:
    """Personal and generic accuracy of FedPer in the last round."""
    base = problem({"name": "fedper", **options}).config.resolve()
    config = RunConfig.parse(base | {"evaluation": {"every": 4, "personal": {"epochs": epochs, "split": "share"}}})
    row = run(Problem.build(config, data()), InlineBackend()).history[-1]
    return [row["personal_accuracy"], row["generic_accuracy"]]


def test_the_personal_model_of_fedala_is_the_mix_before_training() -> None:
    """a = 0 leaves W at ¼: o + ¼ (x - o) in the head, x below; x before a client's first activity."""
    built = problem({"name": "fedala", "weight_lr": 0.0}, clients={"cohorts": [[1, 4]] * 4})
    running, worker = small.finish(Simulation(built, InlineBackend())), Worker(built)
    x, kept = running.state.theta, running.state.clients[4]
    told = running._make_broadcast(running._make_server(4, 1))
    task = ClientTask(4, 1.0, Vectors(old=kept.old, w=torch.full((170,), 0.25)))
    found = worker.trainer.personalise(told, task, 0).theta
    assert torch.equal(found[:-170], x[:-170])
    assert torch.allclose(found[-170:], kept.old[-170:] + 0.25 * (x - kept.old)[-170:], rtol=0, atol=1e-6)
    assert (found - x).abs().max() > 1e-3
    assert torch.equal(worker.trainer.personalise(told, ClientTask(0, 1.0, Vectors()), 0).theta, x)


def test_fedbn_without_normalisation_is_fedavg_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    left = run(problem("fedbn"), InlineBackend())
    for model in ("Normalised", "Unscaled"):
        problem("fedbn", model=f"tests.algorithms.test_contract:{model}", batch_size=18)
    assert caplog.messages == ["fedbn: mlp has no normalisation layers, so the global model is FedAvg's"]
    assert torch.equal(left.theta, final("fedavg").theta)
    assert not left.state.clients


def test_fine_tuning_of_fedper() -> None:
    """With default settings `epochs` has no effect; the port's fine-tuning changes the score, not the training."""
    assert personal({}, 5) == personal({}, 0)
    assert personal({"adapts": "all"}, 5) != personal({}, 0)
    assert torch.equal(final({"name": "fedper", "adapts": "head"}).theta, final("fedper").theta)


def test_separate_passes_of_ditto_train_as_the_steps_of_a_round_do() -> None:
    """In the samples' own order they are v's steps on the shared model's batches, bit for bit, with rates that fall
    within the round, last batches left out and running statistics; and images are augmented."""
    training = {**TRAINING, "rounds": 2, "shuffle": False, "last_batch": "drop", "lr_decay_within": 0.5}
    model = {"name": "mlp", "hidden": [8], "feature_norm": "batch"}

    def keep(*augment: Any, **options: Any) -> list[Vectors]:
        method, shown = {"name": "ditto", **options}, {"name": "digits", "augment": augment}
        states = run(small.problem(method, (6, 3), model, data=shown, training=training), InlineBackend()).state.clients
        return [load_state(states[i]) for i in sorted(states)]

    together, apart, cropped = keep(), keep(personal_epochs=2), keep({"crop": 2}, personal_epochs=2)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(together, apart, strict=True) for name in a)
    assert not any(torch.equal(a.v, b.v) for a, b in zip(apart, cropped, strict=True))


class GrowsEachRound(FedAS):
    """F_i = n_i 2^(e t): of any size, and always in the same proportion."""

    e: int = Field(0)

    def information(self, c: Client) -> float:
        return c.samples * 2.0 ** (self.e * round(log(c.lr / c.first_lr, TRAINING["lr_decay"])))


@pytest.mark.parametrize("e", [-14, 14])
def test_information_of_any_size(e: int) -> None:
    """Weights of 2^-42 n_i, which exact sums round to nothing, or 2^42 n_i, which they refuse, in the fourth round."""
    grows = {"name": f"{__name__}:GrowsEachRound", "align_lr": 0}
    left, right = final(grows | {"e": e}), final(grows)
    assert torch.allclose(left.theta, right.theta, rtol=0, atol=1e-6)
    weighed = sum(SIZES[int(i)] for i in Simulation(problem("fedas"), InlineBackend()).draw_cohort(3)) / 3
    assert float(left.server.scale) == 2.0 ** (floor(log2(weighed)) + 3 * e)


def test_the_scale_stays_where_there_is_no_information() -> None:
    server = Server(torch.zeros(2), Vectors(scale=torch.tensor(4.0)), Layout(("a",), ((2,),)), 6, 3)
    zero = torch.zeros(())
    FedAS().aggregate(server, Received(Vectors(weighted=torch.zeros(2), information=zero, update=torch.zeros(2))))
    assert server.state.scale == 4
    assert torch.equal(server.theta, torch.zeros(2))


PARTLY = "tests.algorithms.test_methods:Partly"


class Partly(Careful):
    """Running statistics and dropout behind a frozen layer."""

    def __init__(self, input_shape: Sequence[int], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.first.requires_grad_(False)


@each(
    ("fedas align_batch=8", (33,), "full", "33 samples in batches of 8, and BatchNorm"),
    ("fedavg", (65,), 16, "65 samples in batches of 16, .* one sample alone; choose another size, training.last_b"),
)
def test_a_lone_sample_under_batchnorm(algorithm: str, sizes: tuple[int, ...], batch: int | str, message: str) -> None:
    """The cause is a batch, or a pass of the method's own."""
    alone = {"per_round": 1, "clients": {"cohorts": [[0]] * 4}}
    built = problem(parse(algorithm), sizes, model=PARTLY, batch_size=batch, **alone)
    with pytest.raises(UserError, match=rf"^training\.batch_size: client 0 has {message}"):
        run(built, InlineBackend())


MODEL: dict[str, Any] = {"name": "mlp", "hidden": [16, 12]}
ADAPTERS = 2 * (64 + 16) + 2 * (16 + 12)
BODY, HEAD = 65 * 16 + 17 * 12, 13 * 10
ALONE = {"local-only", "fedproto"}
"""Methods that send no parameters, so that x stays."""


def trained(name: str, **model: Any) -> Simulation:
    """Two rounds of three clients of six."""
    simulation = Simulation(problem(name, model=MODEL | model, rounds=2, lr=0.05), InlineBackend())
    start = simulation.state.theta
    assert torch.equal(small.finish(simulation).state.theta, start) == (name in ALONE)
    assert simulation.state.frozen == simulation.problem.build_network("cpu").frozen_sha256 != ""
    return simulation


@pytest.mark.parametrize("name", METHODS)
def test_adapters(name: str) -> None:
    found = trained(name, lora={"rank": 2, "alpha": 2})
    assert len(found.state.theta) == ADAPTERS + HEAD
    assert {"test_accuracy", "test_loss"} <= found.state.history[-1].keys()


@each(
    ("fedrep", "body", "model: every trained parameter belongs to the head; fedrep needs a feature layer"),
    ("fedper", "body", "model: no parameter of body is trained; fedper needs some"),
    ("fedrep", "head", "model: no parameter of head is trained; fedrep needs some"),
    ("fedsol", "head", "model: no parameter of head is trained; fedsol needs some"),  # perturbs it by default
    *[
        (name, "*.bias", f"model: 5.bias is not trained; {name} needs the whole head")  # or its bias would be 0
        for name in ("fedrs", "fedavg-la", "fedge", "fedgela", "fedgen")
    ],
    ("fedrod", "5.bias", ""),
    ("fedavg", "body", ""),
    ("scaffold", "head", ""),
)
def test_the_head_or_the_body_alone(name: str, part: str, line: str) -> None:
    """Linear probing: the body is frozen. Methods that need the frozen part say so."""
    if not line:
        left = {"body": HEAD, "head": BODY, "5.bias": BODY + 12 * 10}
        assert len(trained(name, freeze=[part]).state.theta) == left[part]
        return
    with pytest.raises(UserError, match=f"^{line}$"):
        problem(name, model=MODEL | {"freeze": [part]}).build_network("cpu")


@pytest.mark.parametrize("name", ["fedprox", "fedsol", "projection"])
@pytest.mark.parametrize(("share", "kept"), [("A", 2 * 16 + 2 * 12), ("B", 2 * 64 + 2 * 16)])
def test_one_matrix_kept(share: str, kept: int, name: str) -> None:
    """Of methods that exchange parameters alone; the others, personalised ones too, have exchanges of their own."""
    found = trained(name, lora={"rank": 2, "alpha": 2, "share": share})
    assert {len(load_state(state)["own"]) for state in found.state.clients.values()} == {kept}
    said = f"share: found {share}, which is for methods that exchange parameters alone; scaffold exchanges"
    with pytest.raises(UserError, match=rf"^model\.lora\.{said}"):
        problem("scaffold", model=MODEL | {"lora": {"share": share}})
    with small.refused("exchange parameters alone; fedsol exchanges"):
        problem({"name": "fedsol", "proximal": "scaffold"}, model=MODEL | {"lora": {"share": share}})


@pytest.mark.parametrize("options", [{"name": "apfl"}, {"name": "fedproto", "answer": "classifier"}])
def test_a_subclass_with_an_answer_of_its_own_has_no_model_that_gives_it(options: dict[str, Any]) -> None:
    method = algorithm(options)
    own = type("Own", (type(method),), {"personal_logits": lambda self, c: None})
    assert method.answers_alone
    assert not own(**{key: value for key, value in options.items() if key != "name"}).answers_alone


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
    worker = Worker(problem(f"tests.algorithms.test_methods:{kind}"))
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


HERE = "tests.algorithms.test_methods"
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
