"""A process that trains clients: in lanes they have the bits that they have alone; on a device shards and states stay,
with one upload per client and one wait per share; switches of a GPU's kernels, and the caller's settings put back.

There need be no GPU: networks, draws and turns are those of one, and the process behaves on the CPU as on a device
(`Worker.reside`). A stand-in counts the copies, which all go through `fedray.common.vectors`, and a dispatch mode sees
operations that make a process wait for a GPU."""

import contextlib
import os
import pickle
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedray
from fedray.algorithms.base import Algorithm, Client, PerClient, Sum
from fedray.common import vectors
from fedray.common.errors import UserError
from fedray.common.explain import explain
from fedray.common.vectors import Vectors, digest_tensors
from fedray.config import Runtime
from fedray.datasets.augment import Crop, Cutout, Flip, Rotate
from fedray.datasets.dataset import ClientSamples, Dataset, ResidentSamples, Samples
from fedray.engine.problem import Problem
from fedray.engine.process import device, lanes
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.device import isolate_run
from fedray.engine.process.evaluate import evaluate
from fedray.engine.process.lanes import Lane, Lanes
from fedray.engine.process.reduction import Reduction
from fedray.engine.process.residence import Residence
from fedray.engine.process.worker import Worker
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import load_state
from tests import small
from tests.conftest import Call, each
from tests.methods import COVER, METHODS
from tests.recording import Called, Elsewhere, record_calls


class Normalised(nn.Module):
    taps, noise = ("norm",), False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.noise:
            x = x + np.random.rand() * random.random()
        return self.head(nn.functional.dropout(self.norm(self.first(x.flatten(1))).relu(), 0.3, self.training))


class Noisy(Normalised):
    """Draws from NumPy's and Python's generators as well."""

    noise = True


class Failing(Algorithm):
    name = "failing"

    def gradient(self, c: Client) -> Tensor:
        torch.rand(3)
        if c.step == 2 and c.samples < 100:
            raise KeyboardInterrupt
        return c.grad(c.theta)


OPTIONS: dict[str, Any] = {
    "partition": 0.3, "clients": (8, 6), "model": "tests.engine.process.test_lanes:Normalised",
    "training": {"rounds": 2, "local_epochs": 2, "batch_size": 16, "last_batch": "drop"},
}  # fmt: skip


def get_worker(running: Simulation) -> Worker:
    return running.backend._worker  # type: ignore[attr-defined,no-any-return]


def open_lanes(
    count: int | None, algorithm: Any = "fedavg", records: bool = False, memory: Any = None, **options: Any
) -> tuple[Simulation, Lanes]:
    """A run that trains in lanes, with recordings if asked for."""
    running = small.simulation(algorithm, **OPTIONS | options)
    worker = get_worker(running)
    if records:
        worker.record = record_calls
        record_calls(worker.network)
    worker.open_lanes(count, memory)
    return running, worker.lanes  # type: ignore[return-value]


def in_lanes(count: int, algorithm: Any = "fedavg", records: bool = False, **options: Any) -> Any:
    """What a run leaves: hashes and rows."""
    return small.outcome(open_lanes(count, algorithm, records, **options)[0])


@pytest.mark.parametrize("name", COVER)
def test_methods_have_the_same_bits_in_lanes(name: str) -> None:
    """With every hook, second and personal models, running statistics and dropout; recorded as well."""
    training = OPTIONS["training"] | {"local_epochs": 1, "momentum": small.momentum(name)}
    evaluation = {"personal": {"epochs": [1]}}
    alone = in_lanes(1, name, training=training, evaluation=evaluation)
    Called.replays = 0
    assert in_lanes(3, name, True, training=training, evaluation=evaluation) == alone
    assert Called.replays


