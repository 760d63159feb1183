"""A mistake in a call of the Python functions is a UserError of one line that names the argument; an error in a user's
own class is one line that names the class and the line of its file that raised."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import fedray
from fedray.common.errors import PluginError, UserError
from fedray.datasets import make_data_source
from fedray.datasets.base import load_data
from fedray.datasets.dataset import Dataset
from fedray.tracking.store import find_runs, open_store, pick_best
from tests import small
from tests.conftest import work_in

RUN = small.sections(model=4, training={"rounds": 1, "local_epochs": 1})
SWEEP = {"name": "x", "base": {key: value for key, value in RUN.items() if key != "runtime"}}
CONFIG = "Mapping[str, Any] | RunConfig | str | Path is required"
FLOATS = np.random.default_rng(0).standard_normal((24, 16), dtype=np.float32)
ARRAYS = {"x_train": FLOATS, "y_train": np.arange(24) % 3, "x_test": FLOATS[:6], "y_test": np.arange(6) % 3}

BYTES, DAYS, MASKED = np.zeros((24, 64), np.uint8), np.zeros(24, "timedelta64[D]"), np.ma.masked_less(FLOATS[:6], 0)
IDS = {"client_train": np.arange(24) % 8, "client_test": np.zeros(6, dtype=np.int64)}
UNSEEN = RUN | {"clients": {"total": 6, "per_round": 3, "unseen": 2}, "evaluation": {"personal": {"split": "disjoint"}}}
NATURAL = UNSEEN | {"partition": "natural", "data": ARRAYS | IDS}
LOOP: dict[str, Any] = {"name": "x"}
LOOP["loop"] = LOOP


class NoRepr:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def simulate(config: Any = RUN, **options: Any) -> Any:
    return fedray.simulate(config, progress=False, **options)


def on(**arrays: Any) -> Any:
    """A run on `ARRAYS`, some of them changed."""
    return simulate(RUN | {"data": ARRAYS | arrays})


def new(**changes: Any) -> Dataset:
    """A data set of `ARRAYS`, some of it changed."""
    return Dataset(**{"name": "a", **ARRAYS, "num_classes": 3, **changes})


def personal(client: Any, config: Any = RUN) -> Any:
    return simulate(config).personal_model(client)


CALLS: dict[str, Callable[[], Any]] = {
    f"simulate: config: found 42; {CONFIG}": lambda: simulate(42),
    "simulate: config: found 'a\\x00'; a path has no zero characters": lambda: simulate("a\0"),
    f"{'x' * 300}: cannot be read: File name too long": lambda: simulate("x" * 300),
    "simulate: track: found ' '; up to 250 printable characters are required": lambda: simulate(track=" "),
    "simulate: data: found <NoRepr>; Dataset | None is required": lambda: simulate(data=NoRepr()),
    f"simulate: checkpoints: {__file__} is not a folder": lambda: simulate(checkpoints=f"{__file__}/here"),
    "simulate: data: found the data set arrays; data.name is digits": lambda: simulate(data=on().problem.data),
    "run_sweep: sweep: found None; str | Path | Mapping[str, Any]…": lambda: fedray.run_sweep(None),  # type: ignore[arg-type]
    "run_sweep: only: found '12'; Sequence[str | int] is required": lambda: fedray.run_sweep(SWEEP, only="12"),
    "run_sweep: max_concurrent: found 0; at least 1 is required": lambda: fedray.run_sweep(SWEEP, max_concurrent=0),
    "base.data.x_train: found array([[…": lambda: fedray.run_sweep(SWEEP | {"base": RUN | {"data": ARRAYS}}),
    "grid.seed: found {0, 1}; a…": lambda: fedray.run_sweep(SWEEP | {"grid": {"seed": {0, 1}}}),
    "'loop.loop.loop.…": lambda: fedray.run_sweep(LOOP),
    "connect: address: found ''; auto or HOST:PORT is required, as 10.0.0.1:6379": lambda: fedray.connect(""),
    "load: run: found 7; str is required": lambda: fedray.load(7),  # type: ignore[arg-type]
    "save: /dev/null is not a regular file; overwrite=True writes into it": lambda: simulate().save("/dev/null"),
    "table: unknown name '3'; valid: confusion": lambda: simulate().table("3"),
    "personal_model: client: found '0'; int is required": lambda: personal("0"),
    "personal_model: client: found -1; one of the 6 clients that train is required": lambda: personal(-1),
    "personal_model: client: found 6; one of the 6 clients that train is required": lambda: personal(6, UNSEEN),
    f"save_personal: {__file__} is not a folder": lambda: simulate().save_personal(__file__),
    "clients.unseen: found 2; none of them has both training and test samples of its own": lambda: simulate(NATURAL),
    "Sum: vector: found 3; Tensor is required": lambda: fedray.Sum(3),  # type: ignore[arg-type]
    "data a: num_classes is '3'; an integer from 1 is required": lambda: new(num_classes="3"),
    "data a: y_train has shape (24, 1); (n,) is required": lambda: new(y_train=ARRAYS["y_train"][:, None]),
    "data a: mean is ('a',); a number per channel is required": lambda: new(mean=("a",)),
    "data a: mean and std are of uint8 images; x_train is float32, used as it is": lambda: new(mean=(0.5,), std=(0.5,)),
    "data arrays: mean and std hold 128; they are of images in [0, 1], so divide them by 255": lambda: on(
        x_train=np.zeros((24, 8, 8), np.uint8), x_test=np.zeros((6, 8, 8), np.uint8), mean=[128], std=[64]
    ),
    "data: y_train is timedelta64[D] (24,); integers (n,) with n > 0 are required": lambda: on(y_train=DAYS),
    (
        "data: x_train has shape (24, 1, 8, 8), which is that of uint8 images (n, h, w, c) 1 high with 8 channels; of "
        "images (n, c, h, w) give x.transpose(0, 2, 3, 1)"
    ): lambda: on(x_train=np.zeros((24, 1, 8, 8), np.uint8)),
    (
        "data: x_train has shape (24, 4, 8, 8), which is that of uint8 images (n, h, w, c) 4 high with 8 channels; of "
        "images (n, c, h, w) give x.transpose(0, 2, 3, 1)"
    ): lambda: on(x_train=np.zeros((24, 4, 8, 8), np.uint8)),
    (
        "data: x_train has shape (24, 9, 9, 3), which is that of float32 images (n, c, h, w) with 9 channels; of "
        "images (n, h, w, c) give x.transpose(0, 3, 1, 2)"
    ): lambda: on(x_train=np.zeros((24, 9, 9, 3), np.float32)),
    "data: x_test has shape (6, 8, 8, 1), which is that of float32…": lambda: on(
        x_train=np.zeros((24, 1, 8, 8), np.float32), x_test=np.zeros((6, 8, 8, 1), np.float32)
    ),
    "simulate: data: was loaded with augment None; data.augment is [{'flip': True}]": lambda: simulate(
        RUN | {"data": {"name": "digits", "augment": ["flip"]}}, data=small.problem().data
    ),
    "simulate: data: found arrays of your own, which data.augment does not change; give it to the Dataset…": lambda: (
        simulate(RUN | {"data": {"name": "digits", "augment": ["flip"]}}, data=new(name="digits"))
    ),
    "data a: x_train is uint8 (24, 8, 8); images (n, channels, height, width), or token…": lambda: new(
        x_train=np.zeros((24, 8, 8), np.uint8), x_test=np.zeros((6, 8, 8), np.uint8)
    ),
    "model.name: mlp does not take inputs of shape (64,): …": lambda: simulate(
        RUN | {"data": {"name": "digits"}}, data=new(name="digits", x_train=BYTES, x_test=BYTES[:6])
    ),
    "data.mean: only uint8 images are normalised; x_train is float32": lambda: on(mean=[0.5], std=[0.5]),
    "data: x_train cannot be made an array: ValueError: setting an…": lambda: on(x_train=[[1], [1, 2]]),
    "data: x_test is masked, and a mask would be lost; fill it, or leave the samples out": lambda: on(x_test=MASKED),
    "data: x_train is float64 (24, 16); uint8 (n, h, w[, c])…": lambda: on(x_train=FLOATS.astype(float)),
    "data arrays: x_train is uint8, x_test float32; one type is required, since only uint8 is scaled": lambda: on(
        x_train=np.zeros((24, 4, 4), np.uint8), x_test=FLOATS[:6].reshape(6, 1, 4, 4)
    ),
}
"""What is said -> the call."""


@pytest.mark.parametrize("line", CALLS, ids=lambda line: line[:50])
def test_a_mistake_is_one_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        CALLS[line]()
    said = str(error.value)
    assert said == line if not line.endswith("…") else said.startswith(line[:-1]), said
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


STRANGE: dict[str, dict[str, Any]] = {
    "requires grad": {"x_train": torch.from_numpy(FLOATS).requires_grad_()},
    "negative strides": {"x_train": FLOATS[::-1].copy()[::-1]},
    "frame": {"x_train": pd.DataFrame(FLOATS, index=range(24, 0, -1))},
    "big endian": {"y_train": (np.arange(24) % 3).astype(">i4")},
}


@pytest.mark.parametrize("what", STRANGE)
def test_arrays_that_only_look_strange_give_the_same_numbers(what: str) -> None:
    assert torch.equal(on(**STRANGE[what]).theta, on().theta)


def test_data_may_be_given_by_another_form_of_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", **ARRAYS)
    data = load_data(make_data_source({"name": "npz", "path": "mine.npz"}))
    simulate(RUN | {"data": {"name": "npz", "path": str(tmp_path / "mine.npz")}}, data=data)


def test_a_callback_gets_a_copy_of_the_row(project: Path) -> None:
    """Its changes to the row affect neither the history nor MLflow."""
    expected = simulate().history
    result = simulate(track="x", evaluated=lambda row: row.update(test_accuracy=-1.0))
    assert result.history == expected
    (cell,) = open_store()[0].get_metric_history(result.run_id, "test_accuracy")
    assert cell.value == expected[0]["test_accuracy"]
    early = simulate(RUN | {"training": {"rounds": 3}}, track="y", evaluated=lambda row: fedray.STOP)
    assert early.status == "stopped"
    assert ": stopped after 1 of 3 rounds, test accuracy " in repr(early)
    assert result.status == "finished"
    run = open_store()[0].get_run(early.run_id)
    assert (run.data.tags["fedray.status"], run.info.status, early.state.round) == ("stopped", "FINISHED", 1)


def test_a_run_that_ends_early_leaves_a_finished_one_as_it_is(project: Path) -> None:
    """The same cell is trained again with checkpoints elsewhere, stopped or broken: it gets a run of its own. Before,
    it took the finished run over, and a sweep's tables had the accuracy of the round in which it stopped."""
    config = RUN | {"training": {"rounds": 3}}
    first = simulate(config, track="x", checkpoints="one")
    before = open_store()[0].get_run(first.run_id)
    cell = before.data.tags["fedray.cell"]
    with pytest.raises(KeyError):
        simulate(config, track="x", checkpoints="two", evaluated=Mock(side_effect=KeyError("a bug")))
    stopped = simulate(config, track="x", checkpoints="three", evaluated=lambda row: fedray.STOP)
    client, experiment = open_store()
    assert client.get_run(first.run_id).to_dictionary() == before.to_dictionary()
    assert pick_best(find_runs(client, experiment, [cell]))[cell].info.run_id == first.run_id
    assert client.get_run(stopped.run_id).data.tags["fedray.status"] == "stopped"
    assert simulate(config, track="x", checkpoints="one").run_id == first.run_id  # shown again: nothing is trained
    assert simulate(config, track="x", checkpoints="three").run_id == stopped.run_id  # it goes on


