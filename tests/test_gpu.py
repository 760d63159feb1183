"""On a real GPU, through the doors that users have: the same bits in any number of processes, kills, shares of memory.

All are marked `gpu`: `make test-gpu` runs them on a machine with one, where none of them is skipped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from torch import Tensor, nn

import fedray
from fedray.common.errors import UserError, warn_once
from fedray.models import MODELS
from tests import small
from tests.conftest import start_ray
from tests.methods import COVER
from tests.sweep.running import done, runs, state_hashes, undisturbed, write
from tests.sweep.running import fedray as fedray_command

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
IMAGES = {"name": "synthetic", "shape": [3, 32, 32], "classes": 10, "train_samples": 400, "test_samples": 100}
DIGITS = IMAGES | {"shape": [1, 28, 28]}
LETTERS = {"name": "synthetic_text", "train_samples": 400, "test_samples": 100}
ON_GPU = {"backend": "inline", "device": "cuda"}
NOISY, WAITING = "tests.test_gpu:Noisy", "tests.test_gpu:Waiting"


def shared(count: int) -> dict[str, Any]:
    """Actors that share the GPU."""
    return {"actors": count, "cpus_per_actor": 1, "gpus_per_actor": 1 / count, "device": "cuda"}


def sections(algorithm: Any = "fedavg", **other: Any) -> dict[str, Any]:
    """Two rounds of four of eight clients, by default on colour images with a network of convolutions."""
    training = {"rounds": 2, "local_epochs": 1, "batch_size": 20, "lr": 0.01, "momentum": small.momentum(algorithm)}
    whole = {"clients": (8, 4), "model": {"name": "lenet"}, "partition": 0.5, "data": IMAGES, "training": training}
    return small.sections(algorithm, **whole | {"runtime": ON_GPU} | other)


@pytest.fixture(scope="module")
def one_gpu() -> Iterator[None]:
    """A Ray with this machine's GPU and 8 CPUs."""
    assert torch.cuda.is_available(), "make test-gpu needs a machine with a GPU"
    start_ray(num_cpus=8, num_gpus=1)
    yield
    ray.shutdown()


def get_hashes(result: Any) -> tuple[str, str]:
    summary = result.summary()
    return summary["theta_sha256"], summary["state_sha256"]


@pytest.mark.parametrize("name", COVER)
def test_one_process_and_one_two_and_four_actors_give_the_same_bits(name: str, one_gpu: None) -> None:
    alone = get_hashes(fedray.simulate(sections(name)))
    for count in (1, 2, 4):
        assert get_hashes(fedray.simulate(sections(name, runtime=shared(count)))) == alone, count


class Noisy(nn.Module):
    """BatchNorm and dropout, on colour images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Conv2d(3, 8, 5), nn.BatchNorm2d(8), nn.Linear(8 * 14 * 14, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.head(nn.functional.dropout(h.flatten(1), 0.3, self.training))


class Waiting(Noisy):
    """Reads a number from the GPU in each pass."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if x.sum().item() > 1e9 else 2.0)


def hash_in_lanes(lanes: int, **options: Any) -> tuple[str, str]:
    return get_hashes(fedray.simulate(sections(**options | {"runtime": ON_GPU | {"lanes": lanes}})))


