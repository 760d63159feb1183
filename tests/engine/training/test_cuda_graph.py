"""Behaviour specific to GPUs, as far as a machine without one can tell; with one, the last test runs too.

On a CPU a tape takes the place of a CUDA graph: it notes the operations of a step with the tensors that they read and
write, and a replay repeats just these, at the same places, without any Python of the step. So what is tested is
everything but CUDA's own recording.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fedray.algorithms import ALGORITHMS
from fedray.common.errors import UserError
from fedray.config import RunConfig, Training
from fedray.engine.problem import Problem
from fedray.engine.process import device
from fedray.engine.process.backend import InlineBackend
from fedray.engine.process.worker import Worker, _explain
from fedray.engine.result import make_result
from fedray.engine.server.simulation import Simulation
from fedray.engine.training.batches import find_batch_sizes
from fedray.engine.training.cuda_graph import CHECKED, KEPT, WARM, Recorder
from tests import small


class Tape(TorchDispatchMode):
    """Notes operations; `replay` repeats them. An output that shares no memory with an input keeps its place."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Tensor | None]]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and _address(x) not in self._before:
                whole = x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
                self._before[_address(x)] = whole, whole.clone()
        found = function(*args, **(kwargs or {}))
        args, kwargs, outputs = (tree_map_only(Tensor, Tensor.detach, one) for one in (args, kwargs or {}, found))
        memory = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        new = [x if _address(x) not in memory else None for x in tree_leaves(outputs) if isinstance(x, Tensor)]
        self.operations.append((function, args, kwargs, new))
        return found

    def undo(self) -> None:
        """As a graph: recording computes nothing."""
        for x, value in self._before.values():
            x.copy_(value)

    def replay(self) -> None:
        with torch.no_grad():
            for function, args, kwargs, places in self.operations:
                outputs = [x for x in tree_leaves(function(*args, **kwargs)) if isinstance(x, Tensor)]
                for place, value in zip(places, outputs, strict=True):
                    if place is not None:
                        place.copy_(value)


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def tape(function: Callable[[], None]) -> Callable[[], None]:
    """As a graph: what is recorded are operations and places."""
    made = Tape()
    with made:
        function()
    made.undo()
    return made.replay


class Counted:
    """A step: y <- y + factor x, in place also `fixed` <- fixed + 1."""

    name, passes = "counted", {"gradients": 1}

    def __init__(self, size: int = 3) -> None:
        self.vectors = {"x": torch.ones(size), "y": torch.zeros(size)}
        self.fixed = [torch.zeros(())]
        self.factor, self.runs = 2.0, 0
        self.numbers: dict[str, object] = {}

    def list_vectors(self) -> dict[str, Tensor]:
        return dict(self.vectors)

    def run(self, vectors: Mapping[str, Tensor], recorded: bool) -> dict[str, Tensor]:
        self.runs += 1
        self.numbers = {"factor": self.factor}
        self.fixed[0].add_(1)
        return {"y": vectors["y"] + self.factor * vectors["x"]}

    def read(self, name: str) -> object:
        return getattr(self, name)


def take(recorder: Recorder, step: Counted, x: float) -> float:
    step.vectors["x"] = torch.full_like(step.vectors["x"], x)
    step.vectors, passes = recorder.take("kind", step)
    assert passes == {"gradients": 1}
    return float(step.vectors["y"][0])


def test_a_step_is_recorded_after_the_warm_up_compared_and_then_replayed() -> None:
    """y = 2 (0 + 1 + ... + k). Runs: WARM eager ones, one recording, CHECKED comparisons, and none after that."""
    recorder, step, total = Recorder(tape), Counted(), 0.0
    for k in range(WARM + CHECKED + 4):
        total += 2.0 * k
        assert take(recorder, step, float(k)) == total
        assert float(step.fixed[0]) == k + 1
    assert step.runs == WARM + 1 + CHECKED
    assert recorder.recordings == 1


