"""Recorded gradients and predictions, with a stand-in for CUDA's graphs: the bits of eager ones, or no recording."""

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedray.algorithms.base import Algorithm, Client, Forward
from fedray.models import recorded
from fedray.models.network import Network
from fedray.models.recorded import KEPT, PROOFS, RARE, WARM, CudaGraph, Recorder, have_same_bits
from tests import small
from tests.recording import Called, Elsewhere, record_calls

STEPS = WARM + PROOFS + 3


class Plain(nn.Module):
    """A model of 6 inputs and 3 classes; its subclasses vary `middle`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def middle(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.norm(self.first(x))).relu())


def vary(middle: Callable[[Any, Tensor], Tensor], **state: Any) -> type[Plain]:
    """Return a class of models with this `middle`."""
    return type("Varied", (Plain,), {"middle": middle} | state)


def cast(_: Plain, h: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (h @ h.T @ h).float()


def count(model: Any, h: Tensor) -> Tensor:
    model.passes += 1
    return h * model.passes


def remember(model: Any, h: Tensor) -> Tensor:
    result, model.last = h + model.last, h.detach().mean(0)
    return result


Dropped, OwnAutocast = vary(lambda model, h: nn.functional.dropout(h, 0.5, model.training)), vary(cast)
MOVING = {
    "a counter": vary(count, passes=0),
    "a tensor": vary(remember, last=0.0),
    "NumPy's generator": vary(lambda _, h: h * float(np.random.rand())),
    "Python's generator": vary(lambda _, h: h * random.random()),
}
"""Models in which Python moves something."""
GENERATORS = (partial(np.random.default_rng, 0), partial(random.Random, 0), torch.Generator)


class OwnGenerator(Plain):
    def __init__(self, generator: Callable[[], Any]) -> None:
        super().__init__()
        self.rng = generator()

    def middle(self, h: Tensor) -> Tensor:
        if isinstance(self.rng, torch.Generator):
            return h * torch.rand((), generator=self.rng)
        return h * self.rng.random()


def make(module: Callable[[], nn.Module], **options: Any) -> tuple[Network, Network]:
    """The same network twice, the second with recordings."""
    networks = []
    for _ in range(2):
        torch.manual_seed(0)
        networks.append(Network(module(), **options))
    record_calls(networks[1])
    return networks[0], networks[1]


def iter_inputs(network: Network, count: int = STEPS, size: int = 5) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Different parameters and batches."""
    drawn = torch.Generator().manual_seed(1)
    for _ in range(count):
        x, y = torch.randn(size, 6, generator=drawn), torch.randint(3, (size,), generator=drawn)
        yield network.initial + 0.1 * torch.randn(network.layout.size, generator=drawn), x, y


def compare(module: Callable[[], nn.Module], replays: int = STEPS - WARM, **options: Any) -> None:
    """Take gradients at different points with both networks, from the same draws; hold on to all results."""
    plain, recording = make(module, **options)
    held = []
    for network in (plain, recording):
        torch.manual_seed(2)
        random.seed(2)
        np.random.seed(2)
        Called.replays = 0
        results = [network.compute_gradient(*given) for given in iter_inputs(network)]
        held.append([t for result in results for t in result] + network.keep() + [torch.rand(3)])
    assert all(map(have_same_bits, *held))
    assert Called.replays == replays


