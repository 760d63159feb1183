"""What `fedray status` says of a sweep, and what `fedray rm` takes out of the store."""

from pathlib import Path

import pytest

from fedray.cli import main as cli
from fedray.sweep.storage import storage
from fedray.tracking.store import search
from fedray.tracking.tracker import Tracker
from tests.analysis.conftest import store
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write

__all__ = ["store"]


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["fedray", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return int(exit_.value.code or 0), capsys.readouterr().out


def test_status_counts_and_says_why(
    store: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [cell(FEDAVG, 0.1, 0), cell(FEDAVG, 0.1, 1), cell(SMALL, 0.1, 0)]
    outcomes = {cells[0]["hash"]: ("finished", history(50)), cells[1]["hash"]: ("failed", history())}
    write(store, cells, outcomes)
    traceback = storage() / "cells" / cells[1]["hash"] / "traceback.txt"
    traceback.parent.mkdir(parents=True)
    traceback.write_text("Traceback")
    code, out = call(monkeypatch, capsys, "status", "sweep")
    assert code == 0
    first, *rest = out.splitlines()
    assert first.startswith("sweep: 3 cells, ")
    assert set(first.removeprefix("sweep: 3 cells, ").split(", ")) == {"1 finished", "1 failed", "1 missing"}
    assert rest == [
        f"failed      {cells[1]['label']}: why",
        f"            {traceback}",
        f"missing     {cells[2]['label']}",
    ]


def test_rm_leaves_what_another_sweep_shares(
    store: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two sweeps share the first cell: of the one that is deleted its own run and its second cell's go."""
    monkeypatch.chdir(tmp_path)
    one, two, three = (cell(FEDAVG, 0.1, seed) for seed in (0, 1, 2))
    write(store, [one, two], {k["hash"]: ("finished", history(50)) for k in (one, two)})
    write(store, [one, three], {three["hash"]: ("finished", history(50))}, name="other")
    code, out = call(monkeypatch, capsys, "rm", "sweep", "--yes")
    assert (code, out) == (0, "sweep: 2 runs deleted (1 that another sweep shares stay)\n")
    left = {run.data.tags.get("fedray.cell", run.info.run_name) for run in search(store.client, store.experiment, "")}
    assert left == {"other", one["hash"], three["hash"]}
    (run,) = search(store.client, store.experiment, f"tags.`fedray.cell` = '{three['hash']}'")
    code, out = call(monkeypatch, capsys, "rm", run.info.run_id, "--yes")
    assert (code, out) == (0, f"{run.info.run_id}: 1 runs deleted\n")
