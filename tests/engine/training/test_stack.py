"""Stacks of clients: the same bits as one after another, and off as soon as a bit differs; batches drawn together.

Every expected number of a stack comes from the same run with `runtime.stack: 1`."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedray.algorithms import ALGORITHMS
from fedray.algorithms.base import Client, Server, Sum, Uploads
from fedray.algorithms.fedavg import FedAvg
from fedray.common.errors import UserError
from fedray.common.vectors import Vectors
from fedray.config import Training
from fedray.datasets.dataset import ALIGNED, Dataset, Samples
from fedray.engine.messages import Broadcast, ClientTask
from fedray.engine.process import train
from fedray.engine.process.reduction import Reduction
from fedray.engine.training import batches, stack
from fedray.engine.training.batches import AHEAD, SMALL, Drawn, draw_ahead, draw_batches
from fedray.engine.training.stack import ClientResult
from fedray.partitions.base import Partition
from fedray.partitions.shards import Shards
from tests import small
from tests.conftest import each

Lines = Callable[[], list[str]]
DECLARED = sorted(name for name, method in ALGORITHMS.items() if vars(method).get("stacks"))


class Longest(FedAvg):
    """A user's method, which takes one norm of all it sees and yet declares itself."""

    name, stacks = "longest", True

    def direction(self, c: Client) -> Tensor:
        g = c.grad(c.theta)
        return g / torch.linalg.vector_norm(g)


class Weighted(FedAvg):
    """Needs in each step what a stack has only if it is the same for all."""

    name, stacks = "weighted", True

    def direction(self, c: Client) -> Tensor:
        return c.weight * c.grad(c.theta)


class Scaled(FedAvg):
    """Has a vector with a number for each of ten classes, which ten rows are not."""

    name, stacks = "scaled", True

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(scale=torch.linspace(0.1, 2, 10))

    def message(self, server: Server) -> Vectors:
        return Vectors(scale=server.state.scale)

    def begin(self, c: Client) -> None:
        c.local.scale = c.message.scale * 0.5

    def direction(self, c: Client) -> Tensor:
        g = c.grad(c.theta)
        return torch.cat([g[..., :-10], g[..., -10:] * c.local.scale], -1)


class Numbered(FedAvg):
    """Keeps a Python number in c.local, of the round or of the step."""

    name, stacks = "numbered", True
    by: Literal["round", "step"] = "round"

    def begin(self, c: Client) -> None:
        c.local.a = 0.5

    def direction(self, c: Client) -> Tensor:
        if self.by == "step":
            c.local.a = 0.5 + c.step
        return c.grad(c.theta) * c.local.a

    def upload(self, c: Client) -> Uploads:
        return {"u": Sum(c.update * c.weight, 1.0)}


class Doubles(FedAvg):
    """Sends one float64 vector in two sums."""

    name, stacks = "doubles", True

    def upload(self, c: Client) -> Uploads:
        h = c.update.double()
        return {"a": Sum(h, 0.5), "b": Sum(h, 1.0)}


class Draws(FedAvg):
    """Takes another batch than a step's."""

    name, stacks = "draws", True

    def direction(self, c: Client) -> Tensor:
        c.x, c.y = c.draw()
        return c.grad(c.theta)


class Undeclared(FedAvg):
    name, direction = "undeclared", Longest.direction