def test_draws_of_numpy_and_python_belong_to_a_lane_and_what_is_frozen_to_all() -> None:
    noisy = "tests.engine.process.test_lanes:Noisy"
    assert in_lanes(3, model=noisy) == in_lanes(1, model=noisy)
    running, opened = open_lanes(2, model={"name": "mlp", "hidden": [12, 12], "freeze": ["1"]})
    running.step()
    first, second = (lane.network for lane in opened.lanes)
    assert first.frozen
    assert all(first.frozen[name].data_ptr() == t.data_ptr() for name, t in second.frozen.items())
    assert second.initial is first.initial


def test_an_interrupt_closes_all_lanes_and_restores_the_generator() -> None:
    running, opened = open_lanes(3, {"name": Failing})
    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        running.step()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(lane._steps.gi_frame is None for lane in opened.lanes)


def test_out_of_memory_half_the_lanes_go_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    alone, advance = in_lanes(1), Lane.advance

    def advance_in(room: int) -> Any:
        def run(lane: Lane) -> bool:
            if len(opened.lanes) > room and lane is opened.lanes[-1]:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
            return advance(lane)

        return run

    running, opened = open_lanes(4)
    monkeypatch.setattr(Lane, "advance", advance_in(1))
    assert (small.outcome(running), len(opened.lanes)) == (alone, 1)
    assert all(text in caplog.text for text in ("runtime.lanes: out of memory with 4", "now there are 1"))
    running, opened = open_lanes(2)
    monkeypatch.setattr(Lane, "advance", advance_in(0))
    with pytest.raises(UserError, match=r"client \d+ \(\d+ samples\): out of memory: .*lower training\.batch_size"):
        running.step()


