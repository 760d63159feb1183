"""The command starts fast: commands that need no PyTorch do not import it, and none imports what it does not use."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedray
from fedray.cells.status import Status
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.plan import make_plan
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import history, write_run
from tests.sweep.running import REPOSITORY

CODE = """
import sys, time
from fedray.cli.main import main
try:
    main()
except SystemExit as end:
    code = end.code
print(code, time.process_time(), *sys.modules, file=sys.stderr)
"""
HEAVY = {"torch", "numpy", "torchvision", "scipy", "pandas", "ray", "mlflow", "matplotlib", "sklearn"}


def call(folder: Path, *arguments: str) -> tuple[int, float, set[str], str]:
    """Exit code, CPU seconds, modules and the text of a call of `fedray`."""
    out = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, cwd=folder, timeout=200
    )
    *said, last = out.stderr.splitlines()
    code, seconds, *modules = last.split()
    return int(code), float(seconds), set(modules), out.stdout + "\n".join(said)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 0, "Usage: "),
        (["--help"], 0, "Usage: "),
        (["data"], 0, "Usage: "),
        (["run", "--help"], 0, "Usage: "),
        (["sweep", "-h"], 0, "Usage: "),
        (["--version"], 0, f"fedray {fedray.__version__}"),
        (["nope"], 2, "fedray: No such command 'nope'."),
        (["run"], 2, "fedray: Missing argument"),
        (["run", "bad.yaml"], 2, "fedray: bad.yaml: line 2: is not YAML"),
        (["sweep", "bad.yaml"], 2, "fedray: bad.yaml: line 2: is not YAML"),
        (["run", "ok.yaml", "--set", "seed"], 2, "fedray: --set: found 'seed'"),
        (["sweep", "quickstat"], 2, "fedray: 'quickstat': there is no such file"),
    ],
)
def test_help_and_slips_take_no_pytorch(tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    """0.13 to 0.28 s of CPU when measured; the bound leaves room for a busy machine."""
    (tmp_path / "bad.yaml").write_text("a: [\n")
    (tmp_path / "ok.yaml").write_text("data: digits\n")
    found, seconds, modules, said = call(tmp_path, *arguments)
    assert (found, modules & HEAVY) == (code, set()), said
    assert text in said
    assert "fedray: Usage" not in said
    assert seconds < 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list", "algorithms"], 0),
        (["list", "algorithms", "own:Own"], 0),
        (["list", "datasets"], 0),
        (["run", "refused.yaml"], 2),
        (["sweep", "grid.yaml"], 2),
    ],
)
def test_lists_and_refusals_import_pytorch_at_most(tmp_path: Path, arguments: list[str], code: int) -> None:
    refused = "data: digits, partition: iid, model: mlp, algorithm: fedavgg"
    (tmp_path / "refused.yaml").write_text(refused.replace(", ", "\n"))
    (tmp_path / "grid.yaml").write_text(f"name: x\nbase: {{{refused}}}\ngrid: {{sead: []}}\n")
    own = "from fedray.algorithms.base import Algorithm\n\nclass Own(Algorithm):\n    pull: float = 0.5\n"
    (tmp_path / "own.py").write_text(own)
    found, _, modules, said = call(tmp_path, *arguments)
    assert ("own:Own" not in arguments) or "  pull = 0.5 " in said
    assert (found, modules & (HEAVY - {"torch", "numpy"})) == (code, set()), said


@pytest.fixture
def finished(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a sweep of two cells, and a store in which both have finished."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    document = {
        "name": "done",
        "base": {"data": "digits", "partition": "iid", "model": {"name": "mlp", "hidden": [4]}, "algorithm": "fedavg"},
        "grid": {"seed": [0, 1]},
    }
    (tmp_path / "done.yaml").write_text(json.dumps(document))
    plan, tracker = make_plan(Sweep.parse(document)), Tracker()
    parent = tracker.open_sweep("done", "", plan.list_cells(), file=plan.text)
    for cell in plan.cells.values():
        write_run(tracker, {"hash": cell.hash, "label": cell.label, "config": cell.run.resolve()}, history(60))
    tracker.close_sweep(parent, {Status.FINISHED: 2})
    tracker.close()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "imported", "text"),
    [
        (["status"], set(), "2 finished"),
        (["status", "done", "--all"], set(), "done: 2 cells, 2 finished"),
        (["tables", "done"], HEAVY - {"mlflow", "ray", "matplotlib"}, "60.00 ± 0.00"),
        (["sweep", "done.yaml"], HEAVY - {"mlflow", "matplotlib"}, "done: 2 finished"),
    ],
)
def test_what_only_reads_a_sqlite_store_takes_no_mlflow(
    finished: Path, arguments: list[str], imported: set[str], text: str
) -> None:
    """MLflow takes two seconds to import. A sweep with nothing to do leaves the store as it is."""
    before = (finished / "mlflow.db").read_bytes()
    code, _, modules, said = call(finished, *arguments)
    assert (code, (modules & HEAVY) - imported) == (0, set()), said
    assert text in said
    assert (finished / "mlflow.db").read_bytes() == before


PLAN = """
import sys
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.driver.run import plan_and_print, refuse_unwritable
from pathlib import Path
refuse_unwritable()
made = plan_and_print(Sweep.load(Path(sys.argv[1])), "grid.yaml")
assert len(made.to_run) == 2
import fedray.cluster.connection, fedray.sweep.trials.session
print(*sys.modules)
"""


def test_ray_starts_before_tune_and_mlflow_are_imported(tmp_path: Path) -> None:
    """A sweep with a new store is planned without them: they take seconds, in which Ray can start."""
    (tmp_path / "grid.yaml").write_text(
        "name: x\nbase: {data: digits, partition: iid, model: {name: mlp, hidden: [4]}, algorithm: fedavg}\n"
        "grid: {seed: [0, 1]}\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", PLAN, "grid.yaml"], capture_output=True, text=True, cwd=tmp_path, timeout=200
    )
    assert out.returncode == 0, out.stderr
    *_, modules = out.stdout.splitlines()
    assert set(modules.split()) & {"mlflow", "ray.tune", "matplotlib", "ray"} == {"ray"}
    assert [path.name for path in tmp_path.iterdir() if path.name != ".fedray"] == ["grid.yaml"], "nothing is written"


NOBODY = """
import os, pwd
def getpwuid(uid): raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""
"""What containers see of a user without an entry in passwd."""