class Plain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of clients of each stack."""
    sizes, train_stack = list[int](), train.train_stack

    def counted(trainer: Any, stacking: Any, broadcast: Any, given: Sequence[Any]) -> Any:
        sizes.append(len(given))
        return train_stack(trainer, stacking, broadcast, given)

    monkeypatch.setattr(train, "train_stack", counted)
    return sizes


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """What the user was told."""
    caplog.set_level(logging.WARNING, "fedray")
    return lambda: [line for line in caplog.messages if "runtime.stack" in line]


def outcome(algorithm: Any, size: int | str, alpha: Any = 0.1, training: Any = None, **options: Any) -> Any:
    """The hashes and rows of two rounds of 16 of 24 clients, most of which come back."""
    steps = {"rounds": 2, "local_epochs": 2, "batch_size": 16, "lr": 0.05, "weight_decay": 1e-3} | (training or {})
    options = {"model": 12, "runtime": {"backend": "inline", "stack": size}} | options
    return small.outcome(small.simulation(algorithm, (24, 16), partition=alpha, training=steps, **options))


@pytest.mark.parametrize("name", DECLARED)
def test_no_bit_changes(name: str, made: list[int], lines: Lines) -> None:
    """Dirichlet(0.1): other numbers of steps, last batches of every size, shards of one sample; momentum, clipping.

    16 clients in stacks of at most 7 are 6, 6 and 4. On equal shards all of a round happens in stacks, uploads
    included; `auto` makes one of the whole cohort if it can."""
    training = {"clip_norm": 1.0, "momentum": small.momentum(name, 0.9)}
    assert outcome(name, 7, training=training) == outcome(name, 1, training=training)
    assert made[:3] == [6, 6, 4]
    made.clear()
    once = {"local_epochs": 1}
    assert outcome(name, "auto", "iid", once) == outcome(name, 1, "iid", once)
    assert made
    assert lines() == []


@pytest.mark.parametrize("by", ["round", "step"])
def test_a_python_number_in_local_is_that_of_all(by: str, made: list[int]) -> None:
    method = {"name": f"{__name__}:Numbered", "by": by}
    found = outcome(method, 7)
    assert (found, made[0]) == (outcome(method, 1), 6)


def test_batches_of_one_sample_go_alone(monkeypatch: pytest.MonkeyPatch, made: list[int]) -> None:
    """Their products run another loop of PyTorch. Some shard has 5 k + 1 samples, so its last batch has one."""
    seen = Mock(wraps=stack.compute_gradients)
    monkeypatch.setattr(stack, "compute_gradients", seen)
    assert 1 in small.problem("fedavg", (24, 24), 12, 0.1).split.train.sizes % 5
    few = {"batch_size": 5}
    assert outcome("fedavg", 24, training=few) == outcome("fedavg", 1, training=few)
    assert {call.args[-1].shape[1] for call in seen.call_args_list} == {2, 3, 4, 5}
    assert made


@each(
    ({"optimizer": "adamw"}, {}), ({"local_epochs": None, "local_steps": 3}, {}), ({}, {"model": f"{__name__}:Plain"})
)
def test_other_settings(settings: dict[str, Any], options: dict[str, Any], made: list[int], lines: Lines) -> None:
    assert outcome("fedavg", 8, training=settings, **options) == outcome("fedavg", 1, training=settings, **options)
    assert (max(made), lines()) == (8, [])


@each(
    (Undeclared, {}, {}),
    ("fedntd", {}, {}),  # its own loss, and another model's answers
    ("fedrep", {}, {}),  # clients keep a part
    ("fedavg", {"optimizer": "muon"}, {}),  # the step of a matrix is no row's
    ("fedavg", {"lr_decay_within": 0.5}, {}),  # rates that differ with the length of an epoch
    ("fedavg", {"relaxed_start": 0.1}, {}),
    ("fedavg", {}, {"model": "tests.probes.probed:Careful"}),
)
def test_what_has_no_stack_goes_alone(algorithm: Any, training: Any, options: Any, made: list[int]) -> None:
    steps, runtime = {"rounds": 1, "batch_size": 64, "lr": 0.05, **training}, {"backend": "inline", "stack": 8}
    sections = {"partition": 0.3, "training": steps, "model": {"name": "mlp", "hidden": [12]}, **options}
    small.outcome(small.simulation(algorithm, (6, 3), **sections, runtime=runtime))
    assert made == []


def test_kernels_of_other_bits_turn_stacks_off(monkeypatch: pytest.MonkeyPatch, made: list[int], lines: Lines) -> None:
    """One entry of one row is off by its last bit: the run's numbers are those without stacks, and one line says so."""
    compute = stack.compute_gradients

    def off(*arguments: Any) -> tuple[Tensor, Tensor]:
        losses, gradients = compute(*arguments)
        gradients[-1, -1] = torch.nextafter(gradients[-1, -1], torch.tensor(1e9))
        return losses, gradients

    expected = outcome("scaffold", 1)
    monkeypatch.setattr(stack, "compute_gradients", off)
    assert (outcome("scaffold", 8), len(made)) == (expected, 1)
    (line,) = lines()
    assert line.startswith("runtime.stack: gradients of ")
    assert line.endswith(" have other bits in a stack on this machine; each client trains alone")


