"""glibc keeps freed memory once asked to, or gives it back: counted in pages, which do not depend on the load."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fedray.common.errors import warn_once
from fedray.engine.process import device
from tests.conftest import Call

MEASURE = """
import re, resource, sys
import torch
from fedray.engine.process import device
def held():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
assert getattr(device, sys.argv[1])()
torch.set_num_threads(1)
before = held()
vectors = [torch.zeros(1 << 20) for _ in range(32)]
assert held() - before >= 120
del vectors
print(held() - before)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    [torch.zeros(1 << 20) for _ in range(8)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library: nothing is tuned")
@pytest.mark.parametrize(("tuned", "least", "most"), [("map_vectors", -5, 5), ("keep_memory", 120, 140)])
def test_what_stays_of_freed_megabytes(tuned: str, least: int, most: int) -> None:
    """32 vectors of 4 MiB are 128 MiB: a process that trains keeps them, one that keeps references gives them back.

    Ten times 8 vectors are 81,920 pages of 4 KiB: given back, each is faulted in again; kept, they are used again.
    """
    command = [sys.executable, "-c", MEASURE, tuned]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    held, faults = map(int, done.stdout.split())
    assert least <= held <= most
    assert (faults <= 8 * 1024) == (tuned == "keep_memory")


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
def test_commands_warn_of_emulated_bf16(
    text: str,
    command: list[str],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On a machine that has no instructions for it: one line, and the run goes on."""
    monkeypatch.setattr(device, "has_bf16", lambda: False)
    warn_once.cache_clear()
    (project / "file.yaml").write_text(text)
    code, _, err = call(*command)
    assert code == 0, err
    assert caplog.text.count("training.precision: bf16: this machine's CPU has no instructions for it") == 1
