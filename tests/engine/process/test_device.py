"""glibc keeps freed memory once asked to, or gives it back: counted in pages, which do not depend on the load."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fedray.common.errors import warn_once
from fedray.engine.process import device

COUNT = """
import resource, torch
from fedray.engine.process.device import keep_memory
assert keep_memory()
torch.set_num_threads(1)
for _ in range(2):
    [torch.zeros(1 << 20) for _ in range(8)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    [torch.zeros(1 << 20) for _ in range(8)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults() -> int:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, timeout=100)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library: nothing is tuned")
def test_freed_megabytes_are_used_again() -> None:
    """Ten times 8 vectors of 4 MiB are 81,920 pages of 4 KiB. Untuned, glibc mostly gives them back and faults them in
    each time (its own threshold adapts, so not always); tuned, a round of 8 vectors may be met for the first time.
    """
    assert faults() <= 8 * 1024


HELD = """
import re, sys
import torch
from fedray.common.errors import warn_once
from fedray.engine.process import device
def held():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
assert getattr(device, sys.argv[1])()
before = held()
vectors = [torch.zeros(1 << 20) for _ in range(32)]
assert held() - before >= 120
del vectors
print(held() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library: nothing is tuned")
@pytest.mark.parametrize(("tuned", "least", "most"), [("map_vectors", -5, 5), ("keep_memory", 120, 140)])
def test_what_stays_of_freed_megabytes(tuned: str, least: int, most: int) -> None:
    """32 vectors of 4 MiB are 128 MiB: a process that trains keeps them, one that keeps references gives them back."""
    command = [sys.executable, "-c", HELD, tuned]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert least <= int(done.stdout) <= most


@pytest.mark.parametrize(
    ("precision", "kind", "able", "warned"),
    [
        ("bf16", "cpu", False, True),
        ("bf16", "cpu", True, False),
        ("bf16", "cpu", None, False),
        ("bf16", "cuda", False, False),
        ("fp32", "cpu", False, False),
    ],
)
def test_emulated_bf16_is_named_once(
    precision: str,
    kind: str,
    able: bool | None,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(device, "has_bf16", lambda: able)
    warn_once.cache_clear()
    for _ in range(2):
        device.warn_of_slow_precision(precision, kind)
    assert [record.message.partition(": this")[0] for record in caplog.records] == ["training.precision: bf16"] * warned
    warn_once.cache_clear()


SLOW = """
import sys
from pathlib import Path
from fedray.common.errors import warn_once
from fedray.engine.process import device
device.has_bf16 = lambda: False
from fedray.cli.__main__ import run
run()
"""
RUN = """
data: digits
partition: iid
clients: {total: 4, per_round: 2}
model: {name: mlp, hidden: [4]}
algorithm: fedavg
training: {rounds: 1, precision: bf16}
"""
SWEEP = "name: x\nbase: {" + ", ".join(RUN.strip().splitlines()) + "}\ngrid: {training.precision: [fp32, bf16]}\n"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (RUN, ["run", "file.yaml", "--no-track"]),
        (SWEEP, ["sweep", "file.yaml", "--dry-run", "--estimate"]),
    ],
)
def test_commands_warn_of_emulated_bf16(text: str, command: list[str], tmp_path: Path) -> None:
    """On a machine that has no instructions for it: one line on standard error, and the run goes on."""
    (tmp_path / "file.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SLOW, *command], capture_output=True, text=True, cwd=tmp_path, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training.precision: bf16: this machine's CPU has no instructions for it") == 1
