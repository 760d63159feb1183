"""What must not change: the cells of every shipped sweep, and what every method computes. `python -m
tests.golden.present` writes both files again; a changed line belongs in CHANGELOG's "Numbers"."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fedray.algorithms import ALGORITHMS
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.sweep.draws import iter_points
from fedray.sweep.sweep import Sweep
from tests import small

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SWEEPS = REPOSITORY / "sweeps"
NO_SWEEPS = ("mlflow", "kuberay", "ray-up", "ray-up-aws", "example")
"""Other YAML files in the folder of the sweeps."""
SETS = {"training.batch_size": 7, "algorithm.rho": 0.07}
"""Keys set in all cells: one that no sweep varies, and an option that some methods have and some sweeps vary."""


def list_sweeps() -> list[str]:
    """Return the names of all shipped sweeps."""
    paths = sorted(SWEEPS.rglob("*.yaml"))
    return [str(path.relative_to(SWEEPS).with_suffix("")) for path in paths if path.stem not in NO_SWEEPS]


def describe_cells(name: str) -> dict[str, Any]:
    """Return how many points a shipped sweep has, and a digest of the hashes of their cells, in order. The sweep as it
    is written, its smoke, and the sweep with each `--set` of `SETS`; "refused" where it does not take one. Data and
    files enter as they are written, not by their contents, which are not here."""
    path = SWEEPS / f"{name}.yaml"
    sweep = Sweep.load(path)
    digests: dict[str, Any] = {"cells": _digest_cells(sweep)}
    if sweep.smoke is not None:
        digests["smoke"] = _digest_cells(Sweep.load(path, smoke=True))
    for key, value in SETS.items():
        try:
            digests[f"{key}={value}"] = _digest_cells(sweep.with_overrides({key: value}))
        except UserError:
            digests[f"{key}={value}"] = "refused"
    return digests


def _digest_cells(sweep: Sweep) -> list[Any]:
    with patch("fedray.components.base.digest_file", lambda key, path: path):
        runs = [RunConfig.parse(point) for point in iter_points(sweep)]
        cells = "\n".join(f"{r.hash_cell('')} {json.dumps(r.data.list_options(), sort_keys=True)}" for r in runs)
    return [len(runs), hashlib.sha256(cells.encode()).hexdigest()[:16]]


def train(name: str) -> dict[str, Any]:
    """Return what two rounds of a method with its defaults give: digits, Dirichlet(0.3), 8 clients, 4 a round. theta's
    hash is that of one kind of CPU (`find_kernels`); the loss and the norm of the step hold on any."""
    training = {"rounds": 2, "local_steps": 3, "batch_size": 16, "lr": 0.02}
    result = run(small.problem(name, (8, 4), 12, 0.3, training=training), InlineBackend())
    start = result.problem.build_network("cpu").theta
    summary = result.summary()
    return {
        "theta": summary["theta_sha256"][:16],
        "state": summary["state_sha256"][:16],
        "moved": round(float((result.theta - start).norm()), 5),
        "accuracy": round(result.history[-1].get("test_accuracy", 0.0), 2),
    }


def find_kernels() -> str:
    """Return a fingerprint of this machine's arithmetic: matrix products, exponentials and sums of fixed numbers. Two
    kinds of CPU, or two versions of PyTorch, may round them differently."""
    numbers = torch.linspace(-2, 2, 64 * 48).reshape(64, 48)
    weights = torch.cos(torch.arange(48 * 12, dtype=torch.float32)).reshape(48, 12)
    parts = [numbers @ weights, numbers.exp(), numbers.sum(0), (numbers @ weights).log_softmax(1), numbers.norm()]
    joined = b"".join(part.contiguous().numpy().tobytes() for part in parts)
    return f"torch {torch.__version__.partition('+')[0]} {hashlib.sha256(joined).hexdigest()[:8]}"


def load(name: str) -> dict[str, Any]:
    """Return one of the two files."""
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return found


def _dump(name: str, entries: Iterator[tuple[str, Any]]) -> None:
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries)
    (HERE / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    _dump("cells", ((name, describe_cells(name)) for name in list_sweeps()))
    _dump("methods", iter([("kernels", find_kernels()), *((name, train(name)) for name in sorted(ALGORITHMS))]))
