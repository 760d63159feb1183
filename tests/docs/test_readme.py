"""Every command of the README does what it says, the quickstart's promises are measured, and the notebooks run. Recipes
with other libraries, and docs/plug-ins.md, followed from an empty folder: their files, run as they are."""

import ast
import inspect
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import yaml

from fedray.algorithms.base import Algorithm, Client, Proximal, Server
from fedray.engine.problem import Problem
from fedray.sweep.draws import iter_points
from fedray.sweep.sweep import Sweep
from fedray.tracking.store import IS_CELL, open_store, search
from tests import small
from tests.conftest import Call, list_environment
from tests.docs.test_pages import fences

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.split("   #")[0].strip() for line in re.findall(r"^    ((?:fedray|make) .*)$", README, re.MULTILINE)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that the commands read, without the store and checkpoints of the user who runs the tests."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("fedray", "analysis", "sweeps", "Makefile"):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


def execute(home: Path, command: str, limit: float = 280, fedray: Sequence[str] = ("-m", "fedray"), **more: str) -> str:
    """Return what a command prints, called as a process of its own, with more in its environment."""
    program, *arguments = shlex.split(command)
    words = [sys.executable, *(fedray if Path(program).name == "fedray" else []), *arguments]
    env = list_environment() | more
    done = subprocess.run(words, cwd=home, env=env, capture_output=True, text=True, timeout=limit)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def read(home: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Callable[[str], str]:
    """Call a command in this process, which has imported what it needs, and return its output."""
    monkeypatch.chdir(home)
    for name in os.environ.keys() - list_environment().keys():
        monkeypatch.delenv(name)

    def run(command: str) -> str:
        code, out, err = call(*shlex.split(command)[1:])
        assert code == 0, f"{command}\n{out}\n{err}"
        return out

    return run


SWEEP, UI = (
    next(c for c in COMMANDS if part in c and c.count("--") == dashes)
    for part, dashes in (("fedray sweep quickstart", 0), ("fedray ui", 1))
)
PERSONAL = next(c for c in COMMANDS if "sweep fedgela/pcdd_smoke" in c)
ANALYSIS = re.compile(r"fedray (tables|figures|compare|report) ")
"""These need a sweep that has run."""
OTHERS = [c for c in COMMANDS if c not in (SWEEP, UI, PERSONAL) and not c.startswith("make") and not ANALYSIS.search(c)]


@pytest.fixture(scope="module")
def quickstart(home: Path) -> tuple[str, float]:
    """Output and seconds of the README's sweep."""
    started = time.monotonic()
    return execute(home, SWEEP, limit=800), time.monotonic() - started


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quickstart_keeps_its_promises(quickstart: tuple[str, float], read: Callable[[str], str]) -> None:
    """About 2 minutes are promised on an idle machine; the limit grows with the load of other work."""
    out, seconds = quickstart
    assert "quickstart: 28 finished" in out
    assert seconds < 180 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    rows = [line.split(",") for line in read("fedray tables quickstart --format csv").splitlines()[1:]]
    assert len(rows) == 14
    values = {(row[0], row[1]): float(row[2]) for row in rows}
    assert values["fedavg", "dirichlet α=0.5"] > 85, "mild heterogeneity"
    assert min(values.values()) > 50, "every method learns"
    assert "28 finished, 0 diverged, 0 to run" in read(SWEEP)


@pytest.mark.slow
def test_the_readmes_table_is_printed(home: Path, quickstart: tuple[str, float], read: Callable[[str], str]) -> None:
    """Same rows and columns; the numbers may differ in the last digits on another kind of CPU."""
    printed = execute(home, "fedray tables quickstart")  # as `make quickstart` prints it
    shown = [line.strip() for line in README.splitlines() if line.startswith("    |")]
    assert shown, "the README shows the table"
    for ours, theirs in zip([line for line in printed.splitlines() if line.startswith("|")], shown, strict=True):
        assert re.sub(r"[\d.*<>/u -]", "", ours) == re.sub(r"[\d.*<>/u -]", "", theirs)
    assert "tabular" in read(next(c for c in COMMANDS if "--format latex" in c))
    assert "×)" in read(next(c for c in COMMANDS if "rounds_to" in c))
    compared = read(next(c for c in COMMANDS if "compare" in c))
    assert re.search(r"\| fedtoga α=0\.01 \| dirichlet α=0\.1 \| \d\d\.\d\d \| \+\d", compared)
    for command in (c for c in COMMANDS if "fedray figures" in c):
        drawn = [line for line in read(command).splitlines() if not line.startswith("  for its caption")]
        kinds = [Path(name).suffix for name in drawn]
        assert kinds.count(".png") == kinds.count(".pdf") >= 1, "PNG and PDF"
        assert all((home / name).stat().st_size > 1000 for name in drawn)
    page = read(next(c for c in COMMANDS if "fedray report" in c)).strip()
    assert "28 cells: 28 finished" in (home / page).read_text(encoding="utf-8")


def test_the_sweep_file_has_as_many_cells_as_the_text_says() -> None:
    """4 settings of methods, 2 splits, 3 seeds."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert len(list(iter_points(Sweep.parse(yaml.safe_load(text))))) == 4 * 2 * 3
    assert "This one has 24 cells" in README


@pytest.mark.slow
def test_personal_and_generic_accuracy_side_by_side(home: Path, read: Callable[[str], str]) -> None:
    assert "16 finished" in execute(home, PERSONAL)
    table = read(next(c for c in COMMANDS if "personal_accuracy" in c))
    rows = [line for line in table.splitlines() if line.startswith("| fed")]
    assert any("fedgela" in row and row.count("|") == 4 for row in rows), "a method, its PA and its GA"


@pytest.mark.parametrize("command", OTHERS)
def test_command(command: str, local_ray: None, read: Callable[[str], str]) -> None:
    assert read(command)


def test_python_example(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    exec(code[1], {})  # noqa: S102
    out = capsys.readouterr().out
    printed = re.fullmatch(r"(\d+\.\d+) torch\.Size\(\[15010\]\)\n", out)
    assert printed is not None, out
    assert 90 < float(printed[1]) < 100


EXAMPLES = REPOSITORY / "examples"
NAMES = ["one_run", pytest.param("sweep_results", marks=pytest.mark.slow)]
"""The second one starts Ray and runs six cells."""


def cells(name: str) -> list[dict[str, Any]]:
    document = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    found: list[dict[str, Any]] = document["cells"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(name: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last expression of each cell is printed, as a notebook shows it."""
    code = ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]
    assert len(code) > 4
    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    for text in code:
        tree = ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            print(repr(eval(compile(ast.Expression(last.value), "cell", "eval"), names)))  # noqa: S307
    accuracies = re.findall(r"test accuracy (\d+\.\d+) %.*>", capsys.readouterr().out)
    assert len(accuracies) >= 1
    assert all(30 < float(accuracy) < 100 for accuracy in accuracies), "it has learnt something"


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
    first = {"train": np.array([0, 1700]), "val": none, "test": np.array([1])}
    second = {"train": np.array([5], dtype=np.int32), "val": none, "test": [4, 2]}
    separation = {"train": [0, 1], "val": [], "test": [0, 1], "total": 2}
    content = {"separation": separation, "data_indices": {0: first, 1: second}}
    (tmp_path / "partition.pkl").write_bytes(pickle.dumps(content))
    run_recipe("fl_bench.py", tmp_path, ".", "partition.npz")
    dealt = problem(2, {"name": "file", "path": str(tmp_path / "partition.npz")}, {"name": "digits", "test": {}})
    assert dealt.split.test is not None
    assert [dealt.split.train[i].tolist() for i in (0, 1)] == [[0, 1700], [5]]
    assert [dealt.split.test[i].tolist() for i in (0, 1)] == [[1], [4, 2]]


