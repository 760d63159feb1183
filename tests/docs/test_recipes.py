"""Recipes with other libraries, and docs/plug-ins.md, followed from an empty folder: their files, run as they are."""

import ast
import inspect
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.algorithms.base import Algorithm, Client, Proximal, Server
from fedray.engine.problem import Problem
from fedray.tracking.store import IS_CELL, open_store, search
from tests import small
from tests.docs.test_pages import fences

HUB = """
import numpy as np
from PIL import Image

def load_dataset(name):
    assert name == "ylecun/mnist"
    rows = {part: range(first, first + 4) for part, first in (("train", 0), ("test", 4))}
    pictures = {part: [Image.fromarray(np.full((5, 6), k, np.uint8)) for k in ks] for part, ks in rows.items()}
    return {part: {"image": pictures[part], "label": [k % 3 for k in ks]} for part, ks in rows.items()}
"""
"""Stands in for the package `datasets`: splits by name, columns by name, pictures of Pillow and integers."""


def read_recipe(file: str) -> str:
    """Return the content of a file of the page."""
    [content] = [content for language, content in fences("recipes") if content.startswith(f"# {file}\n")]
    return content


def run_recipe(file: str, folder: Path, *arguments: str) -> None:
    """Write the file into the folder, and run it there."""
    (folder / file).write_text(read_recipe(file))
    subprocess.run([sys.executable, file, *arguments], cwd=folder, check=True, timeout=120)


def problem(clients: int, partition: Any, data: Any, **sections: Any) -> Problem:
    return small.problem("fedavg", (clients, 2), partition=partition, data=data, **sections)


def test_a_data_set_of_hugging_face(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text(HUB)
    run_recipe("hub.py", tmp_path)
    data = problem(2, "iid", {"name": "npz", "path": str(tmp_path / "hub.npz")}).data
    assert data.x_test.shape == (4, 1, 5, 6)
    assert data.x_test[:, 0, 0, 0].tolist() == [4, 5, 6, 7]
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1, 2, 0], [1, 2, 0, 1])


def test_a_folder_of_pfllib_is_a_data_set_with_natural_clients(tmp_path: Path) -> None:
    """Three clients of 3, 4 and 5 training samples, and 1, 1 and 2 test samples, each sample its own number."""
    numbers = {"train": np.split(np.arange(12), [3, 7]), "test": np.split(np.arange(12, 16), [1, 2])}
    for part, clients in numbers.items():
        (tmp_path / part).mkdir()
        for i, own in enumerate(clients):
            x = np.zeros((len(own), 1, 2, 2), np.float32) + own[:, None, None, None]
            with (tmp_path / part / f"{i}.npz").open("wb") as file:
                np.savez_compressed(file, data={"x": x, "y": own % 3})  # type: ignore[arg-type]
    run_recipe("pfllib.py", tmp_path, ".", "own.npz")
    own = problem(3, "natural", {"name": "npz", "path": str(tmp_path / "own.npz")}, evaluation={"personal": {}})
    assert own.split.test is not None
    for i in range(3):
        assert sorted(own.data.x_train[own.split.train[i], 0, 0, 0].tolist()) == numbers["train"][i].tolist()
        assert sorted(own.data.x_test[own.split.test[i], 0, 0, 0].tolist()) == numbers["test"][i].tolist()
    np.testing.assert_array_equal(own.data.y_train, np.arange(12) % 3)


def test_a_partition_of_fl_bench_is_a_split(tmp_path: Path) -> None:
    """Positions of training and then test samples, by client in a dictionary."""
    none = np.array([], dtype=np.int64)
    clients = [
        {"train": np.array([0, 1700]), "val": none, "test": np.array([1])},
        {"train": np.array([5], dtype=np.int32), "val": none, "test": [4, 2]},
    ]
    content = {
        "separation": {"train": [0, 1], "val": [], "test": [0, 1], "total": 2},
        "data_indices": dict(enumerate(clients)),
    }
    (tmp_path / "partition.pkl").write_bytes(pickle.dumps(content))
    run_recipe("fl_bench.py", tmp_path, ".", "partition.npz")
    partition = {"name": "file", "path": str(tmp_path / "partition.npz")}
    dealt = problem(2, partition, {"name": "digits", "test": {}})
    assert dealt.split.test is not None
    assert [dealt.split.train[i].tolist() for i in (0, 1)] == [[0, 1700], [5]]
    assert [dealt.split.test[i].tolist() for i in (0, 1)] == [[1], [4, 2]]


