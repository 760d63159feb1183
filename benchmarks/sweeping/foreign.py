"""A store with thousands of foreign runs against one without: CPU seconds of a sweep's start and of a table.

    python -m benchmarks.sweeping.foreign                          # 20,000 runs, 5 pairs, about 6 minutes
    python -m benchmarks.sweeping.foreign --runs 500 --pairs 1

The sweep is quickstart, half of its cells finished. Its start is the work of a call before its first trial: plan, look
the cells up, open the sweep's run. Both stores are read directly and through an MLflow server, whose CPU
counts as well.
"""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import pairs as p

TICKS = os.sysconf("SC_CLK_TCK")
START = """
import sys
from pathlib import Path
from fedray.cells.status import Ending
from fedray.cells.record import RunRecord
from fedray.cells.status import Status
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.plan import make_plan
from fedray.tracking.tracker import Tracker
made = make_plan(Sweep.load(Path(sys.argv[1])))
tracker = Tracker()
parent = tracker.open_sweep(made.sweep.name, "", made.list_cells())
print(made.describe())
"""
FILL = """
import sys
from itertools import islice
from pathlib import Path
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.plan import make_plan
from fedray.cells.record import CellRun
from fedray.cells.spec import CellSpec
from fedray.tracking.tracker import Tracker
from tests.tracking.foreign import fill
made = make_plan(Sweep.load(Path(sys.argv[1])))
tracker = Tracker()
parent = tracker.open_sweep(made.sweep.name, "", made.list_cells())
for cell in islice(made.cells.values(), len(made.cells) // 2):
    tags = {"fedray.sweep": made.sweep.name, **cell.run.make_tags()}
    run = CellRun(cell, tags, parent)
    tracker.open_cell(run)
    rows = [{"round": t, "test_accuracy": 50.0 + t, "test_loss": 1.0} for t in range(1, 31)]
    tracker.close_cell(run, RunRecord(Ending(Status.FINISHED), rows))
tracker.close()
fill(Path(sys.argv[2]), int(sys.argv[3]))
"""
SWEEP = p.ROOT / "sweeps" / "quickstart.yaml"


def call(uri: str, *arguments: str) -> None:
    """Run Python with a store. Raises RuntimeError if it fails."""
    env = os.environ | {"MLFLOW_TRACKING_URI": uri, "PYTHONPATH": str(p.ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-2000:])


def cpu(uri: str, server: int | None, *arguments: str) -> float:
    """Return the CPU seconds of a call, and of the server during it."""

    def spent() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        ticks = 0
        for pid in [] if server is None else [server, *p.descendants(server)]:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return children.ru_utime + children.ru_stime + ticks / TICKS

    before = spent()
    call(uri, *arguments)
    return spent() - before


@contextlib.contextmanager
def served(store: Path) -> Iterator[tuple[str, int]]:
    """Run an MLflow server on 127.0.0.1 for the duration of a block; yields its address and process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = os.environ | {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{store}"}
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (store.parent / "server.log").open("a") as log:
        process = subprocess.Popen(command, cwd=store.parent, env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((store.parent / "server.log").read_text()[-2000:]) from None
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()


def main(
    runs: Annotated[int, typer.Option(min=1)] = 20_000,
    pairs: Annotated[int, typer.Option(min=1)] = 5,
    out: Path | None = None,
) -> None:
    """Print how much additional CPU the full store takes."""
    with p.report("foreign runs in the store", out) as told, tempfile.TemporaryDirectory() as name:
        stores = {0: Path(name) / "empty" / "mlflow.db", runs: Path(name) / "full" / "mlflow.db"}
        for count, store in stores.items():
            store.parent.mkdir()
            call(f"sqlite:///{store}", "-c", FILL, str(SWEEP), str(store), str(count))
        calls = {"start of a sweep": ("-c", START, str(SWEEP)), "table": ("-m", "fedray.cli", "tables", "quickstart")}
        for way in ("directly", "through a server"):
            with contextlib.ExitStack() as stack:
                places: dict[int, tuple[str, int | None]] = {
                    count: stack.enter_context(served(store)) if "server" in way else (f"sqlite:///{store}", None)
                    for count, store in stores.items()
                }
                for what, arguments in calls.items():
                    seconds: dict[int, list[float]] = {count: [] for count in stores}
                    for k in range(pairs + 1):
                        for count in stores if k % 2 == 0 else reversed(stores):
                            taken = cpu(*places[count], *arguments)
                            if k:  # the first of each warms the caches
                                seconds[count].append(taken)
                    more = sorted(full - empty for full, empty in zip(seconds[runs], seconds[0], strict=True))
                    told.add(
                        f"CPU seconds more with {runs} foreign runs: {what}, {way}",
                        round(more[len(more) // 2], 2),
                        "<= 2",
                        empty=[round(value, 2) for value in seconds[0]],
                        full=[round(value, 2) for value in seconds[runs]],
                    )


if __name__ == "__main__":
    typer.run(main)
