"""Models of the user's own: what they cast, draw, count and tie gives one theta through every door, or a refusal."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedray
from fedray.algorithms.base import Client
from fedray.algorithms.fedavg import FedAvg
from fedray.datasets.dataset import Dataset
from fedray.engine.exact_sum import add_up
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from tests import small
from tests.conftest import each

HERE = "tests.models.test_own_models"


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        self.out = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


class Cast(Plain):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


class Counting(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x) * (1 + 0.1 * self.count)


class Half(Cast):
    def __init__(self) -> None:
        super().__init__()
        self.double()


class Averaging(Cast):
    """Keeps a running statistic in float64, and float16 numbers that training leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("mask", torch.full((2,), -torch.inf, dtype=torch.float16))


class Unused(Cast):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(3, 3)


class Slips(Plain):
    """What `forward()` may not do, by name."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.frozen = slip, nn.Parameter(torch.ones(16), requires_grad=False)
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("most", torch.full((16,), -torch.inf))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        assert slip != "type" or len(5)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        if self.slip == "input" and self.training:
            x.add_(0.1)
        features = self.body(x)
        with torch.no_grad():
            if self.slip == "clip" or (self.slip == "clip in training" and self.training):
                self.out.weight.clamp_(-0.1, 0.1)
            elif self.slip == "replace":
                self.out.weight.data = self.out.weight.data / 2
            elif self.slip == "late" and not hasattr(self, "last"):
                self.last = nn.Linear(10, 10)
            elif self.slip == "table":
                if not hasattr(self, "table"):
                    self.register_buffer("table", torch.ones(16), persistent=False)
                features = features * self.table
            elif self.slip == "assign":
                self.mean = 0.9 * self.mean + 0.1 * features.mean(0)
            elif self.slip == "count":
                self.count = self.count + 1
            elif self.slip == "frozen":
                self.frozen.mul_(0.9)
            elif self.slip == "infinite":
                self.most.copy_(torch.maximum(self.most, features.amax(0)))
        logits: Tensor = self.out(features)
        if self.slip == "pair" and self.training:
            return logits, x  # type: ignore[return-value]
        return logits.softmax(1) if self.slip == "softmax" else logits[:1] if self.slip == "one" else logits


class HeadFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier, self.layer = nn.Linear(16, 10), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.layer(x.flatten(1)).relu())


class Logarithms(HeadFirst):
    """As in PyTorch's example: no layer's outputs are the model's."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log_softmax(1)


class Declared(Logarithms):
    head = "layer"


class Unlisted(Plain):
    """What PyTorch does not list, by name; a teacher, a cache, a table and weights that hooks make are harmless."""

    head = "out"

    def __init__(self, what: str = "") -> None:
        super().__init__()
        self.what, self.cache, self.names = what, torch.ones(1, requires_grad=True) * 1.0, [self.out, nn.ReLU()]
        self.teacher, self.table = [nn.Linear(64, 10).requires_grad_(False)], None
        self.aux = nn.utils.parametrizations.weight_norm(nn.Linear(16, 10))
        self.old = nn.utils.weight_norm(nn.Linear(16, 10))
        if what == "layers":
            self.layers = {"blocks": [(nn.Linear(16, 16), nn.ReLU())]}
        elif what == "closure":
            inner = nn.Linear(16, 16)
            self.call = lambda x: inner(x)
        elif what == "scale":
            self.scale = nn.Parameter(torch.ones(16)) * 0.1
        elif what == "alias":
            self.alias = {"w": self.out.weight.t()}

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        self.cache = self.body((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))
        self.table = torch.ones(16) if self.table is None else self.table
        if self.what == "layers":
            self.cache = self.layers["blocks"][0][0](self.cache)
        elif self.what == "closure":
            self.cache = self.call(self.cache)
        logits: Tensor = self.out(self.cache * self.table)
        return logits + self.aux(self.cache) + self.old(self.cache) if self.training else logits


class Mixes(Plain):
    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return super().forward(x) + (h - h.mean(0))[:, :10]  # type: ignore[no-any-return]


class Sequenced(Plain):
    head = "out"

    def __init__(self) -> None:
        super().__init__()
        self.out: nn.Module = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10))


class Headless(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 10, 8), nn.Flatten())


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :10]


class CastingMethod(FedAvg):
    def direction(self, c: Client) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().direction(c)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Linear(64, 10, bias=False)
        self.mid = nn.Linear(10, 64)
        self.out = nn.Linear(64, 10)
        self.out.weight = self.emb.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.mid(self.emb(x.flatten(1)))))


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
            return self.out(nn.functional.dropout(h, 0.2, training=True)).float()


class Masked(Cast):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))


class Normalised(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.body.append(nn.BatchNorm1d(16, momentum=None))


class Complex(Cast):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(16, dtype=torch.complex64))