@pytest.mark.parametrize(("name", "tried"), [("task_to_device", 4), ("build_network", 3)])
def test_memory_that_runs_out_at_a_state_or_at_a_lane_leaves_fewer(
    name: str, tried: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client whose state finds no place is not lost, and a lane that cannot be built is none."""
    alone, real, calls = in_lanes(1, "scaffold"), getattr(Worker, name), Counter[str]()

    def run_out(*args: Any) -> Any:
        calls[name] += 1
        if calls[name] == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return real(*args)

    monkeypatch.setattr(Worker, name, run_out)
    running, opened = open_lanes(4, "scaffold")
    assert (small.outcome(running), len(opened.lanes)) == (alone, 2)
    assert f"runtime.lanes: out of memory with {tried} or more lanes; now there are 2" in caplog.text


@each(
    ("fedray.models.network.Network.predict", "the test of the global model: out of memory", {}),
    ("fedray.models.network.Network.__call__", "the model: out of memory", {}),
    ("fedray.engine.exact_sum.Accumulator.add_rows", "training: out of memory", {}),
    ("fedray.engine.process.worker.Worker.to_device", "training: out of memory", {}),
    ("fedray.client.LocalClient.predict", "the test of personal models: out of memory", {"algorithm": "local-only"}),
)
def test_memory_that_runs_out_is_a_line(place: str, said: str, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running = None if "__call__" in place else small.simulation(options.get("algorithm", "fedavg"))
    built, full = small.problem("fedavg"), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")
    monkeypatch.setattr(place, raising(full))
    with small.refused(f"{said}: CUDA out of memory. Tried to allocate; lower training.batch_size"):
        Worker(built) if running is None else small.outcome(running)


def raising(error: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@each(
    ("max_unpool2d does not have a deterministic implementation, but", "runtime.deterministic: max_unpool2d has no"),
    ("DefaultCPUAllocator: can't allocate memory: you tried", "model.name: mlp: out of memory: DefaultCPUAllocator"),
    ("mat1 and mat2 shapes cannot be multiplied", "does not take inputs of shape (1, 8, 8): mat1 and mat2"),
)
def test_a_model_s_trial_says_what_went_wrong(error: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = small.problem("fedavg")
    monkeypatch.setattr("fedray.models.network.Network.__call__", raising(RuntimeError(error)))
    with small.refused(said):
        built.build_network("cpu")


class Away(Algorithm):
    """Makes a state and uploads without a device."""

    name = "away"

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(visits=torch.zeros(()).as_subclass(Elsewhere))

    def upload(self, c: Client) -> dict[str, Sum | PerClient]:
        assert type(c.state.visits) is Tensor
        c.state.visits = (c.state.visits + 1).as_subclass(Elsewhere)
        one = torch.ones(2).as_subclass(Elsewhere)
        return {"count": Sum(one, 0.5), "each": PerClient(one)}


def test_a_user_s_vectors_are_moved_to_the_client_s_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those that are there: one sum or one copy takes all."""
    results, add = list[Any](), Reduction.add
    monkeypatch.setattr(Reduction, "add", lambda self, one, cohort: results.append(one) or add(self, one, cohort))
    for lanes_open in (1, 3):
        small.finish(open_lanes(lanes_open, {"name": Away})[0])
    assert all(type(v) is Tensor for one in results for v in one.state.values())
    assert all(type(sent.vector) is Tensor for one in results for sent in one.uploads.values())
    assert {float(one.state.visits) for one in results} == {1.0, 2.0}


@pytest.mark.parametrize(("free", "count"), [(0, 1), (125, 2), (10_000, lanes.MOST)])
def test_the_first_client_tells_how_many_lanes_there_are(free: int, count: int) -> None:
    """It takes 100 bytes, and 0.8 of the free ones are for lanes."""
    held = iter([50, 150])
    running, opened = open_lanes(None, memory=lambda: (next(held), free))
    running.step()
    assert len(opened.lanes) == count


def test_measured_clients_train_alone_and_lanes_on_a_cpu_are_a_line(caplog: pytest.LogCaptureFixture) -> None:
    running, opened = open_lanes(3, evaluation={"probes": ["drift"], "every": 1})
    running.step()
    assert any("drift" in row for row in running.state.history[-1])
    assert len(opened.lanes) == 1
    running = small.simulation(**OPTIONS | {"runtime": {"backend": "inline", "lanes": 4}})
    running.step()
    assert get_worker(running).lanes is None
    assert "runtime.lanes: found 4; lanes are for a GPU" in caplog.text


ROOM, ALONE = 1 << 30, {"backend": "inline", "stack": 1}
WAITS = {
    torch.ops.aten._local_scalar_dense.default: "a number is read",
    torch.ops.aten.nonzero.default: "positions are counted",
    torch.ops.aten.masked_select.default: "entries are counted",
    torch.ops.aten.bincount.default: "the largest entry is read",
}


class ResidentBackend(InlineBackend):
    """One worker on the CPU that keeps shards and states as it would on a device."""

    def __init__(self, limit: int = ROOM) -> None:
        self.limit = limit

    def open(self, problem: Problem) -> None:
        super().open(problem)
        self._worker.reside(self.limit)
        self._worker.keep_states(self.spill)


class Waits(TorchDispatchMode):
    """Counts the operations that would make this process wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in WAITS:
            self.seen[WAITS[function]] += 1
        if function is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1]):
            self.seen["entries are counted"] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of copies to the device, and of waits for copies from it."""
    seen: Counter[str] = Counter()
    copy, fetch = vectors.copy_to, vectors.download

    def copy_to(packed: Tensor, device: Any) -> Tensor:
        seen["uploads"] += 1
        return copy(packed, device).clone()  # as on a device: another memory

    def download(tensors: Sequence[Tensor]) -> list[Tensor]:
        seen["waits"] += 1
        return [tensor.clone() for tensor in fetch(tensors)]

    monkeypatch.setattr(vectors, "copy_to", copy_to)
    for module in ("reduction", "residence"):
        monkeypatch.setattr(f"fedray.engine.process.{module}.download", download)
    return seen


def run(backend: InlineBackend, algorithm: str, **options: Any) -> Simulation:
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 32, "lr": 0.05, "weight_decay": 1e-3}
    training["momentum"] = small.momentum(algorithm)
    sections = {"partition": 0.3, "training": training, "evaluation": {"every": 2}, **options}
    return Simulation(small.problem(algorithm, (6, 3), 12, **sections), backend)