def hash_eagerly(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[str, str]:
    """One client after another, and nothing recorded."""
    with monkeypatch.context() as patched:
        patched.setattr("fedray.engine.process.worker.record_on_cuda", lambda network: None)
        return hash_in_lanes(1, **options)


@pytest.mark.parametrize("name", COVER)
def test_recordings_and_lanes_change_no_bit(name: str, one_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"algorithm": name, "training": sections(name)["training"] | {"local_epochs": 3}}
    eager = hash_eagerly(monkeypatch, **options)
    assert hash_in_lanes(1, **options) == eager
    assert hash_in_lanes(5, **options) == eager


@pytest.mark.parametrize("model", [NOISY, "char_lstm", "resnet18"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_norms_and_draws_in_lanes(model: str, precision: str, one_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    training = sections()["training"] | {"precision": precision, "local_epochs": 3}
    data = LETTERS if model == "char_lstm" else IMAGES
    for algorithm in ("fedsam", "ditto"):  # two gradients a step; a second model
        options: dict[str, Any] = {"algorithm": algorithm, "model": {"name": model}, "data": data, "training": training}
        eager = hash_eagerly(monkeypatch, **options)
        assert hash_in_lanes(1, **options) == eager
        assert hash_in_lanes(5, **options) == eager


def test_waiting_stays_eager(one_gpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A model that waits for the GPU; one with dropout is recorded after it, in the same process."""
    assert hash_in_lanes(2, model={"name": WAITING}) == hash_eagerly(monkeypatch, model={"name": WAITING})
    assert "runs without a CUDA graph" in caplog.text
    warn_once.cache_clear()
    caplog.clear()
    assert hash_in_lanes(2, model={"name": NOISY}) == hash_eagerly(monkeypatch, model={"name": NOISY})
    assert "runs without a CUDA graph" not in caplog.text


def test_no_stream_reads_what_another_one_writes() -> None:
    """A round in lanes under PyTorch's sanitizer of streams, which raises where an event is missing."""
    code = f"import fedray; fedray.simulate({sections('scaffold', runtime=ON_GPU | {'lanes': 5})!r})"
    env = os.environ | {"TORCH_CUDA_SANITIZER": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_less_precision_gives_the_same_bits_in_four_actors(precision: str, one_gpu: None) -> None:
    training = sections()["training"] | {"precision": precision}
    alone = get_hashes(fedray.simulate(sections("fedsam", training=training)))
    assert get_hashes(fedray.simulate(sections("fedsam", training=training, runtime=shared(4)))) == alone
    assert alone != get_hashes(fedray.simulate(sections("fedsam")))


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"timm"}))
def test_every_model_trains_with_deterministic_kernels(model: str, one_gpu: None) -> None:
    data = {"char_lstm": LETTERS, "text_cnn": LETTERS, "emnist_cnn": DIGITS, "mcmahan_cnn": DIGITS}.get(model, IMAGES)
    found = [get_hashes(fedray.simulate(sections("fedsam", data=data, model={"name": model}))) for _ in range(2)]
    assert found[0] == found[1]


def test_cpu_and_gpu_agree_to_rounding(one_gpu: None) -> None:
    """The same draws and formulas; float32 sums in another order."""
    here = fedray.simulate(sections("fedtoga", runtime={"backend": "inline", "device": "cpu"}))
    there = fedray.simulate(sections("fedtoga"))
    torch.testing.assert_close(torch.as_tensor(here.theta), torch.as_tensor(there.theta), rtol=1e-3, atol=1e-4)


def test_a_killed_actor_changes_nothing(one_gpu: None, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    alone = fedray.simulate(sections("scaffold")).summary()
    marker.touch()
    dying = {"name": "tests.plugins:dying_scaffold", "marker": str(marker)}
    found = fedray.simulate(sections(dying, runtime=shared(4))).summary()
    assert not marker.exists(), "nothing was killed"
    assert found["theta_sha256"] == alone["theta_sha256"]


def test_too_little_memory_is_said_in_one_line(one_gpu: None) -> None:
    """A hundredth of the GPU, less than a ResNet-50 with its optimiser's vectors and a batch of 400 takes."""
    training = {"rounds": 1, "local_epochs": 1, "batch_size": 400}
    runtime = {"actors": 1, "gpus_per_actor": 0.01, "device": "cuda"}
    big = sections(model={"name": "resnet50"}, clients=(1, 1), partition="iid", training=training, runtime=runtime)
    with pytest.raises(UserError, match=r"out of memory: .*lower training\.batch_size") as found:
        fedray.simulate(big)
    assert "\n" not in str(found.value)


def test_the_process_keeps_its_own_kernels(one_gpu: None) -> None:
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.allow_tf32
    fedray.simulate(sections())
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.allow_tf32) == before


SWEEP = {
    "name": "gpu",
    "base": sections(runtime={"actors": 1, "gpus_per_actor": 0.25, "checkpoint_every": 5}),
    "grid": {"algorithm": ["fedavg", "fedsam"], "seed": [0, 1]},
}


def test_a_sweep_of_four_cells_on_one_gpu_is_tracked_and_verified(tmp_path: Path) -> None:
    """Four cells at a time in Ray's processes; their runs name the GPU; two of them again, bit for bit."""
    ray.shutdown()
    write(tmp_path, SWEEP)
    done(fedray_command(tmp_path, "sweep", "sweep.yaml", "--dry-run"))
    done(fedray_command(tmp_path, "sweep", "sweep.yaml"))
    assert done(fedray_command(tmp_path, "verify", "gpu", "--cells", "2")).count("same ") == 2
    name = torch.cuda.get_device_name()
    assert all(name in json.dumps(run.data.tags) for run in runs(tmp_path))
    assert len(runs(tmp_path)) == 4
    assert "fedsam" in done(fedray_command(tmp_path, "tables", "gpu"))


def test_a_sweep_killed_on_a_gpu_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL of the driver once cells have checkpoints: run again, the cells are those of one process."""
    ray.shutdown()
    base = SWEEP["base"] | {"training": sections()["training"] | {"rounds": 150}}
    write(tmp_path, SWEEP | {"base": base})
    running = fedray_command(tmp_path, "sweep", "sweep.yaml")
    while not list(tmp_path.rglob("server-*.safetensors")) and running.poll() is None:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    assert running.wait(30) == -signal.SIGKILL, "it ended before it was killed"
    done(fedray_command(tmp_path, "sweep", "sweep.yaml"))
    assert state_hashes(tmp_path) == undisturbed(SWEEP | {"base": base})
