"""Switches of a GPU's kernels; and a run restores the caller's PyTorch settings, on which its numbers do not depend."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import fedray
from fedray.common.errors import UserError, warn_once
from fedray.engine.process import device
from fedray.engine.process.device import isolate_run
from fedray.engine.process.worker import explain
from tests import small
from tests.conftest import Call


def test_a_run_warns_of_emulated_bf16(
    project: Path, monkeypatch: pytest.MonkeyPatch, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """On a machine that has no instructions for it: one line, and the run goes on."""
    monkeypatch.setattr(device, "has_bf16", lambda: False)
    warn_once.cache_clear()
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
    [(nn.Linear(2, 2), None, ":4096:8"), (nn.LSTM(2, 2), None, ":16:8"), (nn.GRU(2, 2), ":4096:2", ":4096:2")],
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


def test_an_operation_without_a_deterministic_kernel_is_named(kernels: None) -> None:
    """One that torch has on CPUs too."""
    torch.use_deterministic_algorithms(True)
    expected = r"^runtime\.deterministic: put_ has no deterministic kernel; set it to false"
    with pytest.raises(UserError, match=expected), explain("client 3"):
        torch.zeros(4).put_(torch.tensor([1]), torch.tensor([1.0]))


def hashes(seed: int = 0) -> tuple[str, str]:
    """Return the hashes of two rounds with dropout, so that every step draws."""
    config = small.sections(
        "fedavg",
        model={"name": "tests.algorithms.test_own_parts:Partly"},
        training={"rounds": 2, "local_epochs": 1, "batch_size": 60},
        seed=seed,
    )
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
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
    )


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


def test_runs_in_threads_give_the_numbers_of_runs_one_by_one() -> None:
    """Each draws dropout from PyTorch's one generator."""
    expected = [hashes(seed) for seed in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            assert list(pool.map(hashes, range(3))) == expected


def test_a_run_within_a_run_does_not_wait_for_itself() -> None:
    with isolate_run():
        assert hashes()[0]