@pytest.mark.parametrize("algorithm", METHODS)
def test_no_bit_changes(algorithm: str) -> None:
    """With room for everything; for some methods also with room for a few shards or states, and with none."""
    expected = small.outcome(run(InlineBackend(), algorithm))
    for limit in (ROOM, 3_000, 0) if algorithm in ("fedavg", "scaffold", "fedrep") else (ROOM,):
        assert small.outcome(run(ResidentBackend(limit), algorithm)) == expected


@pytest.mark.parametrize("chance", [1.0, 0.5])
def test_draws_of_augmentation_are_the_same_in_one_copy(chance: float, copies: Counter[str]) -> None:
    """For the batches of a round, of which the last is smaller; with a fresh generator each."""
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    chain = (Flip(), Crop(crop=2, chance=chance), Rotate(rotate=20), Cutout(cutout=4))
    data = Dataset("d", x, np.arange(40) % 4, x, np.arange(40) % 4, 4, (0.5,) * 3, (0.2,) * 3, augment=chain)
    samples, indices = Samples(x, data.y_train, data, "cpu"), np.arange(40)[::-1][:25].copy()
    resident = ResidentSamples(samples, *samples.gather(indices))
    copies.clear()
    order = [np.arange(10), np.arange(10, 20), np.arange(20, 25)]
    both = (ClientSamples(samples, indices), resident)
    left, right = (list(one.iter_batches(iter(order), np.random.default_rng(3))) for one in both)
    assert copies == {"uploads": 1}
    for one, other in zip(left, right, strict=True):
        assert all(map(torch.equal, one, other))
    assert torch.equal(ClientSamples(samples, indices).get_labels(), resident.get_labels())
    assert all(map(torch.equal, ClientSamples(samples, indices).cut(3, 9), resident.cut(3, 9)))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtoga", "mofedsam"])
def test_one_upload_per_client_and_one_wait_per_share(algorithm: str, copies: Counter[str]) -> None:
    """One copy brings what the server sends, one a client's order of the round, one the shard of a client that is new.

    The share ends with one wait, for losses, checks and sums together; nothing makes the process wait before it,
    once the positions of the model's parts are known. Without stacks: the first one is compared with lone training."""
    backend, training = ResidentBackend(), {"rounds": 4, "batch_size": 64, "local_epochs": 2}
    running = run(backend, algorithm, training=training, evaluation={"every": 100, "last": 1}, runtime=ALONE)
    waits, met, train = Waits(), set[int](), backend.train

    def watched(*args: Any) -> Any:
        copies.clear()
        with waits:
            found = train(*args)
        counted.append(dict(copies))
        return found

    counted: list[dict[str, int]] = []
    backend.train = watched  # type: ignore[method-assign]
    for t in range(3):
        cohort = set(map(int, running.draw_cohort(t)))
        running.step()
        assert counted[-1] == {"uploads": 1 + len(cohort) + len(cohort - met), "waits": 1}
        met |= cohort
        if t == 0:
            waits.seen.clear()
    assert not waits.seen


def test_an_evaluation_waits_once(copies: Counter[str]) -> None:
    """360 samples in one chunk: its counts and its loss are read together at the end."""
    running = run(ResidentBackend(), "fedavg")
    worker, waits = running.backend._worker, Waits()  # type: ignore[attr-defined]
    copies.clear()
    with waits:
        found = evaluate(worker, running.state.theta, running.state.buffers, [0])
    assert copies["waits"] == 1
    assert not waits.seen
    assert found["answers"].sum() == 360 * 2**32
    assert found["confusion"].diagonal().equal(found["correct"])


def make_residence(limit: int) -> tuple[Residence, Samples]:
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 2
    samples = Samples(x, y, Dataset("d", x, y, x, y, 2), "cpu")
    return Residence(samples, limit), samples