@pytest.mark.parametrize("home", [True, False])
def test_a_user_without_an_entry_in_passwd(tmp_path: Path, home: bool) -> None:
    """With HOME all is as ever; without, MLflow's import ended in a traceback."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NOBODY)
    (tmp_path / "run.yaml").write_text(json.dumps(small.sections(model=4, training={"rounds": 1, "local_epochs": 1})))
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "USER", "LOGNAME", "LNAME")}
    environment |= {"HOME": str(tmp_path)} if home else {}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)])
    words = [sys.executable, "-P", "-m", "fedray.cli", "run", "run.yaml"]
    out = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    said = "fedray: HOME: it is not set, and this user has no entry in passwd; set it to a folder that can be written\n"
    assert (out.returncode, out.stderr) == ((0, "") if home else (2, said))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_does_not_know_greek_letters(encoding: str) -> None:
    """As in batch systems: unprintable characters become question marks; it was a UnicodeEncodeError."""
    code = "from fedray.common.entry import run_command; run_command(lambda: print('rho \\u03c1'))"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "LC_ALL": "POSIX"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "rho ?\n", "")


@pytest.mark.parametrize(
    ("redirection", "code", "line"),
    [
        (">/dev/full", 2, "fedray: standard output or a file: No space left on device\n"),
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        ("| true", 1, ""),
    ],
)
def test_standard_output_that_is_full_or_closed_is_no_traceback(redirection: str, code: int, line: str) -> None:
    command = f"set -o pipefail; '{Path(sys.executable).with_name('fedray')}' list algorithms {redirection}"
    out = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, timeout=100)
    assert (out.returncode, out.stderr) == (code, line)