def test_a_method_that_is_no_method_of_rows_turns_them_off(made: list[int], lines: Lines) -> None:
    """Its first stack disagrees with its clients alone, whose results count."""
    assert (outcome(Longest, 8), len(made)) == (outcome(Longest, 1), 1)
    assert lines() == [f"runtime.stack: {__name__}:Longest has other bits in a stack; each client trains alone"]


def test_a_vector_as_long_as_a_stack_is_not_taken_for_its_rows(lines: Lines) -> None:
    """Nine clients, then ten, with batches that differ in size: each kind is compared when it is first made."""
    clients = {"total": 20, "per_round": 9, "cohorts": [[*range(9)], [*range(10)], [*range(5, 15)], [*range(10)]]}
    given = {"partition": 0.3, "training": {"rounds": 4, "local_epochs": 1, "batch_size": 16}}
    alone, stacked = (
        small.outcome(small.simulation(Scaled, clients, **given, runtime={"backend": "inline", "stack": size}))
        for size in (1, "auto")
    )
    assert (stacked, len(lines())) == (alone, 1)


def test_a_sum_leaves_what_it_adds_as_it_is(lines: Lines) -> None:
    """From the second stack on, too, whose clients are not computed alone as well."""
    assert outcome(Doubles, 8, "iid") == outcome(Doubles, 1, "iid")
    assert lines() == []


def test_a_number_that_differs_is_refused(made: list[int], lines: Lines) -> None:
    """If all weights are equal there is one; otherwise the method goes alone."""
    training = {"local_epochs": None, "local_steps": 2, "aggregation": "uniform"}
    assert outcome(Weighted, 8, training=training) == outcome(Weighted, 1, training=training)
    assert lines() == []
    training["aggregation"] = "samples"
    assert outcome(Weighted, 8, training=training) == outcome(Weighted, 1, training=training)
    (line,) = lines()
    assert "weight is not the same for all clients" in line


def test_a_draw_is_each_client_s_own(lines: Lines) -> None:
    assert outcome(Draws, 8) == outcome(Draws, 1)
    (line,) = lines()
    assert "a draw has no stack" in line


def test_a_stack_out_of_memory_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    full = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    monkeypatch.setattr(stack, "compute_gradients", Mock(side_effect=full))
    with pytest.raises(UserError, match=r"^runtime\.stack: 8 clients in a stack \(1 is each alone\): out of memory: "):
        outcome("feddyn", 8, "iid")


def test_only_the_client_that_went_wrong_is_refused() -> None:
    """Row 1 has a NaN in its update, row 2 an infinite state."""
    update = torch.ones(3, 70)
    update[1, 5] = torch.nan
    state = torch.ones(3, 70)
    state[2, 0] = torch.inf
    reduction, tasks = Reduction(), [ClientTask(client, 0.5, Vectors()) for client in (4, 7, 9)]
    reduction.add(ClientResult(tasks, torch.ones(3), [2, 2, 2], {"update": Sum(update, 0.5)}, Vectors(h=state)), 3)
    refused, _, _ = reduction.finish()
    assert refused == {7: "update is not finite", 9: "its state h is not finite"}


RNG = np.random.default_rng(0)
INPUTS: dict[str, np.ndarray] = {
    "rows of 12 bytes": RNG.standard_normal((40, 3), dtype=np.float32),
    "rows of 256 bytes": RNG.standard_normal((40, 64), dtype=np.float32),
    "images": RNG.integers(0, 256, (40, 1, 5, 5), dtype=np.uint8),
    "tokens": RNG.integers(0, 9, (40, 7), dtype=np.uint8),
}


def make_samples(x: np.ndarray) -> Samples:
    y = np.arange(len(x)) % 3
    return Samples(x, y, Dataset("random", x, y, x[:5], y[:5], 3, *(((0.5,), (0.3,)) if x.ndim == 4 else ())), "cpu")