def test_states_and_shards_used_least_recently_leave_in_their_turn(copies: Counter[str]) -> None:
    """A sample takes 2 x 4 + 8 bytes, so three shards of five fit into 240 bytes: a fourth one costs the oldest."""
    residence, samples = make_residence(240)
    assert samples.bytes_each == 16
    shards = np.split(np.arange(20), 4)
    for client, uploads in [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (0, 4), (2, 4), (1, 5), (3, 6)]:
        taken = residence.take(client, shards[client])
        assert copies["uploads"] == uploads, client
        taken.cut(0, 5)[0].zero_()  # a method may write into its batch
        assert torch.equal(taken.cut(0, 5)[0], samples.make_batch(shards[client])[0])
        assert residence.used <= 240
    # Two of 16 bytes fit into 40; the third moves the first unless that was used. A gone state takes no room.
    residence, _ = make_residence(40)
    spilled = []
    residence.spill = lambda state: spilled.append(state) or state  # type: ignore[func-returns-value]
    vectors = [Vectors(h=torch.full((4,), float(k))) for k in range(4)]
    states = [residence.keep(v) for v in vectors[:2]]
    assert states[0].get_on_device() is vectors[0]
    states.append(residence.keep(vectors[2]))
    assert ([state.get_on_device() is None for state in states], len(spilled)) == ([False, True, False], 1)
    assert all(torch.equal(load_state(state).h, v.h) for state, v in zip(states, vectors, strict=False))
    sent = pickle.loads(pickle.dumps(states[0]))  # noqa: S301
    assert digest_tensors(sent) == digest_tensors(vectors[0])
    del states[0]
    assert residence.used == 16
    states.append(residence.keep(vectors[3]))
    assert len(spilled) == 1