class Unkeyed(Cast):
    """Draws a frozen layer, an integer buffer (which no server sends) or an attribute from a generator without seed."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        drawn = np.random.default_rng().normal(size=self.out.weight.shape).astype("float32")
        if kind == "layer":
            self.out.weight = nn.Parameter(torch.from_numpy(drawn), requires_grad=False)
        elif kind == "buffer":
            self.register_buffer("order", torch.from_numpy(drawn.argsort()))
        else:
            self.projection = drawn


class Remembering(Cast):
    """State in attributes: a counter, a moving average, a generator; and no state: a matrix of the trial pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.fixed, self.kept = 0, [1, {"a": 2}], None
        self.mean, self.projection = torch.zeros(16), None
        self.draws = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        h = self.kept = self.body(x)
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        if self.projection is None:
            self.projection = torch.eye(16)
        return self.out(h @ self.projection + 1e-3 * self.draws.normal())


class Dropping(Cast):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, training=True)


def config(model: str, algorithm: Any = "fedavg", **options: Any) -> dict[str, Any]:
    found = small.sections(algorithm, (6, 3), {"name": f"{HERE}:{model}", **options}, 0.5)
    return found | {"training": {"rounds": 3, "local_epochs": 1, "lr": 0.1, "batch_size": 32}}


def finish(backend: Any, given: dict[str, Any]) -> tuple[str, list[float]]:
    result = run(small.problem(**given), backend)
    return result.summary()["theta_sha256"], [row["test_accuracy"] for row in result.history]


def test_the_caller_s_generators_go_on() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    finish(InlineBackend(), config("Everything"))
    assert (random.random(), np.random.rand()) == expected


@each(
    (config("Tied", "fedbabu"), "model: emb.weight and out.weight are one tensor; fedbabu needs head and"),
    (config("Tied", freeze=["head"]), "model.freeze: found head; emb.weight of the body and out.weight are one"),
    (config("Complex"), "Complex.phase is complex; real numbers are required"),
    (config("Unused"), "Unused: its head, extra, is not used in forward() when it is tested; declare head = "),
    (config("Headless"), 'Headless has no nn.Linear to be its head; declare head = "NAME" in the class, the'),
    (config("Nothing"), "model.name: Nothing has no parameter to train"),
    (config("Unlisted", what="layers"), "calls Linear(in_features=16, out_features=16, bias=True), which is not"),
    (config("Unlisted", what="closure"), "calls Linear(in_features=16, out_features=16, bias=True), which is not"),
    (config("Unlisted", what="scale"), "scale has a gradient and is no nn.Parameter, so nothing would train or"),
    (config("Unlisted", what="alias"), "alias has a gradient and is no nn.Parameter, so nothing would train or"),
)
def test_a_model_that_cannot_be_trained_is_named(given: dict[str, Any], message: str) -> None:
    with small.refused(message):
        fedray.simulate(given)


@each(
    ("input", "Slips changes its input in place, and methods take several gradients of a batch; let it copy"),
    ("clip", "changes its parameters in forward(), which no step would keep; compute with a copy"),
    ("clip in training", "Slips changes out.weight in forward(), which no step would keep; compute with a copy"),
    ("replace", "Slips changes out.weight in forward(), which no step would keep"),
    ("late", "Slips makes last.weight in forward(), where nothing trains or keeps it; make it in __init__"),
    ("assign", "Slips assigns its buffer mean in forward(), so it would go on from client to client; write into it"),
    ("count", "Slips assigns its buffer count in forward(), so it would go on from client to client"),
    ("frozen", "Slips changes frozen in forward(), which no client (it is frozen, or begins with infinities)"),
    ("infinite", "Slips changes most in forward(), which no client (it is frozen, or begins with infinities)"),
    ("pair", "model.name: Slips.forward gives a tuple in training; a tensor with a number for each class is"),
    ("type", "TypeError: object of type 'int' has no len() (test_own_models.py:"),
    ("one", "gives outputs of shape (1, 10) for 2 samples, the data have 10 classes"),
)
def test_what_forward_may_not_do_is_refused(slip: str, message: str) -> None:
    """Each gave numbers, which depended on the number of actors or were not those of the model."""
    with small.refused(message):
        finish(InlineBackend(), config("Slips", slip=slip))
    with small.refused("Slips cannot be built: got an unexpected keyword argument 'slop'"):
        finish(InlineBackend(), config("Slips", slop=slip))


OTHER_HEAD = ": its outputs are not of the shape of those of its head, layer; declare head = "