def test_a_recording_holds_for_the_numbers_that_it_read() -> None:
    """Another factor costs another recording, and the first one is used again when its factor is back."""
    recorder, step = Recorder(tape), Counted()
    for _ in range(WARM + CHECKED + 1):
        take(recorder, step, 1.0)
    for factor, recordings in ((5.0, 2), (2.0, 2), (5.0, 2), (7.0, 3)):
        step.factor, before = factor, float(step.vectors["y"][0])
        assert take(recorder, step, 1.0) == before + factor
        assert recorder.recordings == recordings


def test_numbers_that_change_at_every_step_end_recording(caplog: pytest.LogCaptureFixture) -> None:
    """After KEPT recordings that were replayed once each, in their comparison."""
    recorder, step, total = Recorder(tape), Counted(), 0.0
    for k in range(WARM + KEPT + 5):
        step.factor = float(k)
        total += k
        assert take(recorder, step, 1.0) == total
    assert recorder.recordings == KEPT
    (said,) = caplog.messages
    assert said.startswith("runtime.cuda_graph: counted: its steps read numbers that change too often")
    assert said.endswith("(factor); such steps run eagerly")


def test_each_shape_has_its_recording() -> None:
    recorder = Recorder(tape)
    for size in (1, 2, 5):
        step = Counted(size)
        for k in range(WARM + CHECKED + 2):
            assert take(recorder, step, 1.0) == 2.0 * (k + 1)
    assert recorder.recordings == 3


@pytest.mark.parametrize("fault", ["replay", "fixed"])
def test_other_bits_are_noticed_and_said_once(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """A replay that moves y, or running statistics, by one more; the results are the eager step's."""
    step = Counted()

    def capture(function: Callable[[], None]) -> Callable[[], None]:
        replay = tape(function)

        def wrong() -> None:
            replay()
            spoilt = [step.fixed[0]] if fault == "fixed" else list(recorder._static.values())
            for tensor in spoilt:
                tensor.add_(1)

        return wrong

    recorder = Recorder(capture)
    for k in range(WARM + 5):
        assert take(recorder, step, 1.0) == 2.0 * (k + 1)
        assert float(step.fixed[0]) == k + 1
    assert caplog.messages == [
        "runtime.cuda_graph: counted: a recorded step has other bits than the eager one; such steps run eagerly"
    ]


def test_what_cannot_be_recorded_runs_eagerly_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(function: Callable[[], None]) -> Any:
        function()  # as far as it gets
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    recorder, step = Recorder(refuse), Counted()
    for k in range(WARM + 3):
        assert take(recorder, step, 1.0) == 2.0 * (k + 1)
        assert float(step.fixed[0]) == k + 1
    (said,) = caplog.messages
    assert said.startswith(
        "runtime.cuda_graph: counted: its steps cannot be recorded: RuntimeError: operation not permitted"
    )
    assert said.endswith("such steps run eagerly")


def test_memory_that_is_not_enough_is_no_reason_to_go_on() -> None:
    def full(function: Callable[[], None]) -> Any:
        raise torch.OutOfMemoryError("no")

    recorder, step = Recorder(full), Counted()
    for _ in range(WARM):
        take(recorder, step, 1.0)
    with pytest.raises(torch.OutOfMemoryError):
        take(recorder, step, 1.0)


def test_batch_sizes_that_are_recorded() -> None:
    """Clients of 100, 70 and 30 samples: of 5 steps with batches of 50, 3 are whole, one has 20, one 30 samples."""
    sizes = np.array([100, 70, 30, 0])
    assert find_batch_sizes(Training(batch_size=50), sizes) == {50, 20, 30}
    assert find_batch_sizes(Training(batch_size=50, last_batch="drop"), sizes) == {50, 30}
    assert find_batch_sizes(Training(batch_size="full"), sizes) == {100, 70, 30}
    assert find_batch_sizes(Training(batch_size=1), np.array([6400, 3])) == {1}
    assert find_batch_sizes(Training(batch_size=2), np.array([6400, 3])) == {2}, "one step of 3202 has one sample"


DIGITS = small.sections(
    partition=0.5,
    training={"rounds": 2, "local_epochs": 2, "batch_size": 20, "lr": 0.05},
    evaluation={"every": 1},
)


def compare(algorithm: str, model: Any, **training: Any) -> Recorder:
    """Run with and without recordings; the states, rows and counts must be the same."""
    options = DIGITS | {"algorithm": algorithm, "model": model, "training": DIGITS["training"] | training}
    if ALGORITHMS[algorithm].needs_everyone:
        options["clients"] = {"total": 6, "per_round": 6}
    found = []
    for recorder in (None, Recorder(tape)):
        backend = InlineBackend()
        simulation = Simulation(Problem.build(RunConfig.parse(options)), backend)
        trainer = backend._worker.trainer
        backend._worker.trainer = replace(trainer, recorder=recorder)
        while not simulation.done:
            simulation.step()
        found.append(make_result(simulation))
    assert found[0].state.digest() == found[1].state.digest()
    assert found[0].history == found[1].history
    assert recorder is not None
    return recorder


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_recorded_run_has_the_same_bits(algorithm: str) -> None:
    """Whatever of a method can be recorded, with momentum, decay and clipping."""
    training = {"momentum": small.momentum(algorithm), "weight_decay": 1e-3, "clip_norm": 1.0}
    compare(algorithm, {"name": "mlp", "hidden": [12]}, **training)


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        ("fedtoga", {"name": "mlp", "hidden": [1100]}),  # more than 65,536 parameters, so it views its theta
        ("fedsam", {"name": "tests.algorithms.test_contract:Normalised"}),  # running statistics
        ("fedavg", {"name": "emnist_cnn"}),  # dropout
    ],
)
def test_models_whose_steps_are_recorded(algorithm: str, model: dict[str, Any]) -> None:
    assert compare(algorithm, model).recordings