def test_a_run_warns_of_emulated_bf16(
    project: Path, monkeypatch: pytest.MonkeyPatch, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """On a machine that has no instructions for it: one line, and the run goes on."""
    monkeypatch.setattr(device, "has_bf16", lambda: False)
    run = small.sections(model=4, training={"rounds": 1, "precision": "bf16"})
    (project / "file.yaml").write_text(yaml.safe_dump(run))
    assert call("run", "file.yaml", "--no-track").done
    assert caplog.text.count("training.precision: bf16: this machine's CPU has no instructions for it") == 1


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts the process's choices back."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32


def test_kernels_are_chosen_and_one_that_is_not_deterministic_is_named(kernels: None) -> None:
    device.prepare(tf32=False, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.allow_tf32
    device.prepare(tf32=True, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32
    # One that torch has on CPUs too.
    torch.use_deterministic_algorithms(True)
    expected = r"^runtime\.deterministic: put_ has no deterministic kernel; set it to false"
    with pytest.raises(UserError, match=expected), explain("client 3"):
        torch.zeros(4).put_(torch.tensor([1]), torch.tensor([1.0]))


@pytest.mark.parametrize("given", [None, ":16:8"])
def test_cublas_gets_one_workspace_first(kernels: None, monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """For all models of a process: cuBLAS's bits may depend on it. A user's stays."""
    if given:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given)
    monkeypatch.setattr(Runtime, "torch_device", "cuda")
    seen, run = list[str | None](), small.problem("fedavg")

    def build(self: Problem, device: str) -> None:
        seen.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
        raise KeyError

    monkeypatch.setattr(Problem, "build_network", build)
    for name in ("refuse_missing", "limit_share"):
        monkeypatch.setattr(device, name, lambda _: None)
    with pytest.raises(KeyError):
        Worker(run)
    assert seen == [given or ":4096:8"]
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


STRINGS = ("", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv")


@pytest.mark.parametrize(
    ("path", "value"), [(p, v) for p in STRINGS for v in ("tf32", "ieee")] + [("", "bf16"), ("mkldnn.conv", "bf16")]
)
def test_pytorch_s_new_way_to_allow_tf32_is_put_aside_and_back(kernels: None, path: str, value: str) -> None:
    """Its old flags then raise; what a caller reads is as before after a run, and a run has full precision."""

    def look() -> list[Any]:
        seen = [device._get_precision(one) for one in device.PRECISIONS]
        for read in (
            torch.get_float32_matmul_precision,
            lambda: torch.backends.cudnn.allow_tf32,
            lambda: torch.backends.cuda.matmul.allow_tf32,
        ):
            try:
                seen.append(read())  # type: ignore[no-untyped-call]
            except RuntimeError:
                seen.append(None)
        return seen

    found = {one: device._get_precision(one) for one in device.PRECISIONS}
    if found[path] is None:
        pytest.skip("this version of PyTorch has none there")
    try:
        device._set_precision(path, value)
        before = look()
        with isolate_run():
            device.prepare(tf32=False, deterministic=False)
            assert not {device._get_precision(one) for one in device.PRECISIONS} & {"tf32", "bf16"}
            with isolate_run():
                pass
            device.prepare(tf32=True, deterministic=False)
            assert torch.backends.cuda.matmul.allow_tf32
        assert look() == before
    finally:
        for one, kept in found.items():
            device._set_precision(one, "none")
            if kept is not None:
                device._set_precision(one, kept)


def test_a_run_puts_the_caller_s_kernels_back(kernels: None) -> None:
    """What an inline run, or a user's class, chooses must not stay in the user's process."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = device._get_kernels()
    with isolate_run():
        device.prepare(tf32=True, deterministic=False)
        assert device._get_kernels() != before
    assert device._get_kernels() == before


@pytest.mark.parametrize(("gib", "share", "kept"), [(80, 0.25, 0.25 - 600 / 81_920), (1, 0.5, 0.25), (8, 1, 1)])
def test_shares_of_a_gpu_hold_the_context(monkeypatch: pytest.MonkeyPatch, gib: int, share: float, kept: float) -> None:
    """600 MiB of 80 GiB = 81,920 MiB are taken off; of 1 GiB that would leave nothing, so half of the share stays."""
    given, total = list[float](), SimpleNamespace(total_memory=gib << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: total)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    device.limit_share(share)
    assert given == [pytest.approx(kept)]


def hashes(seed: int = 0) -> tuple[str, str]:
    """Return the hashes of two rounds with dropout, so that every step draws."""
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 60}
    model = "tests.algorithms.test_methods:Partly"
    config = small.sections("fedavg", model=model, training=training, seed=seed)
    summary = fedray.simulate(config, progress=False).summary()
    return summary["theta_sha256"], summary["state_sha256"]


@contextlib.contextmanager
def changed(setting: str, value: Any) -> Iterator[None]:
    """Change one of PyTorch's settings within a block."""
    change, before = getattr(torch, f"set_{setting}"), getattr(torch, f"get_{setting}")()
    change(value)
    try:
        yield
    finally:
        change(before)


def settings() -> tuple[Any, ...]:
    """Return the settings that a caller can have made."""
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(), torch.get_default_device(), torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
    )  # fmt: skip


@pytest.mark.parametrize(
    "surroundings",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.device("meta"),
        lambda: changed("default_dtype", torch.float64),
        lambda: changed("float32_matmul_precision", "medium"),
    ],
    ids=["autocast", "no_grad", "inference_mode", "meta", "float64", "medium"],
)
def test_the_callers_settings_change_no_number(surroundings: Any) -> None:
    expected = hashes()
    with surroundings():
        before = settings()
        assert hashes() == expected
        with pytest.raises(UserError):
            fedray.simulate({"data": "digits"})
        assert settings() == before


def test_a_model_is_built_where_the_run_was() -> None:
    result = fedray.simulate(small.sections(training={"rounds": 1}), progress=False)
    with torch.device("meta"), changed("default_dtype", torch.float64):
        parameters = torch.cat([p.flatten() for p in result.model().parameters()])
    assert parameters.dtype == torch.float32
    assert torch.equal(parameters, result.theta)


def test_runs_in_threads_and_within_a_run_give_the_numbers_of_runs_one_by_one() -> None:
    """Each draws dropout from PyTorch's one generator."""
    expected = [hashes(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            assert list(pool.map(hashes, range(3))) == expected
    with isolate_run():
        assert hashes()[0]
