"""From the call of `fedray sweep sweeps/quickstart.yaml` to its first round: this checkout compared with another one.

    git worktree add /tmp/old COMMIT
    python -m benchmarks.sweeping.start --old /tmp/old             # 10 pairs, about 10 minutes
    python -m benchmarks.sweeping.start --old /tmp/old --pairs 1   # a quick look, under a minute

Each call works in an empty folder, with a store that does not exist yet, and is interrupted in its first round. The
first call of either side does not count: it fills the page cache. `--store` gives all calls copies of an existing
store. For comparison MLflow, Tune and torch alone (`alone`): a store, Ray, and a trial that imports torch.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import pairs as p

NOTING = Path(__file__).parent / "noting"
LONGEST = 300.0
"""Seconds after which a call that has made no round counts as broken."""


ALONE = Path("alone")
"""Represents the side without fedray."""


def seconds_to_first_round(checkout: Path, store: Path | None = None) -> float:
    """Make one call in a folder of its own, and return its seconds.

    Args:
        checkout: the code and the quickstart to use; or ALONE.
        store: a SQLite file to copy; None for no store.

    Raises:
        RuntimeError: the call ended, or made no round in time.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        note, log = folder / "note", folder / "log"
        if store is not None:
            shutil.copy(store, folder / "mlflow.db")
        env = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "FEDRAY_", "RAY_"))}
        env |= {"PYTHONPATH": f"{NOTING}:{checkout}", "FEDRAY_BENCH_NOTE": str(note)}
        command = [sys.executable, "-m", "fedray.cli", "sweep", str(checkout / "sweeps" / "quickstart.yaml")]
        if checkout == ALONE:
            env |= {"PYTHONPATH": str(p.ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
            command = [sys.executable, "-m", "benchmarks.sweeping.alone", "2", "5"]
        began = time.time()
        with log.open("w") as out:
            process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)
        while not (note.exists() and note.read_text().endswith("\n")):
            if process.poll() is not None or time.time() - began > LONGEST:
                process.kill()
                raise RuntimeError(f"{checkout}: no round after {time.time() - began:.0f} s\n{log.read_text()[-2000:]}")
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        finally:
            process.kill()
        return float(note.read_text().split()[0]) - began


def main(
    old: Annotated[Path | None, typer.Option(help="another checkout; by default only this one is measured")] = None,
    pairs: Annotated[int, typer.Option(min=1)] = 10,
    store: Annotated[Path | None, typer.Option(help="a SQLite store that exists at every call")] = None,
    out: Path | None = None,
) -> None:
    """Print the seconds of both, and their ratio."""
    with p.report("start of quickstart", out) as told:
        sides = [p.ROOT, ALONE] if old is None else [p.ROOT, old.resolve(), ALONE]
        seconds: dict[Path, list[float]] = {side: [] for side in sides}
        for k in range(pairs + 1):
            for side in sides if k % 2 == 0 else sides[::-1]:
                taken = seconds_to_first_round(side, store)
                if k:
                    seconds[side].append(taken)
        mine, least = seconds[p.ROOT], seconds[ALONE]
        told.add(
            "call to first round, seconds (median)", round(sorted(mine)[len(mine) // 2], 2), "", each=rounded(mine)
        )
        told.add("call to first round / MLflow, Tune and torch alone", p.ratio(mine, least), "", alone=rounded(least))
        if old is not None:
            theirs = seconds[old.resolve()]
            told.add(
                "call to first round / the other checkout's", p.ratio(mine, theirs), "<= 0.5", other=rounded(theirs)
            )
            told.add("MLflow, Tune and torch alone / the other checkout's", p.ratio(least, theirs))


def rounded(values: list[float]) -> list[float]:
    """Round for reading."""
    return [round(value, 2) for value in values]


if __name__ == "__main__":
    typer.run(main)