RECORDED = (
    "fedavg",
    "fedprox",
    "fedtoga",
    "fedsam",
    "mofedsam",
    "scaffold",
    "feddyn",
    "fedrep",
    "local-adamw",
    "fedsol",
)


@pytest.mark.parametrize("algorithm", RECORDED)
def test_methods_whose_steps_are_recorded(algorithm: str, caplog: pytest.LogCaptureFixture) -> None:
    recorder = compare(algorithm, {"name": "mlp", "hidden": [8]})
    assert recorder.recordings
    assert not [said for said in caplog.messages if "cuda_graph" in said]


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


def test_kernels_are_chosen(kernels: None) -> None:
    device.prepare(tf32=False, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8", "without it cuBLAS refuses"
    assert not torch.backends.cudnn.allow_tf32
    device.prepare(tf32=True, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32


def test_a_worker_on_a_cpu_chooses_none(kernels: None) -> None:
    Worker(Problem.build(RunConfig.parse(DIGITS | {"algorithm": "fedavg", "model": "mlp"})))
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_a_deterministic_kernel_is_named(kernels: None) -> None:
    """One that torch has on CPUs too."""
    torch.use_deterministic_algorithms(True)
    expected = r"^runtime\.deterministic: put_ has no deterministic kernel; set it to false"
    with pytest.raises(UserError, match=expected), _explain("client 3"):
        torch.zeros(4).put_(torch.tensor([1]), torch.tensor([1.0]))


def test_identity_of_a_cell() -> None:
    """Options that can change bits on a GPU are part of the identity there; on a CPU neither key is."""
    base = DIGITS | {"algorithm": "fedavg", "model": "mlp"}

    def cell(**runtime: Any) -> str:
        return RunConfig.parse(base | {"runtime": runtime}).hash_cell("x")

    assert cell() == cell(deterministic=False)
    gpu = {"gpus_per_actor": 1}
    assert len({cell(), cell(**gpu), cell(**gpu, deterministic=False), cell(**gpu, cuda_graph=True)}) == 4
    assert cell(**gpu) == cell(gpus_per_actor=0.25) == cell(gpus_per_actor="auto")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedtoga"])
def test_a_cuda_graph_has_the_bits_of_the_eager_run(algorithm: str, kernels: None) -> None:
    found = []
    for graph in (False, True):
        runtime = {"backend": "inline", "device": "cuda", "cuda_graph": graph}
        run = RunConfig.parse(DIGITS | {"algorithm": algorithm, "model": "lenet", "runtime": runtime})
        simulation = Simulation(Problem.build(run), InlineBackend())
        while not simulation.done:
            simulation.step()
        found.append(make_result(simulation).state.digest())
    assert found[0] == found[1]
