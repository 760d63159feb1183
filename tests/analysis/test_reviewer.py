"""What a reviewer asks: the report's answers from the store, and the hours of the runs that it shows and of all."""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedray.analysis.data.collect import collect
from fedray.analysis.report import make_page
from fedray.analysis.reviewer import SHOWN, count_samples, list_answers, measure_hours
from fedray.analysis.tables.build import build
from fedray.cells.record import CellRun, RunRecord
from fedray.cells.spec import CellSpec
from fedray.cells.status import Ending, Status
from fedray.cli.main import app
from fedray.components.identity import hash_of
from fedray.tracking.environment import collect_environment, find_environment
from fedray.tracking.store import find_runs, open_store
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, SMALL, cell, history, write, write_run

CHOSEN = {
    "stage": "s/tune",
    "select": "best_validation_accuracy",
    "held_out": {"fraction": 0.2, "from": "clients"},
    "train_on": "all",
    "seeds": [100, 101],
    "searcher": "sobol",
    "scheduler": "",
    "values": {"algorithm.rho": 0.1},
    "score": 93.5,
    "draws": 8,
    "finished": 8,
    "rounds": 640,
    "gradients": 12800,
    "ranges": {"algorithm.rho": "loguniform [0.01, 0.5]"},
    "edges": [],
}


def pack(**offsets: list[int]) -> bytes:
    file = io.BytesIO()
    np.savez(file, samples=np.array([100, 20]), **{f"{k}_offsets": np.array(v) for k, v in offsets.items()})
    return file.getvalue()


SPLIT = pack(train=[0, 30, 40, 80], validation=[0, 10, 15, 20])


def test_the_answers_of_a_tuned_sweep(store: Tracker) -> None:
    """A final stage of fedavg and fedsam with seeds 0 and 1, and a tune stage with seeds 100 and 101."""
    tune = [cell(FEDAVG, 0.5, seed) for seed in (100, 101)]
    final = [cell(method, 0.5, seed) for method in (FEDAVG, SMALL) for seed in (0, 1)]
    for one in final:
        one["config"] |= {"data": {"name": "digits"}, "clients": {"total": 3}}
        one["config"]["runtime"] = {"actors": 2, "cpus_per_actor": 1.5, "gpus_per_actor": 0.0}
    listed = [one | ({"tuned": CHOSEN} if k > 1 else {}) for k, one in enumerate(final)]
    parent = store.open_sweep("s", "", listed)
    for k, one in enumerate(final):
        write_run(store, one, history(60 + k, 70 + k), parent=parent, files={"partition.npz": SPLIT})
    write(store, tune, [50, ("diverged", 9)], "s/tune")
    found = list_answers(collect("s"))
    assert found["Seeds"] == [
        "s/tune: 100, 101",
        "s: 0, 1",
        "a run's seed decides its split, its initial model, the clients of each round, and their batches",
    ]
    # the first seed's split: 30, 10 and 40 samples of three clients, 10, 5 and 5 held out
    assert found["Data and splits"] == [
        "s/tune: dirichlet α=0.5; the sizes are not in the store",
        "s: digits dirichlet α=0.5, 3 clients; seed 0: 100 + 20 samples, 80 trained on (10 to 40 per client), "
        "20 held out for validation (5 to 10 per client)",
    ]
    how, what = found["Ranges and chosen values"]
    assert how.startswith("tuned by s/tune: best best_validation_accuracy of sobol draws")
    assert "chosen for fedsam" in what
    assert "ρ=0.1 of loguniform [0.01, 0.5]; 8 draws, 640 rounds" in what
    assert [line.split(", ")[0] for line in found["Hours"]] == [
        f"{SHOWN}: 4 runs", "s/tune: diverged: 1 run", "s/tune: finished: 1 run", "all: 6 runs"
    ]  # fmt: skip
    cpu, *asked = found["Hardware"]
    assert re.fullmatch(rf"started on {collect_environment()['cpu']['count']} CPUs \(.+\), \d+ GiB, .+ \(6 runs\)", cpu)
    assert asked == [
        "asked for actors 2, cpus_per_actor 1.5, gpus_per_actor 0.0 (4 runs)",
        "asked for actors 1, cpus_per_actor 1, gpus_per_actor 0 (2 runs)",
    ]
    page = make_page(collect("s"), ["test_accuracy"])
    section = page[page.index('<h2 id="reviewer">') : page.index('<h2 id="settings">')]
    assert re.findall("<h3>(.*)</h3>", section) == list(found)
    assert section.count("<li>") == sum(map(len, found.values()))


