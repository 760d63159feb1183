"""A run gives the same numbers for any PyTorch settings of the caller, and restores these settings."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import fedray
from fedray.common.errors import UserError
from fedray.engine.process.device import isolate_run
from tests import small


def hashes(seed: int = 0) -> tuple[str, str]:
    """Return the hashes of four rounds with dropout, so that every step draws."""
    config = small.sections(
        "fedavg",
        model={"name": "tests.algorithms.test_own_parts:Partly"},
        training={"rounds": 4, "local_epochs": 1, "batch_size": 60},
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
        assert settings() == before


def test_settings_come_back_after_a_refusal() -> None:
    with torch.no_grad():
        before = settings()
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