def test_a_search_that_learns(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trials, of twelve three, and the best values with two seeds, each a run of the store."""
    pytest.importorskip("optuna", reason="fedray does not need Optuna; only this recipe does")
    exec(read_recipe("learn.py").replace("n_trials=12", "n_trials=3"), {})  # noqa: S102
    printed = capsys.readouterr().out
    assert re.fullmatch(r"\{'lr': 0\.\d+, 'rho': 0\.\d+\} \[\d\d\.\d+, \d\d\.\d+\]\n", printed)
    client, experiment = open_store()
    assert len(list(search(client, experiment, IS_CELL))) == 3 + 2


ROOT = Path(fedray.__file__).parents[1]
PAGE = (ROOT / "docs/plug-ins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(?:python|yaml)\n(# (\S+)\n.*?)```", PAGE, flags=re.DOTALL)
FILES = {name: text for text, name in BLOCKS}
COMMANDS = re.findall(r"^    ((?:fedray|python) .*)$", PAGE, flags=re.MULTILINE)
FEDRAY = [sys.executable, "-c", "import sys; sys.path.remove(''); from fedray.cli.main import main; main()"]


def execute(folder: Path, command: str) -> str:
    program, *arguments = shlex.split(command)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "RAY_", "FEDRAY_"))}
    words = FEDRAY if program == "fedray" else [sys.executable]
    done = subprocess.run(
        [*words, *arguments],
        cwd=folder,
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_tables_of_hooks_are_the_contract() -> None:
    """Hooks with their parameters, attributes with their defaults, all that a client and the server offer."""
    section = PAGE.partition("## Every hook\n")[2].partition("\n## ")[0]
    hooks, attributes = (
        re.findall(r"^\| (`.*?) \| (.*?) \|", part, re.MULTILINE) for part in section.split("| attribute")
    )
    members = {
        name: one for kind in (Algorithm, Proximal) for name, one in vars(kind).items() if not name.startswith("_")
    }
    functions = {
        name: [*inspect.signature(one).parameters][1:]
        for name, one in members.items()
        if inspect.isfunction(one) and name not in ("overrides", "refuse_untrained")
    }
    properties = {name for name, one in members.items() if isinstance(one, property)}
    told = [hook for first, _ in hooks for hook in re.findall(r"`(.*?)`", first)]
    assert sorted(told) == sorted([f"{name}({', '.join(given)})" for name, given in functions.items()] + [*properties])
    defaults = {
        name: value
        for first, given in attributes
        for name, value in zip(re.findall(r"\w+", first), re.findall(r"`(.*?)`", given), strict=True)
    }
    declared = {name for name in get_class_variables(Algorithm) if name not in ("model_config", "section")}
    assert defaults.keys() == declared
    assert all(ast.literal_eval(value) == getattr(Algorithm, name) for name, value in defaults.items())
    client, computes, server, got = (re.findall(r"`([\w.]+)[^`]*`", part) for part in section.split("\n- ")[1:])
    offered = {*Client.__dataclass_fields__, *(name for name in vars(Client) if not name.startswith("_"))}
    assert sorted([*client, *computes]) == sorted(offered)
    assert sorted(server) == sorted(Server.__dataclass_fields__)
    assert got == ["got.update", "got.shared_update", "got.NAME"]


def get_class_variables(kind: type) -> set[str]:
    """The names that a class itself annotates as ClassVar."""
    return {name for name, one in vars(kind)["__annotations__"].items() if "ClassVar" in str(one)}


@pytest.mark.slow
def test_the_page_works_from_an_empty_folder(tmp_path: Path) -> None:
    """The derived numbers hold; the sweep runs on Ray's workers; table and figure know the probe's metric."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    said = {command: execute(tmp_path, command) for command in COMMANDS}
    assert "2 passed" in said["python -m pytest test_lookback.py"]
    assert "2 passed" in said["python -m pytest test_momscaf.py"]
    assert "2 finished" in said["fedray sweep lookback.yaml"]
    assert re.search(r"look-back +\| *[*<]?.*\d\.\d", said["fedray tables first"])
    for command in ("fedray tables lookback", "fedray tables lookback --metric travelled"):
        row = next(line for line in said[command].splitlines() if "look-back" in line)
        assert re.search(r"\d\.\d", row), row
        assert "quantity:Quantity π=1 " in said[command]
    assert "length of the averaged update" in said["fedray tables lookback --metric travelled"]
    drawn = sorted(path.name for path in (tmp_path / "figures").rglob("*.png"))
    assert len(drawn) == 1, drawn