def test_the_answers_of_a_grid_and_of_a_sweep_without_runs(store: Tracker) -> None:
    """With a seed of the partition's own, the split does not follow from the run's."""
    one = cell(FEDAVG, 0.5, 3)
    one["config"]["partition"]["seed"] = 7
    store.open_sweep("sweep", "", [one])
    found = list_answers(collect("sweep"))
    assert found["Data and splits"] == found["Hardware"] == []
    assert found["Hours"] == ["all: 0 runs, 0 hours, 0 CPU-hours, 0 GPU-hours"]
    write(store, [one], [60])
    found = list_answers(collect("sweep"))
    assert found["Seeds"][-1] == "but with partition.seed 7 the split is the same for every seed"
    assert found["Ranges and chosen values"][0].startswith("the store knows of no tuning")


@pytest.mark.parametrize("content", [b"", b"PK\5\6" + 18 * b"\0", b"no zip"])
def test_a_split_that_is_damaged(content: bytes) -> None:
    assert re.fullmatch(r"partition\.npz cannot be read \(\w+\)", count_samples(content))


def test_a_split_that_would_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedray.analysis.reviewer.LARGEST", 100)
    assert count_samples(SPLIT) == "partition.npz cannot be read (ValueError)"


def run(one: Mapping[str, Any], hours: float, status: str = "finished", sweep: str = "s", again: bool = False) -> None:
    """Write a run that took so long; with `again` it replaces the earlier one."""
    store = Tracker()
    made = CellRun(CellSpec.from_json(one), {"fedray.sweep": sweep}, began=0.0, ended=3600 * hours)
    if again:
        store.supersede([one["hash"]])
    store.open_cell(made)
    if status != "running":
        store.close_cell(made, RunRecord(Ending(Status(status)), history(50)))


def test_every_run_is_counted_once_with_its_sweep_and_outcome(store: Tracker) -> None:
    """Shown: 2 + 3 h, of which the second with 4 processes on half a GPU and 2 CPUs each (24 CPU-h, 6 GPU-h).

    On the way: a first try of 5 h that was superseded, 1 h that diverged, tuning of 7 h and a failed 0.5 h, a smoke
    version of 0.25 h, settings that the file lists no more (4 h), 6 h deleted, and one that was killed without a time.
    Another sweep's 8 h are shown by this one; its 100 h are not.
    """
    big, shared = cell(SMALL, 0.5, 0), cell(SMALL, 0.5, 1)
    big["config"]["runtime"] = {"actors": 4, "cpus_per_actor": 2.0, "gpus_per_actor": 0.5}
    final = [cell(FEDAVG, 0.5, 0), big, cell(FEDAVG, 0.5, 1), cell(FEDAVG, 0.5, 2), shared]
    tune = [cell(FEDAVG, 0.1, seed) for seed in (100, 101)]
    store.open_sweep("s", "", final)
    store.open_sweep("s/tune", "", tune)
    run(final[0], 5)
    run(final[0], 2, again=True)
    run(big, 3)
    run(final[2], 1, "diverged")
    run(final[3], 9, "running")
    run(shared, 8, sweep="another")
    run(tune[0], 7, sweep="s/tune")
    run(tune[1], 0.5, "failed", "s/tune")
    run(cell(FEDAVG, 0.9, 0), 0.25, sweep="s-smoke")
    run(cell(FEDAVG, 0.7, 0), 4)
    run(lost := cell(FEDAVG, 0.8, 0), 6)
    (found,) = find_runs(store.client, store.experiment, [lost["hash"]])
    store.client.delete_run(found.info.run_id)
    run(cell(FEDAVG, 0.6, 0), 100, sweep="another")
    assert list_answers(collect("s"))["Hours"] == [
        "finished and shown: 3 runs, 13 hours, 34 CPU-hours, 6 GPU-hours",
        "s-smoke: finished: 1 run, 0.25 hours, 0.25 CPU-hours, 0 GPU-hours",
        "s/tune: failed: 1 run, 0.5 hours, 0.5 CPU-hours, 0 GPU-hours",
        "s/tune: finished: 1 run, 7 hours, 7 CPU-hours, 0 GPU-hours",
        "s: deleted: 1 run, 6 hours, 6 CPU-hours, 0 GPU-hours",
        "s: diverged: 1 run, 1 hours, 1 CPU-hours, 0 GPU-hours",
        "s: finished: 1 run, 4 hours, 4 CPU-hours, 0 GPU-hours",
        "s: running: 1 run, 0 hours, 0 CPU-hours, 0 GPU-hours, 1 of them left no time",
        "s: superseded: 1 run, 5 hours, 5 CPU-hours, 0 GPU-hours",
        "all: 11 runs, 36.8 hours, 57.8 CPU-hours, 6 GPU-hours, 1 of them left no time",
    ]