CHANGES: dict[str, Callable[[], object]] = {
    "dtype": lambda: torch.set_default_dtype(torch.float64), "device": lambda: torch.set_default_device("meta"),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True), "no grad": lambda: torch.set_grad_enabled(False),
    "seed": lambda: torch.manual_seed(1), "run": lambda: simulate(RUN | {"seed": 7}),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_callback_that_changes_pytorchs_settings_changes_no_number(what: str) -> None:
    rounds = RUN | {"training": {"rounds": 3, "local_epochs": 1}, "evaluation": {"every": 1}}
    before = torch.get_default_dtype(), torch.get_default_device(), torch.is_autocast_enabled("cpu")
    assert torch.equal(simulate(rounds, evaluated=lambda row: [CHANGES[what]()].clear()).theta, simulate(rounds).theta)
    assert torch.is_grad_enabled()
    assert before == (torch.get_default_dtype(), torch.get_default_device(), torch.is_autocast_enabled("cpu"))


def test_a_model_replaces_no_file_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule as for the paths of commands, which tests/cli/test_outputs.py tries one by one."""
    work_in(tmp_path, monkeypatch)
    result = simulate(RUN | {"evaluation": {"personal": {}}})
    Path("notes.txt").write_text("precious")
    said = r"^save: notes.txt exists and does not end in \.safetensors; .* overwrite=True"
    with pytest.raises(UserError, match=said):
        result.save("notes.txt")
    assert Path("notes.txt").read_text() == "precious"
    first, second = (result.save("notes.txt", overwrite=True), result.save("new/m.safetensors"))
    assert load_file(first).keys() == load_file(second).keys()
    for path in (".fedray/cells/b", "mlartifacts"):
        with pytest.raises(UserError, match=r"^save_personal: .*client-0\.safetensors belongs to "):
            result.save_personal(path)
        assert not Path(path).exists()


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
        "labels.sort()": "partition: {path} raises ValueError: sort array is read-only ({module}.py:",
        f"p = np.random.default_rng().permutation(9); {SHARDS[:-12]}p] * clients)": "partition.name: {path} draws "
        "something else each time; draw from rng, or by numpy.random or random, whose",
    },
    ("Partition", "split_test"): {
        f"{SHARDS} + 360] * 6)": "partition.name: {path} deals the sample 360; the test set has samples 0 to 359"
    },
    ("Partition", "get_held_out"): {HELD_OUT: "partition.name: {path}.get_held_out returns a int; Shards are required"},
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
    ("Algorithm", "upload"): {"pass": "algorithm: {path}.upload returns None; Mapping[str, Sum | PerClient] is req"},
    ("Algorithm", "server_state"): {"return {'a': 1}": "algorithm: {path}.server_state returns {{'a': 1}}; Vectors is"},
    ("Algorithm", "begin"): {
        "return a[0].theta": "algorithm: {path}.begin returns tensor(",
        "pass\n    shares = 'everything'": "algorithm.name: {path} declares shares = 'everything'; "
        "Union[Literal['all', 'body', ",
    },
    ("Probe", "of_round"): {"1 / 0": f"evaluation.probes: {RAISES}"},
    ("torch.nn.Module", "__init__"): {"1 / 0": f"model: {RAISES}"},
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
    with pytest.raises(UserError) as error:
        fedray.simulate(write_plugin(module, *plugin), progress=False)
    said = str(error.value)
    assert said.startswith(line.format(path=f"{module}:Own", module=module)), said
    assert "\n" not in said
    if isinstance(error.value, PluginError):
        assert error.value.trace.startswith("Traceback")
