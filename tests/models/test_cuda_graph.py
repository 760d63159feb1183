"""Behaviour specific to GPUs, as far as a machine without one can tell; with one, the last test runs too.

On a CPU a stand-in takes the place of a CUDA graph: its replay computes from the recorded inputs into the recorded
outputs, and nothing else. So what is tested is everything but CUDA's own recording.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.engine import device
from fedray.engine.backend import InlineBackend
from fedray.engine.problem import Problem
from fedray.engine.result import make_result
from fedray.engine.simulation import Simulation
from fedray.engine.worker import Worker, _explain
from fedray.models import cuda_graph as cuda
from fedray.models.cuda_graph import MAX_RECORDINGS, WARM, Recorder
from tests import small


def stand_in(function: cuda.Function, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], Sequence[Tensor]]:
    """As a graph: nothing is computed before the first replay; outputs keep their place, and replays overwrite them."""
    outputs: list[Tensor] = []

    def replay() -> None:
        values = function(*inputs)
        if not outputs:
            outputs.extend(map(torch.empty_like, values))
        for place, value in zip(outputs, values, strict=True):
            place.copy_(value)

    return replay, outputs


def test_results_are_those_of_the_function_and_stay() -> None:
    calls = []

    def function(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(a))
        return a + b, a * b

    recorder = Recorder(stand_in)
    kept = []
    for k in range(WARM + 3):
        a, b = torch.full((3,), float(k)), torch.full((3,), 2.0)
        kept.append(recorder("f", function, a, b))
        a.fill_(-1.0)  # the caller's inputs are its own
    assert [(float(s[0]), float(p[0])) for s, p in kept] == [(k + 2.0, k * 2.0) for k in range(WARM + 3)]


def test_each_shape_and_name_has_its_recording_and_there_are_so_many() -> None:
    recorded = []

    def capture(function: cuda.Function, inputs: Sequence[Tensor]) -> tuple[Callable[[], Any], Sequence[Tensor]]:
        recorded.append(tuple(inputs[0].shape))
        return stand_in(function, inputs)

    recorder = Recorder(capture)
    for size in range(1, MAX_RECORDINGS + 4):
        for _ in range(WARM + 2):
            x = torch.rand(size)
            assert torch.equal(recorder("double", lambda x: (x * 2,), x)[0], x * 2)
    assert recorded == [(size,) for size in range(1, MAX_RECORDINGS + 1)], (
        "one each, after the warm-up; no more than MAX_RECORDINGS"
    )

    recorder = Recorder(capture)
    for _ in range(WARM + 2):
        x = torch.rand(2)
        assert torch.equal(recorder("double", lambda x: (x * 2,), x)[0], x * 2)
        assert torch.equal(recorder("square", lambda x: (x * x,), x)[0], x * x)


DIGITS = small.sections(
    partition=0.5,
    training={"rounds": 2, "local_epochs": 1, "batch_size": 40, "lr": 0.05},
    evaluation={"every": 1},
)


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        ("fedavg", {"name": "mlp", "hidden": [8]}),
        ("fedtoga", {"name": "mlp", "hidden": [8]}),
        ("mofedsam", {"name": "mlp", "hidden": [8]}),
        ("scaffold", {"name": "mlp", "hidden": [8]}),
        ("fedrep", {"name": "mlp", "hidden": [8]}),  # gradients of the body, and of the head
        ("fedsol", {"name": "mlp", "hidden": [8]}),  # a loss of its own, which is not recorded
        ("fedtoga", {"name": "mlp", "hidden": [1100]}),  # more than 65,536 parameters, so it views its theta
        ("fedsam", {"name": "tests.algorithms.test_contract:Normalised"}),  # running statistics
        ("fedavg", {"name": "emnist_cnn"}),
    ],
)  # dropout
def test_a_recorded_run_has_the_same_bits(algorithm: str, model: dict[str, Any]) -> None:
    run = RunConfig.parse(DIGITS | {"algorithm": algorithm, "model": model})
    found = []
    for recorder in (None, Recorder(stand_in)):
        backend = InlineBackend()
        simulation = Simulation(Problem.build(run), backend)
        backend._worker.network.recorder = recorder
        while not simulation.done:
            simulation.step()
        found.append(make_result(simulation))
    assert found[0].state.sha256() == found[1].state.sha256()
    assert found[0].history == found[1].history
    assert recorder is not None
    assert recorder._recorded or algorithm == "fedsol"


def test_what_cannot_be_recorded_is_said() -> None:
    def refuse(function: cuda.Function, inputs: Sequence[Tensor]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    recorder = Recorder(refuse)
    for _ in range(WARM):
        recorder("f", lambda x: (x,), torch.ones(1))
    with pytest.raises(UserError, match=r"^runtime\.cuda_graph: the model cannot be recorded: .*capturing.*to false$"):
        recorder("f", lambda x: (x,), torch.ones(1))


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
        return RunConfig.parse(base | {"runtime": runtime}).cell("x")

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
        found.append(make_result(simulation).state.sha256())
    assert found[0] == found[1]