@pytest.mark.parametrize(
    ("tag", "per_round", "expected"),
    [
        ("12.5", None, 12.5),
        ("12.5", 0.1, 12.5),  # 0.1 s x 100 rounds, which is less than from start to end
        ("12.5", 0.3, 30.0),  # 30 s of rounds: 20 of them were made by a call that was killed
        (None, 0.3, 30.0),  # a run of an older version
        (None, None, None),
        ("1e999", None, None),  # of a stranger's archive
        ("nan", 0.3, 30.0),
        ("-5", None, None),
        ("many", None, None),
    ],
)
def test_the_seconds_of_a_run(tag: str | None, per_round: float | None, expected: float | None, store: Tracker) -> None:
    one = cell(FEDAVG, 0.5, 0)
    one["config"]["training"] = {"rounds": 100}
    made = CellRun(CellSpec.from_json(one), {"fedray.untimed": "2"})
    store.open_sweep("s", "", [one])
    store.open_cell(made)
    totals = {} if per_round is None else {"seconds_per_round_with_evaluation": per_round}
    store.close_cell(made, RunRecord(Ending(Status.FINISHED), history(50), totals))
    client, _ = open_store()
    if tag is None:
        client.delete_tag(made.id, "fedray.seconds")
    else:
        client.set_tag(made.id, "fedray.seconds", tag)
    sweep = collect("s")
    (hours,) = measure_hours(sweep, [sweep])["hours"]
    assert 3600 * hours == pytest.approx(np.nan if expected is None else expected, nan_ok=True)
    assert "2 killed calls are not included" in list_answers(sweep)["Hours"][0]


def test_an_environment_that_is_missing_is_a_line(
    store: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(store, [cell(FEDAVG, 0.5, 0)], [60])
    hash = hash_of(collect_environment())
    run = find_environment(store.client, store.experiment, hash)
    assert run is not None
    store.client.delete_run(run.info.run_id)
    assert CliRunner().invoke(app, ["report", "sweep"]).exit_code == 0
    told = f"a machine that is not known: environment {hash}: this store has no run that holds it"
    assert told in (tmp_path / "sweep.html").read_text()


def test_environments_that_differ_are_said_by_report_and_table(store: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two cells was run with another torch: both warn, with both versions. Entries can be of any type."""
    other: dict[str, Any] = {**collect_environment(), "packages": {"torch": "0.1"}, "gpu": {"models": 5}}
    cells = [cell(FEDAVG, 0.5, seed) for seed in (0, 1)]
    write(store, cells, [60])
    monkeypatch.setattr("fedray.tracking.tracker.collect_environment", lambda: other)
    write(Tracker(), cells, [None, 61])
    sweep = collect("sweep")
    torch = collect_environment()["packages"]["torch"]
    hashes = hash_of(collect_environment()), hash_of(other)
    said = f"the cells come from different environments: {hashes[0]} (1 cell), {hashes[1]} (1 cell); they differ in "
    (warning,) = [note for note in build(sweep).notes if note.startswith("WARNING")]
    assert warning.startswith(f"WARNING: {said}")
    page = make_page(sweep, ["last10_test_accuracy"])
    assert f"WARNING: {said}" in page
    assert f'packages.torch</td><td class="mono">{torch}</td>' in page
