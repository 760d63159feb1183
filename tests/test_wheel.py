"""The wheel made by `pip wheel` holds all that a user needs, and works outside of the repository; the numerics run
without Ray, Tune and MLflow installed."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import list_environment

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents: a build from a copy, so that nothing is left in the repository."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if not name.startswith("tests/") and (REPOSITORY / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPOSITORY / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out)]
    subprocess.run([*command, str(source)], check=True, timeout=280)
    (wheel,) = out.glob("*.whl")
    assert wheel.match("fedray-*.whl"), "the README installs it by this name"
    zipfile.ZipFile(wheel).extractall(out / "site")
    return out / "site"


CALLS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from fedray.cli.main import main
for line in sys.argv[1:]:
    sys.argv[1:] = line.split()
    try:
        main()
    except SystemExit as end:
        assert end.code == 0, line
"""


def fedray(installed: Path, folder: Path, *lines: str) -> str:
    """The command line as the console script starts it: the working directory is not on the path. Returns the output
    of the calls, which one process makes."""
    command = [sys.executable, "-P", "-c", CALLS, str(installed), *lines]
    env = list_environment() | {"PYTHONPATH": ""}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_is_in_the_wheel_which_works_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    for ours, theirs in (("fedray", "fedray"), ("analysis/published", "fedray/published"), ("sweeps", "fedray/sweeps")):
        expected = {
            path.relative_to(REPOSITORY / ours).as_posix()
            for path in (REPOSITORY / ours).rglob("*")
            if path.suffix in (".py", ".yaml", ".csv", ".html", ".typed", ".sh", ".json")
        }
        found = {path.relative_to(installed / theirs).as_posix() for path in (installed / theirs).rglob("*.*")}
        assert expected <= found
    # A shipped sweep goes by its name. A global package `analysis` belongs to the user; the wheel holds none.
    assert not (installed / "analysis").exists()
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "__init__.py").touch()
    mine = "from fedray.algorithms.fedavg import FedAvg\nclass Mine(FedAvg):\n    '''Mine.'''\n"
    (tmp_path / "analysis" / "mine.py").write_text(mine)
    run = "run example --backend inline --no-track --set algorithm=analysis.mine:Mine --set training.rounds=1"
    out = fedray(installed, tmp_path, "list metrics", "sweep quickstart --dry-run", run)
    for text in ("test_accuracy", "quickstart: 28 cells", "analysis.mine:Mine"):
        assert text in out


WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "mlflow"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Refuse())
import fedray, fedray.algorithms, fedray.engine.server.simulation, fedray.engine.disk.checkpoint
result = fedray.simulate({"data": "digits", "partition": "iid", "model": {"name": "mlp", "hidden": [4]},
                          "algorithm": "fedtoga", "training": {"rounds": 1}, "clients": {"total": 5, "per_round": 2},
                          "runtime": {"backend": "inline"}})
print(result.summary()["rounds"], len(result.theta) == result.layout.size, len(result.history))
class Mine(fedray.algorithms.Algorithm):
    pass
try:
    fedray.simulate({"data": "digits", "partition": "iid", "model": "mlp", "algorithm": Mine})
except fedray.UserError as error:
    print(error)
"""


def test_a_run_without_ray_and_mlflow() -> None:
    """A class that Ray's workers could not import is refused before Ray is imported."""
    out = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert out.stdout.splitlines() == [
        "1 True 1",
        "algorithm.name: Ray's workers cannot import __main__:Mine; put the class in a .py file, or set "
        "runtime.backend: inline",
    ], out.stderr
