"""Methods that are FedAvg but for their name: a board offers them FedAvg's rates, and tells none of them apart."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from fedray.papers.board import Board, list_rows, list_standings, parse_csv, write_csv
from fedray.sweep.file.sweep import Sweep
from tests.conftest import Call, start_ray
from tests.sweep.running import REPOSITORY

SWEEP = """
name: leaderboard/same
base:
  data: {name: digits}
  partition: {name: dirichlet, alpha: 0.5}
  clients: {total: 6, per_round: 3}
  model: {name: mlp, hidden: [16]}
  training: {rounds: 8, local_epochs: 1, batch_size: 20}
cases:
  - {algorithm: fedavg}
  - {algorithm: {name: fedsam, rho: 1.0e-9}}
  - {algorithm: {name: mimelite, beta: 0}}
search: {training.lr: {loguniform: [0.05, 0.5]}}
searcher: sobol
samples: 2
tune: {seeds: [100, 101, 102], validation: {fraction: 0.2, from: clients}, blocks: true}
final: {seeds: [0, 1, 2]}
"""
METHODS = ("fedavg", "fedsam", "mimelite")


@pytest.fixture
def board(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Iterator[Board]:
    """The board, trained by a real sweep on a Ray of two CPUs, as one that comes with fedray."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # for Ray's processes, which import tests.plugins
    (tmp_path / "leaderboard").mkdir()
    (file := tmp_path / "leaderboard" / "same.yaml").write_text(SWEEP)
    start_ray(num_cpus=2)
    assert call("sweep", str(file)).code == 0
    sweep = Sweep.load(file)
    (tmp_path / "same.csv").write_text(text := write_csv(list_rows(sweep)))
    for user in ("papers.board", "sweep.file.shipped"):
        monkeypatch.setattr(f"fedray.{user}.get_sweeps_folder", lambda: tmp_path)
    monkeypatch.setattr("fedray.papers.board.get_boards_folder", lambda: tmp_path)
    yield Board(sweep.name, sweep, parse_csv(text))
    ray.shutdown()


@pytest.mark.slow
def test_what_is_fedavg_stands_with_fedavg(board: Board, call: Call) -> None:
    """MimeLite without momentum has FedAvg's bits; terms of 1e-9 change at most a few images of 360.

    The last method is FedAvg as a plug-in, with a key that nothing reads: its rates are FedAvg's, whatever else is
    searched.
    """
    rows = board.rows
    rates = {method: sorted(rows[(rows.method == method) & (rows.stage == "tune")].options) for method in METHODS}
    assert len(set(map(tuple, rates.values()))) == 1, "all were offered the same rates"
    assert len(set(rates["fedavg"])) == 6, "two in each of three blocks"
    final = rows[rows.stage == "final"].set_index(["method", "seed"])
    assert (final.loc["mimelite"].theta_sha256 == final.loc["fedavg"].theta_sha256).all()
    twice = final.loc["fedsam"].gradients / final.loc["fedavg"].gradients
    assert (twice == 2).all()
    assert (final.loc["fedsam"].megabytes_up == final.loc["fedavg"].megabytes_up).all()
    assert final.state_sha256.str.len().eq(64).all()
    gradients, megabytes, accuracy = json.loads(final.loc["fedavg"].curve.iloc[0])[-1]
    assert gradients == pytest.approx(final.loc["fedavg"].gradients.iloc[0], abs=0.05)
    assert megabytes == pytest.approx(2 * final.loc["fedavg"].megabytes_up.iloc[0], abs=1e-3)
    assert 0 < accuracy <= 100
    standings = {one.method: one for one in list_standings(board)}
    for method in METHODS[1:]:
        difference = standings[method].to_reference
        assert difference is not None
        assert abs(difference.mean or 0) < 0.1
        assert difference.judge(False) == "not told apart"

    search = "algorithm.unused={uniform: [0, 1]}"
    code, out, err = call("board", "rank", "tests.plugins:Idle", "--on", "leaderboard/same", "--search", search)
    assert code == 0, err
    lines = {line.split(" | ")[1]: line.split(" | ") for line in out.splitlines() if line.startswith("| ")}
    yours = lines["**tests.plugins:Idle** (yours)"]
    assert yours[2] == lines["fedavg"][2], "the same accuracies"
    assert yours[4] == "not told apart"
    name = "leaderboard/same-tests.plugins.Idle"
    assert out.startswith(f"{name}: 9 cells, about "), "in each of 3 blocks, two draws and a final run"
    assert re.findall(r"(\d) of 9 cells to go, about [\d.]+ (?:s|min|h)\n", out) == ["6", "3"]
    again = call("board", "rank", "tests.plugins:Idle", "--on", "leaderboard/same", "--search", search).out
    assert "to go" not in again, "nothing is left to train"