def test_a_search_that_learns(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trials, of twelve three, and the best values with two seeds, each a run of the store."""
    pytest.importorskip("optuna", reason="fedray does not need Optuna; only this recipe does")
    exec(read_recipe("learn.py").replace("n_trials=12", "n_trials=3"), {})  # noqa: S102
    assert re.fullmatch(r"\{'lr': 0\.\d+, 'rho': 0\.\d+\} \[\d\d\.\d+, \d\d\.\d+\]\n", capsys.readouterr().out)
    client, experiment = open_store()
    assert len(list(search(client, experiment, IS_CELL))) == 3 + 2


PAGE = (REPOSITORY / "docs/plug-ins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(?:python|yaml)\n(# (\S+)\n.*?)```", PAGE, flags=re.DOTALL)
FILES = {name: text for text, name in BLOCKS}
PAGE_COMMANDS = re.findall(r"^    ((?:fedray|python) .*)$", PAGE, flags=re.MULTILINE)
FEDRAY = ["-c", "import sys; sys.path.remove(''); from fedray.cli.main import main; main()"]


def test_the_tables_of_hooks_are_the_contract() -> None:
    """Hooks with their parameters, attributes with their defaults, all that a client and the server offer."""
    section = PAGE.partition("## Every hook\n")[2].partition("\n## ")[0]
    hooks, attributes = (re.findall(r"^\| (`.*?) \| (.*?) \|", part, re.M) for part in section.split("| attribute"))
    members = {k: v for kind in (Algorithm, Proximal) for k, v in vars(kind).items() if not k.startswith("_")}
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
    path = str(REPOSITORY)
    said = {command: execute(tmp_path, command, fedray=FEDRAY, PYTHONPATH=path) for command in PAGE_COMMANDS}
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
