"""A sweep exported from one store and imported into another is the same sweep."""

import hashlib
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from fedray.analysis.data.collect import collect
from fedray.common.errors import UserError
from fedray.components.identity import hash_of
from fedray.tracking import tracker
from fedray.tracking.archive.merge import import_sweep
from fedray.tracking.archive.pack import export_sweep
from fedray.tracking.environment import find_environment, list_hashes
from fedray.tracking.store import open_store
from fedray.tracking.stored_sweep import read_stored_sweep
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import Outcome, history, rows, write, write_run
from tests.tracking.archive.archived import FEDAVG, SMALL, cell

CELLS = [cell(algorithm, 0.1, seed) for algorithm in (FEDAVG, SMALL) for seed in (0, 1)]


@pytest.fixture
def use(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Work with the store in folder NAME; it is made empty."""

    def chosen(name: str) -> None:
        folder = tmp_path / name
        if not folder.exists():
            folder.mkdir()
            (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")

    return chosen


def run_sweep(missing: int = 1) -> None:
    """Three of four cells have run: two are finished, one has diverged."""
    outcomes: list[Outcome] = [history(60, 70), history(61, 71), ("diverged", 9)]
    write(Tracker(), CELLS, outcomes[: 4 - missing])


def content(name: str = "sweep") -> dict[str, object]:
    """All that a store holds of a sweep but the ids of its runs."""
    sweep = read_stored_sweep(name)
    found: dict[str, object] = {"cells": sweep.cells, "description": sweep.description}
    for hash, run in sweep.runs.items():
        metrics = {
            key: [(one.value, one.timestamp, one.step) for one in sweep.client.get_metric_history(run.info.run_id, key)]
            for key in run.data.metrics
        }
        tags = {key: value for key, value in run.data.tags.items() if key != "mlflow.parentRunId"}
        file = sweep.client.download_artifacts(run.info.run_id, "config.yaml", "")
        found[hash] = (
            run.info.run_name,
            run.info.status,
            run.info.start_time,
            run.info.end_time,
            run.data.params,
            tags,
            metrics,
            Path(file).read_text(),
        )
    return found


def test_an_imported_sweep_is_the_exported_one_and_its_tables_are_the_same(
    use: Callable[[str], None], tmp_path: Path
) -> None:
    """A table is made of what `collect` finds."""

    def table() -> str:
        return str(collect("sweep").cells.drop(columns=["run_id"]).to_csv())

    use("first")
    run_sweep()
    before, printed = content(), table()
    assert export_sweep("sweep", tmp_path / "sweep.zip") == 3
    use("second")
    assert import_sweep(tmp_path / "sweep.zip") == ("sweep", 3, 0)
    assert content() == before
    assert table() == printed
    assert import_sweep(tmp_path / "sweep.zip") == ("sweep", 0, 3)
    assert content() == before
    runs = MlflowClient().search_runs([open_store()[1]])
    assert len(runs) == 5, "three cells, the sweep itself, and the environment of all"


def test_what_is_further_here_stays_and_what_is_not_is_replaced(use: Callable[[str], None], tmp_path: Path) -> None:
    """The archive's first cell has finished and its third has diverged; here the first failed, the third finished."""
    use("first")
    run_sweep()
    export_sweep("sweep", tmp_path / "sweep.zip")
    use("second")
    other = cell(SMALL, 0.5, 0)
    write(Tracker(), [CELLS[0], CELLS[2], other], [("failed", []), 80, 1])
    assert import_sweep(tmp_path / "sweep.zip") == ("sweep", 2, 1)
    sweep = read_stored_sweep("sweep")
    assert {one.hash for one in sweep.cells} == {one["hash"] for one in [*CELLS, other]}
    assert {run.data.tags["fedray.status"] for run in sweep.runs.values()} == {"finished"}
    assert sweep.runs[CELLS[2]["hash"]].data.metrics["summary/final_test_accuracy"] == 80


def test_the_tune_stage_goes_along_and_each_split_is_stored_once(use: Callable[[str], None], tmp_path: Path) -> None:
    """Three runs with two distinct splits. Each run has its own again in the other store, which lists both stages."""
    use("first")
    tracker, splits = Tracker(), [b"one", b"two", b"one"]
    for name, cells in (("sweep/tune", CELLS[:1]), ("sweep", CELLS[1:3])):
        parent = tracker.open_sweep(name, "", cells)
        for one in cells:
            files = {"partition.npz": splits[CELLS.index(one)], "partition.png": splits[CELLS.index(one)]}
            write_run(tracker, one, history(60, 70), parent=parent, files=files)
    assert export_sweep("sweep", tmp_path / "sweep.zip") == 3
    with zipfile.ZipFile(tmp_path / "sweep.zip") as archive:
        found = {name for name in archive.namelist() if not name.endswith((".json", ".yaml"))}
    assert found == {f"splits/{hashlib.sha256(split).hexdigest()}" for split in splits}
    use("second")
    assert import_sweep(tmp_path / "sweep.zip") == ("sweep", 3, 0)
    for name, cells in (("sweep/tune", CELLS[:1]), ("sweep", CELLS[1:3])):
        sweep = read_stored_sweep(name)
        assert [one.hash for one in sweep.cells] == [one["hash"] for one in cells]
        for one in cells:
            file = sweep.client.download_artifacts(sweep.runs[one["hash"]].info.run_id, "partition.npz", "")
            assert Path(file).read_bytes() == splits[CELLS.index(one)]
    assert import_sweep(tmp_path / "sweep.zip") == ("sweep", 0, 3)


def test_the_sweeps_file_goes_along_and_the_stores_own_stays(use: Callable[[str], None], tmp_path: Path) -> None:
    use("first")
    run_sweep()
    Tracker().open_sweep("sweep", "", CELLS, file="name: sweep  # α\n")
    export_sweep("sweep", tmp_path / "sweep.zip")
    use("second")
    import_sweep(tmp_path / "sweep.zip")
    assert read_stored_sweep("sweep").file == "name: sweep  # α\n"
    Tracker().open_sweep("sweep", "", CELLS, file="name: sweep\n")
    import_sweep(tmp_path / "sweep.zip")
    assert read_stored_sweep("sweep").file == "name: sweep\n"


@pytest.mark.parametrize(
    ("names", "content", "message"),
    [
        (["a"], {"b": b""}, "no run names it|there is no such member"),
        (["a"], {}, "there is no such member"),
        (["a"], {"a": b"other"}, "its content has another digest"),
    ],
)
def test_splits_that_do_not_fit(
    names: list[str], content: dict[str, bytes], message: str, use: Callable[[str], None], tmp_path: Path
) -> None:
    use("first")
    write(Tracker(), CELLS[:1], [history(60, 70)])
    export_sweep("sweep", tmp_path / "sweep.zip")
    run = f"runs/{CELLS[0]['hash']}/run.json"
    with zipfile.ZipFile(tmp_path / "sweep.zip") as honest, zipfile.ZipFile(tmp_path / "evil.zip", "w") as evil:
        for name in honest.namelist():
            document = honest.read(name)
            if name == run:
                document = json.dumps(json.loads(document) | {"splits": {"partition.npz": names[0] * 64}}).encode()
            evil.writestr(name, document)
        for letter, split in content.items():
            evil.writestr(f"splits/{letter * 64}", split)
    use("second")
    with pytest.raises(UserError, match=message):
        import_sweep(tmp_path / "evil.zip")


def test_refusals(use: Callable[[str], None], tmp_path: Path) -> None:
    use("first")
    run_sweep()
    with pytest.raises(UserError, match="sweep: unknown name 'swep'; did you mean 'sweep'"):
        export_sweep("swep", tmp_path / "a.zip")
    (tmp_path / "there").touch()
    with pytest.raises(UserError, match=r"there/a.zip: cannot be written: File exists"):
        export_sweep("sweep", tmp_path / "there/a.zip")
    with pytest.raises(UserError, match=r"no.zip: cannot be read as an archive of fedray: No such file or directory"):
        import_sweep(tmp_path / "no.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "there"]


def test_environments_go_along_and_one_that_is_missing_is_refused(
    use: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the first three cells come from another environment, which the other store has afterwards, too."""
    use("first")
    write(Tracker(), CELLS, [60])
    other = {"packages": {"torch": "0.1"}}
    monkeypatch.setattr(tracker, "collect_environment", lambda: other)
    write(Tracker(), CELLS, [None, 70, ("diverged", 9)])
    export_sweep("sweep", tmp_path / "sweep.zip")
    use("second")
    import_sweep(tmp_path / "sweep.zip")
    sweep, hash = read_stored_sweep("sweep"), hash_of(other)
    assert [list_hashes(sweep.runs[one["hash"]]) == [hash] for one in CELLS[:3]] == [False, True, True]
    assert sweep.read_environment(hash) == other
    run = find_environment(sweep.client, sweep.parent.info.experiment_id, hash)
    assert run is not None
    open_store()[0].delete_run(run.info.run_id)
    with pytest.raises(UserError, match=rf"^sweep: environment {hash}: this store has no run that holds it; "):
        export_sweep("sweep", tmp_path / "again.zip")
    assert not (tmp_path / "again.zip").exists()


def test_an_undefined_metric_of_0_2_is_left_out(use: Callable[[str], None], tmp_path: Path) -> None:
    """A row held NaN, which no JSON has."""
    use("here")
    write(Tracker(), CELLS[:1], [rows(test_auc=(math.nan,), other=(1.0,))])
    export_sweep("sweep", tmp_path / "sweep.zip")
    with zipfile.ZipFile(tmp_path / "sweep.zip") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("run.json"))
        metrics = json.loads(archive.read(name), parse_constant=pytest.fail)["metrics"]
    assert "other" in metrics
    assert not [name for name in metrics if "auc" in name]
