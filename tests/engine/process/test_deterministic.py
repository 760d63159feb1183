"""`runtime.deterministic`: the switches of a GPU's kernels, as far as a machine without one can tell."""

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedray.common.errors import UserError
from fedray.engine.process import device
from fedray.engine.process.worker import Worker, explain
from tests import small


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
    assert not torch.backends.cudnn.allow_tf32
    device.prepare(tf32=True, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(
    ("layer", "given", "expected"),
    [
        (nn.Linear(2, 2), None, ":4096:8"),
        (nn.Sequential(nn.LSTM(2, 2)), None, ":16:8"),
        (nn.GRU(2, 2), ":4096:2", ":4096:2"),
    ],
)
def test_cublas_gets_the_workspace_that_the_layers_ask_for(
    kernels: None, monkeypatch: pytest.MonkeyPatch, layer: nn.Module, given: str | None, expected: str
) -> None:
    """Without one cuBLAS refuses; PyTorch's page on nn.LSTM allows two, of which cuBLAS knows `:16:8`."""
    if given:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given)
    device.choose_workspace(layer)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == expected
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def test_a_run_puts_the_caller_s_kernels_back(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU: what an inline run chooses must not stay in the user's process."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = device._get_kernels()
    with device.isolate_run():
        device.prepare(tf32=True, deterministic=False)
        assert device._get_kernels() != before
    assert device._get_kernels() == before


@pytest.mark.parametrize(
    ("gigabytes", "share", "expected"), [(80, 0.25, 0.25 - 600 / 81_920), (1, 0.5, 0.25), (8, 1, 1)]
)
def test_a_share_of_a_gpu_holds_the_context_too(
    monkeypatch: pytest.MonkeyPatch, gigabytes: int, share: float, expected: float
) -> None:
    """600 MiB of 80 GiB = 81,920 MiB are taken off; of 1 GiB that would leave nothing, so half of the share stays."""
    given: list[float] = []
    total = SimpleNamespace(total_memory=gigabytes << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: total)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    device.limit_share(share)
    assert given == [pytest.approx(expected)]


def test_a_worker_on_a_cpu_chooses_none(kernels: None) -> None:
    Worker(small.problem())
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_a_deterministic_kernel_is_named(kernels: None) -> None:
    """One that torch has on CPUs too."""
    torch.use_deterministic_algorithms(True)
    expected = r"^runtime\.deterministic: put_ has no deterministic kernel; set it to false"
    with pytest.raises(UserError, match=expected), explain("client 3"):
        torch.zeros(4).put_(torch.tensor([1]), torch.tensor([1.0]))