@each(
    (
        config("Slips", slip="softmax"),
        ".forward gives probabilities, which sum to 1; the loss applies a softmax itself",
    ),
    (config("HeadFirst"), OTHER_HEAD),
    (config("Logarithms"), OTHER_HEAD),
    (config("Declared"), ""),
    (config("Sequenced"), ""),
    (config("Unlisted"), ""),
    (config("Mixes"), " gives a sample other outputs beside another one than alone when it is tested: it"),
    (config("Slips"), ""),
    (config("Slips", slip="table"), ""),
)
def test_what_forward_hardly_means_is_told(model: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture) -> None:
    finish(InlineBackend(), model)
    assert [said in line for line in caplog.messages] == [True] * bool(said)


def test_tensors_of_another_type_become_float32_and_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Trained parameters and running statistics; other buffers are not named."""
    half, averaging = (small.problem(**config(n)).build_network("cpu") for n in ("Half", "Averaging"))
    assert half.theta.dtype == torch.float32
    assert (averaging.buffers.dtype, averaging.buffers.numel()) == (torch.float32, 3)
    become = "is float64; trained parameters and running statistics become float32"
    assert caplog.messages == [f"model.name: Half: out.bias {become}", f"model.name: Averaging: mean {become}"]
    for name in ("Half", "Averaging"):  # a model that is given back, too: it takes the inputs that the run's took
        state = run(small.problem(**config(name)), InlineBackend()).model().state_dict()
        assert {tensor.dtype for key, tensor in state.items() if "mask" not in key} == {torch.float32}


@each(("Remembering", ["model.name: Remembering: draws, mean, seen changed in training; "]), ("Everything", []))
def test_attributes_that_change_are_named(model: str, said: list[str], caplog: pytest.LogCaptureFixture) -> None:
    finish(InlineBackend(), config(model))
    why = "if forward() reads such an attribute, numbers depend on which clients a process has trained, so make it a "
    assert [line.split("buffer")[0] for line in caplog.messages if "attribute" in line] == [s + why for s in said]


@pytest.mark.parametrize("model", ["Dropping", "Normalised"])
def test_draws_while_testing_are_keyed_by_round_split_and_chunk(model: str) -> None:
    """Whatever was drawn before; the same parameters have other draws in another round, if they draw."""
    running = small.simulation(**config(model))

    def test(split: str = "test", round: int = 0) -> list[float]:
        torch.rand(3)
        sums = add_up(running.backend.evaluate(running.state.theta, running.state.buffers, split, round))
        return [float(sums["loss"]), *sums["correct"].tolist()]

    for split in ("test", "train"):
        assert test(split) == test(split)
        assert test(split, 1) == test(split, 1)
        assert (test(split) == test(split, 1)) == (model == "Normalised")


class Untracked(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.body.append(nn.BatchNorm1d(16, track_running_stats=False))


class Twice(nn.Sequential):
    def __init__(self) -> None:
        same = nn.Linear(64, 64)
        super().__init__(nn.Flatten(), same, nn.ReLU(), same, nn.ReLU(), nn.Linear(64, 10))


def test_a_layer_that_stands_in_two_places_has_one_adapter_in_both() -> None:
    module = small.problem(**config("Twice", lora={"rank": 2})).build_module()
    assert module.get_submodule("1") is module.get_submodule("3")
    assert type(module.get_submodule("1")).__name__ == "LoRALinear"


class Packed(nn.Module):
    takes_tokens = True

    def __init__(self) -> None:
        super().__init__()
        self.e, self.rnn, self.out = nn.Embedding(9, 4, 0), nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.e(x), (x != 0).sum(1), batch_first=True, enforce_sorted=False)
        return self.out(self.rnn(packed)[1][0])  # type: ignore[no-any-return]


def test_a_model_is_tried_out_on_two_samples_not_on_zeros(caplog: pytest.LogCaptureFixture) -> None:
    """Zeros would be a sequence of padding alone. As `norm: batch_untracked`: one sample alone has no statistics of a
    batch, and none is tested alone."""
    x = np.random.default_rng(0).integers(1, 9, (24, 6))
    arrays = {"x_train": x, "y_train": np.arange(24) % 3, "x_test": x[:6], "y_test": np.arange(6) % 3}
    data = Dataset("digits", **arrays, num_classes=3)
    fedray.simulate(small.sections(model={"name": f"{HERE}:Packed"}, training={"rounds": 1}), data=data)
    assert [line for line in caplog.messages if "model.name" in line] == []
    run = small.sections(model=f"{HERE}:Untracked", training={"rounds": 1})
    assert fedray.simulate(run).history[-1]["test_accuracy"] > 10
    whole = small.problem().data
    with small.refused("Untracked has BatchNorm without running statistics, and a batch, or the last chunk of"):
        fedray.simulate(run, data=replace(whole, x_test=whole.x_test[:1], y_test=whole.y_test[:1]))