@pytest.mark.parametrize("kind", INPUTS)
def test_batches_gathered_together_are_those_gathered_alone(kind: str) -> None:
    """Each begins where a tensor of its own would: at a multiple of 64 bytes."""
    samples = make_samples(INPUTS[kind])
    assert list(samples.make_batches([])) == []
    parts = [np.array(part) for part in ([3, 1, 39], [7], [0, 2, 4, 6, 8], [11, 12])]
    found = list(samples.make_batches(parts))
    assert len(found) == len(parts)
    for part, (x, y) in zip(parts, found, strict=True):
        alone = samples.make_batch(part)
        assert x.dtype == alone[0].dtype
        assert all(map(torch.equal, (x, y), alone))
        assert x.is_contiguous()
        assert (x.data_ptr() % ALIGNED, x[0].numel() * x.element_size()) == (0, samples.input_bytes)


def test_a_method_may_write_into_its_batch() -> None:
    """As with a batch of its own: the others neither change nor get a gradient."""
    first, second = (x for x, _ in make_samples(INPUTS["rows of 256 bytes"]).make_batches([np.arange(2), np.arange(3)]))
    before, noise = second.clone(), torch.ones(2, 64, requires_grad=True)
    first += noise
    first.sum().backward()
    assert noise.grad is not None
    assert torch.equal(second, before)
    assert not second.requires_grad
    assert second._version == 0


def draw(sizes: Sequence[int], samples: Samples | None, **training: Any) -> list[tuple[int, Drawn | None]]:
    """Draw ahead for clients that hold that many samples, of a set that repeats 40."""
    shards, none = Shards.from_lists([np.arange(n) % 40 for n in sizes]), torch.zeros(0)
    broadcast = Broadcast(round=2, lr=0.1, theta=none, buffers=none, message=Vectors(), cohort=len(sizes))
    tasks = [ClientTask(i, 1.0, Vectors()) for i in range(len(sizes))]
    settings = Training(**{"batch_size": 4, "local_epochs": 1} | training)
    return [(task.client, found) for task, found in draw_ahead(settings, shards, 5, broadcast, tasks, samples)]


def test_what_is_drawn_ahead_is_what_each_client_draws_and_too_many_samples_are_not() -> None:
    """Client 3 visits more than 4,096 samples: it draws while it trains, between the groups of the others."""
    samples, sizes = make_samples(INPUTS["images"]), [5, 9, 4, SMALL + 1, 6, *[3] * AHEAD]
    found = draw(sizes, samples)
    assert [client for client, _ in found] == list(range(len(sizes)))
    assert [client for client, drawn in found if drawn is None] == [3]
    for client, drawn in found:
        if drawn is None:
            continue
        order = list(draw_batches(Training(batch_size=4, local_epochs=1), sizes[client], 5, 2, client))
        assert [part.tolist() for part in drawn.order] == [part.tolist() for part in order]
        if drawn.batches is not None:
            for part, batch in zip(order, drawn.batches, strict=True):
                assert all(map(torch.equal, batch, samples.make_batch(part % 40)))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_no_bit_depends_on_what_is_gathered_and_added_together(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together: six clients of a few hundred parameters in one group. Alone: no room for a second one."""

    def run() -> tuple[str, str, list[dict[str, float]]]:
        training = {"rounds": 2, "local_epochs": 2, "batch_size": 7}
        return small.outcome(small.simulation(algorithm, clients=(8, 6), partition=0.5, training=training))

    together = run()
    monkeypatch.setattr(batches, "GATHERED", 0)
    monkeypatch.setattr("fedray.engine.process.train.AHEAD", 1)
    assert run() == together


class Rest(Partition):
    """Everything for client 1."""

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        return Shards.from_owner(np.ones(len(labels), dtype=np.int64), clients)


def test_a_client_0_without_samples_is_refused() -> None:
    rest = {"name": f"{__name__}:Rest", "min_size": 0}
    with pytest.raises(UserError, match=r"^training\.nominal_steps: found client0, and client 0 has no samples$"):
        small.problem("scaffold", (2, 1), partition=rest, training={"nominal_steps": "client0"})
