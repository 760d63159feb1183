"""Result tables from a real MLflow store into which the runs of a sweep were written by hand."""

import csv
import io
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from analysis.collect import collect
from analysis.tables import build, comma_separated, latex, markdown
from fedray.errors import UserError
from fedray.tracking import Tracker, final_metrics


def history(*accuracies: float) -> list[dict[str, float]]:
    return [{"round": t + 1, "test_accuracy": a, "test_loss": 1 - a / 100, "train_loss": 0.5}
            for t, a in enumerate(accuracies)]


def cell(algorithm: Mapping[str, Any], alpha: float, seed: int) -> dict[str, Any]:
    name = "-".join(map(str, [*algorithm.values(), alpha, seed]))
    return {"hash": name, "label": name, "config": {
        "seed": seed, "algorithm": dict(algorithm), "partition": {"name": "dirichlet", "alpha": alpha, "min_size": 1},
        "runtime": {"actors": 1}}}


FEDAVG, SMALL, LARGE = {"name": "fedavg"}, {"name": "fedsam", "rho": 0.1}, {"name": "fedsam", "rho": 0.5}


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without runs; making one takes seconds, copying it none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return Tracker()


def write(store: Tracker, cells: list[dict[str, Any]], outcomes: Mapping[str, tuple[str, list[dict[str, float]]]],
          name: str = "sweep") -> None:
    parent = store.open_sweep(name, "", cells)
    for one in cells:
        if one["hash"] not in outcomes:
            continue
        status, rows = outcomes[one["hash"]]
        run_id, _ = store.open_cell(one["hash"], one["label"], one["config"], {}, None, parent)
        store.log_rows(run_id, rows)
        if status != "running":
            store.close_cell(run_id, status, rows, {}, "why" if status != "finished" else "")


def test_mean_std_ranks_and_every_kind_of_hole(store: Tracker) -> None:
    """Two seeds each. fedavg: last10 = mean of the rounds = 80 and 84 -> 82 ± 2.83 (|84-80|/sqrt 2).

    fedsam ρ=0.1: 90 and 92 -> 91 ± 1.41, the best. fedsam ρ=0.5 would be 99, but one seed diverged: its entry says so
    and is not ranked. At α = 0.1: fedavg has one seed missing, ρ=0.1 one stopped early, ρ=0.5 one still running.
    """
    cells = [cell(a, alpha, seed) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL, LARGE) for seed in (0, 1)]
    hashes = [one["hash"] for one in cells]
    values: list[tuple[str, list[dict[str, float]]] | None] = [
        ("finished", history(79, 81)), ("finished", history(84)), ("finished", history(90)), ("finished", history(92)),
        ("finished", history(99)), ("diverged", history(99)),
        ("finished", history(50)), None, ("finished", history(60)), ("stopped", history(95)),
        ("failed", history(10)), ("running", history(20))]
    write(store, cells, {h: v for h, v in zip(hashes, values, strict=True) if v is not None})
    table = build(collect("sweep"))
    assert table.rows == ["fedavg", "fedsam ρ=0.1", "fedsam ρ=0.5"]
    assert table.columns == ["dirichlet α=0.5", "dirichlet α=0.1"]
    text = markdown(table)
    lines = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:4]] for line in text.splitlines()
             if line.startswith("| fed")}
    assert lines == {
        "fedavg": ["<u>82.00 ± 2.83</u>", "50.00 (1 missing)"],
        "fedsam ρ=0.1": ["**91.00 ± 1.41**", "60.00 (1 stopped)"],
        "fedsam ρ=0.5": ["99.00 (1 diverged)", "- (1 failed, 1 running)"]}
    assert "mean of the last 10 evaluated rounds" in text
    assert "fewer than 10 evaluated rounds" in text
    assert "- diverged: " in text
    assert "why" in text
    assert r"\textbf{91.00 $\pm$ 1.41}" in latex(table)
    assert r"\underline{82.00 $\pm$ 2.83}" in latex(table)
    assert r"fedsam $\rho$=0.1" in latex(table)
    rows = list(csv.DictReader(io.StringIO(comma_separated(table))))
    assert len(rows) == 6
    assert rows[0] | {"row": "fedavg", "mean": "82", "std": "2.82843", "seeds": "2", "others": ""} == rows[0]


def test_a_loss_is_ranked_from_below(store: Tracker) -> None:
    cells = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    write(store, cells, {one["hash"]: ("finished", history(v)) for one, v in zip(cells, (80, 90), strict=True)})
    table = build(collect("sweep"), "test_loss")
    assert table.ranks == {("fedsam", "dirichlet α=0.5"): 1, ("fedavg", "dirichlet α=0.5"): 2}


def test_cells_finished_in_another_sweep_count(store: Tracker) -> None:
    shared, own = cell(FEDAVG, 0.5, 0), cell(SMALL, 0.5, 0)
    write(store, [shared], {shared["hash"]: ("finished", history(70))}, "first")
    write(store, [shared, own], {own["hash"]: ("finished", history(80))}, "second")
    assert set(collect("second").cells["status"]) == {"finished"}
    assert build(collect("second")).entries["fedavg", "dirichlet α=0.5"].mean == 70


def test_a_repeated_cell_counts_once_and_superseded_ones_not_at_all(store: Tracker) -> None:
    one = cell(FEDAVG, 0.5, 0)
    write(store, [one], {one["hash"]: ("finished", history(70))})
    store.supersede([one["hash"]])
    parent = store.open_sweep("sweep", "", [one])
    run_id, _ = store.open_cell(one["hash"], one["label"], one["config"], {}, None, parent, again=False)
    store.close_cell(run_id, "finished", history(75), {})
    entry = build(collect("sweep")).entries["fedavg", "dirichlet α=0.5"]
    assert (entry.mean, entry.seeds) == (75, 1)


def test_last_mean_and_best_are_different_metrics() -> None:
    """12 rounds 1..12, then a last one of 5: last10 = (4+5+...+12+5)/10 = (72+5)/10; best is 12 in round 12."""
    metrics = final_metrics(history(*range(1, 13), 5))
    assert metrics["final_test_accuracy"] == 5
    assert metrics["last10_test_accuracy"] == pytest.approx(7.7)
    assert metrics["best_test_accuracy"] == 12
    assert metrics["best_round"] == 12
    assert metrics["evaluations"] == 13


@pytest.mark.parametrize(("name", "metric", "rows", "message"), [
    ("swep", "test_loss", "algorithm", "sweep: unknown name 'swep'; did you mean 'sweep'?"),
    ("sweep", "test_acuracy", "algorithm", "--metric: unknown name 'test_acuracy'; did you mean 'test_accuracy'?"),
    ("sweep", "test_loss", "algorthm", "--rows/--cols: unknown name 'algorthm'; did you mean 'algorithm'?"),
])
def test_unknown_names(store: Tracker, name: str, metric: str, rows: str, message: str) -> None:
    one = cell(FEDAVG, 0.5, 0)
    write(store, [one], {one["hash"]: ("finished", history(70))})
    with pytest.raises(UserError) as error:
        build(collect(name), metric, rows)
    assert message in str(error.value)
