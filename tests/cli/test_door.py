"""The command starts fast: commands that need no PyTorch do not import it, and none imports what it does not use."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fedray
from fedray.cells.status import Status
from fedray.common.entry import run_command
from fedray.common.errors import UserError
from fedray.common.process import INTERRUPTED
from fedray.sweep.plan import make_plan
from fedray.sweep.sweep import Sweep
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import history, write_run
from tests.sweep.running import REPOSITORY
from tests.sweep.running import fedray as start

CODE = """
import json, os, sys, time
from fedray.cli.main import main
def plan():  # as `fedray sweep` begins in a folder without a store
    os.chdir("new")
    from fedray.sweep.sweep import Sweep
    from fedray.common.location import refuse_unwritable_store
    from fedray.sweep.run import plan_and_print
    from fedray.sweep.storage import refuse_unwritable_storage
    from pathlib import Path
    refuse_unwritable_store()
    refuse_unwritable_storage()
    assert len(plan_and_print(Sweep.load(Path("grid.yaml")), "grid.yaml").to_run) == 2
    import fedray.cluster.connection, fedray.sweep.session
    sys.exit(0)
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    start = time.process_time()
    try:
        main() if words != ["a plan"] else plan()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    print("END", code, time.process_time() - start, *sys.modules, file=sys.stderr)
"""
HEAVY = {"torch", "numpy", "torchvision", "scipy", "pandas", "ray", "mlflow", "matplotlib", "sklearn"}


def call(folder: Path, *calls: list[str]) -> tuple[str, list[tuple[int, float, set[str], str]]]:
    """Standard output of a process that calls `fedray` some times, and of each call its exit code, CPU seconds, the
    modules imported so far, and standard error."""
    command = [sys.executable, "-c", CODE, json.dumps(calls)]
    out = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=200)
    ended, said = [], list[str]()
    for line in out.stderr.splitlines():
        if line.startswith("END "):
            _, code, seconds, *modules = line.split()
            ended.append((int(code), float(seconds), set(modules), "\n".join(said)))
            said = []
        else:
            said.append(line)
    assert len(ended) == len(calls), out.stderr
    return out.stdout, ended


SLIPS = [
    (["nope"], "fedray: No such command 'nope'."),
    (["run"], "fedray: Missing argument"),
    (["run", "bad.yaml"], "fedray: bad.yaml: line 2, column 1: is not YAML"),
    (["sweep", "bad.yaml"], "fedray: bad.yaml: line 2, column 1: is not YAML"),
    (["run", "ok.yaml", "--set", "seed"], "fedray: --set: found 'seed'"),
    (["sweep", "quickstat"], "fedray: 'quickstat': there is no such file"),
    (["sweep", "quickstart.yaml"], "fedray: 'quickstart.yaml': there is no such file; quickstart is the sweep that"),
]


def test_help_and_slips_take_no_pytorch(tmp_path: Path) -> None:
    """0.13 to 0.28 s of CPU each when measured; the bound leaves room for a busy machine."""
    (tmp_path / "bad.yaml").write_text("a: [\n")
    (tmp_path / "ok.yaml").write_text("data: digits\n")
    helps = [[], ["--help"], ["data"], ["run", "--help"], ["sweep", "-h"], ["--version"]]
    out, ended = call(tmp_path, *helps, *(words for words, _ in SLIPS))
    assert out.count("Usage: ") == 5
    assert f"fedray {fedray.__version__}" in out
    assert [code for code, *_ in ended] == [0] * 6 + [2] * len(SLIPS)
    assert [said for *_, said in ended[:6]] == [""] * 6
    for (_, text), (*_, said) in zip(SLIPS, ended[6:], strict=True):
        assert said.startswith(text)
    assert ended[-1][2] & HEAVY == set()
    assert not [name for name in ended[-1][2] if name.startswith(("fedray.analysis", "fedray.papers"))]
    assert max(seconds for _, seconds, *_ in ended) < 1


@pytest.fixture
def finished(project: Path) -> Path:
    """A folder with a sweep of two cells, and a store in which both have finished."""
    document = {"name": "done", "base": small.sections(clients={}, model=4, runtime={}), "grid": {"seed": [0, 1]}}
    (project / "done.yaml").write_text(json.dumps(document))
    plan, tracker = make_plan(Sweep.parse(document)), Tracker()
    parent = tracker.open_sweep(plan.sheet)
    for cell in plan.sheet.cells.values():
        write_run(tracker, {"hash": cell.hash, "label": cell.label, "config": cell.run.resolve()}, history(60))
    tracker.close_sweep(parent, {Status.FINISHED: 2})
    tracker.close()
    return project


def test_a_command_imports_no_more_than_it_uses(finished: Path) -> None:
    """Ever more in one process: what lists cells; what lists classes or refuses, with PyTorch at most; what reads a
    SQLite store, without MLflow, which takes two seconds; and the plan of a sweep with a new store: Tune and MLflow
    take seconds, in which Ray can start."""
    refused = "{data: digits, partition: iid, model: mlp, algorithm: fedavgg}"
    (finished / "refused.yaml").write_text(refused)
    (finished / "refused_grid.yaml").write_text(f"name: x\nbase: {refused}\ngrid: {{sead: []}}\n")
    own = "from fedray.algorithms.base import Algorithm\n\nclass Own(Algorithm):\n    pull: float = 0.5\n"
    (finished / "own.py").write_text(own)
    (finished / "new").mkdir()
    shutil.copy(finished / "done.yaml", finished / "new" / "grid.yaml")
    status = [["status"], ["status", "done", "--all"]]
    classes = [["list", "algorithms"], ["list", "algorithms", "own:Own"], ["list", "datasets"]]
    refusals = [["run", "refused.yaml"], ["sweep", "refused_grid.yaml"]]
    out, ended = call(finished, *status, *classes, *refusals, ["tables", "done"], ["a plan"])
    for text in ("2 finished", "done: 2 cells, 2 finished", "  pull = 0.5 ", "60.00 ± 0.00"):
        assert text in out
    assert [code for code, *_ in ended] == [0] * 5 + [2] * 2 + [0] * 2, ended
    imported = [modules for _, _, modules, _ in ended]
    assert imported[1] & HEAVY == set()
    assert imported[6] & (HEAVY - {"torch", "numpy"}) == set()
    assert imported[7] & {"mlflow", "ray", "matplotlib"} == set()
    assert imported[8] & {"mlflow", "ray.tune", "matplotlib", "ray"} == {"ray"}
    assert {path.name for path in (finished / "new").iterdir()} <= {"grid.yaml", ".fedray"}, "nothing is written"


NOBODY = """
import os, pwd
def getpwuid(uid): raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
"""
"""What containers see of a user without an entry in passwd."""


def test_a_user_without_an_entry_in_passwd_and_without_home(project: Path) -> None:
    """MLflow's import ended in a traceback."""
    (project / "site").mkdir()
    (project / "site" / "sitecustomize.py").write_text(NOBODY)
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "USER", "LOGNAME", "LNAME")}
    environment["PYTHONPATH"] = os.pathsep.join([str(project / "site"), str(REPOSITORY)])
    words = [sys.executable, "-P", "-m", "fedray", "rm", "nosuch", "--yes"]
    out = subprocess.run(words, env=environment, cwd=project, capture_output=True, text=True, timeout=200)
    said = "fedray: HOME: it is not set, and this user has no entry in passwd; set it to a folder that can be written\n"
    assert (out.returncode, out.stderr) == (2, said)