@pytest.mark.parametrize("module", [Plain, Dropped, OwnAutocast])
@pytest.mark.parametrize(("bf16", "viewed"), [(False, None), (True, None), (False, 0)])
def test_a_replays_bits(module: type[Plain], bf16: bool, viewed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are an eager gradient's, with statistics, counters, draws and kept results; large models are views of θ."""
    if viewed is not None:
        monkeypatch.setattr("fedray.models.network.VIEWED", viewed)
    compare(module, bf16=bf16)


@pytest.mark.parametrize("module", [*MOVING.values(), *(partial(OwnGenerator, kind) for kind in GENERATORS)])
def test_moving_python_is_never_replayed(module: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture) -> None:
    compare(module, 0)
    assert "Python changes something in it" in caplog.text


def test_predictions_are_recorded_and_have_statistics_of_their_own() -> None:
    plain, recording = make(Plain)
    for network in (plain, recording):
        network.train(False)
    for given in iter_inputs(plain):
        outputs = [network.predict(*given[:2]) for network in (plain, recording)]
        assert torch.equal(outputs[0].logits, outputs[1].logits)
        assert torch.equal(outputs[0].features, outputs[1].features)
        for network in (plain, recording):
            network.buffers.add_(0.1)


class FailsOnce(Called):
    error: Exception = RuntimeError()

    def record(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        compute()
        raise self.error


@pytest.mark.parametrize("module", [Plain, Dropped])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("operation not permitted when stream is capturing\nmore"), "operation not permitted when stream"),
        (torch.OutOfMemoryError("CUDA out of memory"), "the GPU has no memory for it"),
    ],
)
def test_a_failed_capture_changes_nothing_and_is_said_once(
    error: Exception, said: str, module: type[Plain], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the model nor for the next one in the process."""
    monkeypatch.setattr(FailsOnce, "error", error)
    monkeypatch.setattr("tests.recording.Called", FailsOnce)
    compare(module, 0)
    monkeypatch.undo()
    assert caplog.text.count(said) == 1
    assert "more" not in caplog.text.replace("more slowly", "")
    compare(Dropped)


class Wrong(Called):
    def replay(self) -> None:
        super().replay()
        self._results[-1].view(torch.int32)[0] ^= 1


def test_a_replay_of_other_bits_is_untrusted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.recording.Called", Wrong)
    compare(Dropped, 0)
    assert "a replay has other bits" in caplog.text


def count_recorded(recorder: Recorder) -> int:
    return sum(entry.graph is not None for entry in recorder._entries.values())


def test_a_rare_shape_is_recorded_once_it_pays_and_the_least_used_goes() -> None:
    _, network = make(Plain)
    recorder = network.recorder
    for size in range(5, 5 + KEPT):
        for given in iter_inputs(network, RARE + 1 if size > 5 else WARM + 1, size):
            network.compute_gradient(*given)
    assert count_recorded(recorder) == KEPT
    for given in iter_inputs(network, RARE, 3):
        network.compute_gradient(*given)
    assert count_recorded(recorder) == KEPT
    least = next(iter(recorder._entries.values()))
    network.compute_gradient(*next(iter_inputs(network, 1, 3)))
    assert least.graph is None
    assert count_recorded(recorder) == KEPT


class Weighted(Algorithm):
    """A method whose loss reads a number that changes from round to round, made without a device."""

    name = "weighted"

    def loss(self, forward: Forward, x: Tensor, y: Tensor, weight: Tensor, *others: Tensor) -> Tensor:
        return weight * cross_entropy(forward(x).logits, y)

    def gradient(self, c: Client) -> Tensor:
        weight = torch.tensor(c.lr / c.first_lr).as_subclass(Elsewhere)
        return c.grad(c.theta, self.loss, weight) + c.second.grad(c.theta, self.loss, weight)


class Scaled(Algorithm):
    """A method whose loss reads an option, an attribute of its class, a number of its module, and a tensor."""

    name = "scaled"
    by: float = 2.0
    factor: ClassVar[float] = 1.0

    def loss(self, forward: Forward, x: Tensor, y: Tensor, *tensors: Tensor) -> Tensor:
        return self.by * self.factor * FACTOR * sum(tensors, torch.ones(())) * cross_entropy(forward(x).logits, y)

    def gradient(self, c: Client) -> Tensor:
        return c.grad(c.theta, self.loss)


FACTOR = 1.0


class Stale(Called):
    """A replay sees Python's values as they were at the recording, as CUDA's does."""

    def record(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        self._seen = Scaled.factor, FACTOR
        return super().record(compute)

    def replay(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Scaled, "factor", self._seen[0])
            patch.setattr(f"{__name__}.FACTOR", self._seen[1])
            super().replay()


def test_a_loss_whose_values_change_is_not_stale_and_they_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other options, another attribute, another number of the module, another tensor: each gives its own gradient."""
    plain, recording = make(Plain)
    recording.recorder = Recorder(recording, Stale)
    for number, given in enumerate(iter_inputs(plain, 60)):
        method = Scaled(by=1.0 + number % 2)
        monkeypatch.setattr(Scaled, "factor", 1.0 + (number // 2) % 2)
        monkeypatch.setattr(f"{__name__}.FACTOR", 1.0 + (number // 4) % 2)
        extra = torch.tensor(float(number))
        found = [n.compute_gradient(*given, loss=method.loss, tensors=[extra]) for n in (plain, recording)]  # type: ignore[arg-type]
        assert all(map(have_same_bits, *found)), number
    monkeypatch.setattr(recorded, "KNOWN", 10)
    _, network = make(Plain)
    for number, given in enumerate(iter_inputs(network, 40)):
        network.compute_gradient(*given, loss=Scaled(by=number).loss)  # type: ignore[arg-type]
    assert len(network.recorder._entries) <= 10


def test_a_number_of_another_device_is_not_frozen_in_a_recording() -> None:
    """It is moved where it enters, for a network's own calls and for a client's; a vector as well."""
    plain, recording = make(Plain)
    for number, given in enumerate(iter_inputs(plain)):
        extra = [torch.tensor(1.0 + number), torch.full((3,), float(number))]
        away = [one.as_subclass(Elsewhere) for one in extra]
        Called.replays = 0
        expected = plain.compute_gradient(*given, loss=Weighted().loss, tensors=extra)
        found = recording.compute_gradient(*given, loss=Weighted().loss, tensors=away)
        assert all(map(have_same_bits, found, expected)), number
    assert Called.replays
    found = []
    for records in (False, True):
        options = {"training": {"rounds": 4, "lr_decay": 0.5, "batch_size": 16}, "runtime": {"stack": 1}}
        running = small.simulation({"name": Weighted}, **options)
        if records:
            record_calls(running.backend._worker.network)  # type: ignore[attr-defined]
        found.append(small.outcome(running))
    assert found[0] == found[1]


def test_bits_are_compared() -> None:
    assert not have_same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert have_same_bits(torch.tensor(torch.nan), torch.tensor(torch.nan))


@pytest.mark.parametrize("name", ["fedsam", "fedge", "fedlc", "fedntd", "fedgen", "fedgmt", "fedas", "feduv", "moon"])
def test_methods_have_the_same_bits_with_recordings(name: str) -> None:
    """Whole runs: second models, batches of other sizes, parts, evaluation. The methods of tests.methods.COVER are
    recorded in lanes, in tests/engine/process/test_lanes.py."""
    options = {"model": 12, "partition": 0.5, "training": {"rounds": 2, "local_epochs": 1, "batch_size": 16}}
    found = []
    for records in (False, True):
        running = small.simulation(name, **options)
        if records:
            record_calls(running.backend._worker.network)  # type: ignore[attr-defined]
            Called.replays = 0
        found.append(small.outcome(running))
    assert found[0] == found[1]
    assert Called.replays


class Generator:
    """A CUDA generator: a state that can be exchanged. State: seed and offset."""

    def __init__(self, state: list[int]) -> None:
        self.state = state

    def clone_state(self) -> "Generator":
        return Generator(list(self.state))

    def graphsafe_get_state(self) -> "Generator":
        return Generator(self.state)

    def graphsafe_set_state(self, other: "Generator") -> None:
        self.state = other.state

    def get_state(self) -> Tensor:
        return torch.tensor(self.state)

    def set_state(self, state: Tensor) -> None:
        self.state[:] = state.tolist()


class Captured:
    """A CUDA graph that counts what it is asked for; each replay draws 4 numbers from the state of its capture."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        self.calls.append(f"begin {pool} {capture_error_mode}")
        self.state = GENERATOR.state

    def capture_end(self) -> None:
        self.calls.append("end")

    def reset(self) -> None:
        self.calls.append("reset")

    def replay(self) -> None:
        self.state[1] += DRAWN


class Stream:
    device, device_index = torch.device("cpu"), 0

    def wait_stream(self, other: object) -> None: ...


GENERATOR, DRAWN = Generator([7, 0]), 4


@pytest.fixture
def _cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of torch.cuda as a graph is made with."""
    pools, modes = iter([(1, 0), (2, 0)]), ["default"]
    monkeypatch.setattr(recorded, "list_generators", lambda device: [GENERATOR])
    monkeypatch.setattr(GENERATOR, "state", [7, 0])
    fakes: dict[str, Any] = {
        "CUDAGraph": Captured, "Stream": Stream, "current_stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(), "graph_pool_handle": lambda: next(pools),
        "get_sync_debug_mode": lambda: modes[-1], "set_sync_debug_mode": modes.append,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)


@pytest.mark.usefixtures("_cuda")
@pytest.mark.parametrize("drawn", [0, 4])
def test_a_graph_draws_where_the_device_has_stopped(drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a state of its own; without draws it leaves the generator alone."""
    monkeypatch.setattr(f"{__name__}.DRAWN", drawn)
    graph = CudaGraph(Stream(), [(5, 0)])  # type: ignore[arg-type]
    calls: list[list[int]] = []
    graph.record(lambda: calls.append(list(GENERATOR.state)) or ())
    assert len(calls) == 2, "a rehearsal and the capture"
    for expected in (drawn, 2 * drawn):
        graph.replay()
        assert GENERATOR.state == [7, expected]
    GENERATOR.set_state(torch.tensor([9, 100]))
    graph.replay()
    assert GENERATOR.state == [9, 100 + drawn]
    assert graph._graph.calls == ["begin (5, 0) thread_local", "end"]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_cuda")
def test_a_capture_that_fails_is_ended_reset_and_leaves_its_pool() -> None:
    pools, count = [(5, 0)], [0]
    graph = CudaGraph(Stream(), pools)  # type: ignore[arg-type]

    def fail() -> tuple[Tensor, ...]:
        count[0] += 1
        GENERATOR.state[1] += 4
        if count[0] == 2:  # not in the rehearsal
            raise RuntimeError("not permitted")
        return ()

    with pytest.raises(RuntimeError, match="not permitted"):
        graph.record(fail)
    assert graph._graph.calls == ["begin (5, 0) thread_local", "end", "reset"]  # type: ignore[attr-defined]
    assert GENERATOR.state == [7, 4], "the rehearsal's draws alone"
    assert (pools, torch.cuda.get_sync_debug_mode()) == ([(1, 0)], "default")
