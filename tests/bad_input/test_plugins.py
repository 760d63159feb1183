"""An error in a user's own class is reported in one line that names the class and the line of its file that raised."""

import sys
from pathlib import Path
from typing import Any

import pytest

import fedray
from fedray.common.errors import PluginError, UserError
from tests import small

HEAD = """
import numpy as np
import torch
from fedray.algorithms.base import Algorithm
from fedray.datasets.base import DataSource
from fedray.datasets.dataset import Dataset
from fedray.probes.probe import Probe
from fedray.partitions.base import Partition
from fedray.partitions.shards import Shards
x, y = np.zeros((40, 3), np.float32), np.arange(40) % 2
"""
SHARDS = "return Shards.from_lists([np.arange(9)"
RAISES = "{path} raises ZeroDivisionError: division by zero ({module}.py:"
DEALT = "; int64 samples and ascending offsets are required"
HELD_OUT = "return -1\n    splits = True\n    def split(self, *a):\n        return Shards.from_lists([[0]] * a[1])"

# (The base class, the method that is overridden) -> its body -> the beginning of the line.
PLUGINS: dict[tuple[str, str], dict[str, str]] = {
    ("Partition", "draw"): {
        "return None": "partition.name: {path}.draw returns a NoneType; Shards are required",
        f"{SHARDS}] * (clients - 1))": "partition.name: {path} deals to 5 clients; clients.total is 6",
        f"{SHARDS} + len(labels)] * clients)": "partition.name: {path} deals the sample 1437; the training set has "
        "samples 0 to 1436",
        "return Shards(np.arange(9), np.array([0, 9, 0, 9, 0, 9, 9]))": f"partition.name: {{path}} deals int64 (9,) "
        f"and int64 (7,){DEALT}",
        "return Shards(None, np.arange(7))": f"partition.name: {{path}} deals object () and int64 (7,){DEALT}",
        f"{SHARDS} * 1.0] * clients)": "partition: {path} raises TypeError: samples are float64; integers are "
        "required ({module}.py:",
        "1 / 0": f"partition: {RAISES}",
    },
    ("Partition", "split_test"): {
        f"{SHARDS} + 360] * 6)": "partition.name: {path} deals the sample 360; the test set has samples 0 to 359",
    },
    ("Partition", "get_held_out"): {
        HELD_OUT: "partition.name: {path}.get_held_out returns a int; Shards are required",
    },
    ("DataSource", "load"): {
        "return None": "data: {path}.load returns a NoneType; a Dataset is required",
        "return Dataset('a', x.tolist(), y, x, y, 2)": "data a: x_train is a list; a NumPy array is required",
        "return Dataset('a', x, y.astype(np.int32), x, y, 2)": "data a: y_train is int32; int64 is required",
        "1 / 0": f"data: {RAISES}",
    },
    ("Algorithm", "direction"): {
        "1 / 0": f"algorithm: {RAISES}",
        "return a[0].grad(a[0].theta) + torch.zeros(3)": "algorithm: {path} raises RuntimeError: The size of tensor a "
        "(",
        "pass": "algorithm: {path}.direction returns None; Tensor is required",
        "return a[0].theta * a[0].round": "algorithm: {path} raises AttributeError: 'LocalClient' object has no "
        "attribute 'round' ({module}.py:",
    },
    ("Algorithm", "message"): {"1 / 0": f"algorithm: {RAISES}"},
    ("Algorithm", "upload"): {
        "pass": "algorithm: {path}.upload returns None; Mapping[str, Sum | PerClient] is required",
    },
    ("Algorithm", "server_state"): {
        "return {'a': [1.0]}": "algorithm: {path}.server_state returns {{'a': [1.0]}}; Vectors is required",
    },
    ("Algorithm", "begin"): {
        "pass\n    shares = 'everything'": "algorithm.name: {path} declares shares = 'everything'; "
        "Union[Literal['all', 'body', ",
    },
    ("Probe", "of_round"): {"1 / 0": f"evaluation.probes: {RAISES}"},
    ("torch.nn.Module", "__init__"): {
        "1 / 0": f"model: {RAISES}",
    },
}
SECTIONS = {"Partition": "partition", "DataSource": "data", "Algorithm": "algorithm"}
CASES = [(*key, body, line) for key, cases in PLUGINS.items() for body, line in cases.items()]


def write_plugin(module: str, base: str, hook: str, body: str) -> dict[str, Any]:
    """Write the module of a plug-in; returns the sections of a run that uses it."""
    arguments = "self, labels, classes, clients, rng" if hook == "draw" else "self, *a"
    draws = "    def draw(self, y, c, n, rng):\n        return Shards.from_lists([[0]] * n)\n" * (hook == "split_test")
    metrics = "    metrics = {'m': 'm'}\n" if base == "Probe" else ""
    code = f"{HEAD}class Own({base}):\n{metrics}{draws}    def {hook}({arguments}):\n        {body}\n"
    Path(f"{module}.py").write_text(code)
    path = f"{module}:Own"
    section = {"evaluation": {"probes": [path]}} if base == "Probe" else {SECTIONS.get(base, "model"): path}
    section |= {"evaluation": {"personal": {}}} if hook == "split_test" else {}
    return small.sections(**{"model": 4, "training": {"rounds": 1, "local_epochs": 1}} | section)


@pytest.mark.parametrize("number", range(len(CASES)), ids=["-".join(case[1:3]) for case in CASES])
def test_a_plugins_mistake_is_one_line(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    *plugin, line = CASES[number]
    module = f"plugin_{number}"
    config = write_plugin(module, *plugin)
    with pytest.raises(UserError) as error:
        fedray.simulate(config, progress=False)
    said = str(error.value)
    assert said.startswith(line.format(path=f"{module}:Own", module=module)), said
    assert "\n" not in said
    if isinstance(error.value, PluginError):
        assert error.value.trace.startswith("Traceback")