def test_a_terminal_that_does_not_know_greek_letters() -> None:
    """As in batch systems: unprintable characters become question marks; it was a UnicodeEncodeError."""
    code = "from fedray.common.entry import run_command; run_command(lambda: print('rho \\u03c1'))"
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "POSIX"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "rho ?\n", "")


FULL = "fedray: standard output or a file: No space left on device\n"


@pytest.mark.parametrize(("redirection", "code", "line"), [(">/dev/full", 2, FULL), (">&-", 0, ""), ("| true", 1, "")])
def test_standard_output_that_is_full_or_closed_is_no_traceback(redirection: str, code: int, line: str) -> None:
    command = f"set -o pipefail; '{Path(sys.executable).with_name('fedray')}' list clusters {redirection}"
    out = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, timeout=100)
    assert (out.returncode, out.stderr) == (code, line)


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.parametrize("during", ["training", "a lock", pytest.param("actors", marks=pytest.mark.faults)])
def test_sigterm_ends_fedray_run_with_the_sentence(project: Path, during: str) -> None:
    """In a background job, which a shell starts with SIGINT ignored; it once trained on to its end."""
    runtime = {"actors": 2} if during == "actors" else {"backend": "inline"}
    run = small.sections(model=4, training={"rounds": 10**6}, runtime=runtime | {"checkpoint_every": 1})
    (project / "sweep.yaml").write_text(json.dumps({"name": "endless", "base": run, "grid": {"seed": [0, 1]}}))
    listing = project / ".fedray" / "locks" / ".listing"
    listing.parent.mkdir(parents=True)
    with listing.open("w") as lock:
        if during == "a lock":
            fcntl.flock(lock, fcntl.LOCK_EX)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = start(project, "run", "sweep.yaml", "--cell", "1")
        finally:
            signal.signal(signal.SIGINT, before)
        opened = Path(f"/proc/{process.pid}/fd")
        checkpoints = (project / ".fedray" / "cells").glob
        if during == "a lock":

            def opens(file: Path) -> bool:
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    return os.readlink(file) == str(listing)
                return False

            until(lambda: any(map(opens, opened.iterdir())), process)
        else:
            until(lambda: list(checkpoints("*/*")), process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1:]) == (130, [INTERRUPTED])
    assert "Traceback" not in err


@pytest.mark.parametrize("kind", [AttributeError, UserError])
def test_a_failure_while_an_interrupt_is_cleared_up_is_that_interrupt(
    kind: type[Exception], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an interrupt in the middle of the import of MLflow, which the clearing up then imports again. What a
    UserError says is told; slurm.sh puts a job that ends with 130 back into the queue, but not one with 2."""

    def command() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise kind("partially initialized module 'mlflow'") from None

    monkeypatch.setattr("sys.argv", ["fedray"])
    with pytest.raises(SystemExit) as ended:
        run_command(command)
    told = "fedray: partially initialized module 'mlflow'\n" * (kind is UserError)
    assert (ended.value.code, capsys.readouterr().err) == (130, f"{told}{INTERRUPTED}\n")
