"""The environment of a run: what is recorded, how often, and how two are told apart."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run

from fedray.cells.record import CellRun
from fedray.cells.spec import CellSpec
from fedray.cells.status import Ending, Status
from fedray.common.errors import UserError
from fedray.components.identity import hash_of
from fedray.tracking import environment, tracker
from fedray.tracking.environment import (
    collect_environment,
    describe_differences,
    describe_mixture,
    keep_environment,
    list_differences,
    list_hashes,
    read_environment,
)
from fedray.tracking.store import find_runs, open_store, search
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, cell, history, write_run


def test_ray_does_not_change_the_environment() -> None:
    """`run` does not import it, `sweep` does: tables would say that their cells come from different environments."""
    code = "from fedray.tracking.environment import *; print(hash_of(collect_environment()))"
    hashes = {
        subprocess.run([sys.executable, "-c", f"{first}{code}"], capture_output=True, text=True, check=True).stdout
        for first in ("", "import ray, ray.tune; ")
    }
    assert len(hashes) == 1


ONE = {"packages": {"numpy": "2.1.0", "torch": "2.11"}, "cpu": {"flags": ["avx", "avx2", "fma"]}}
OTHER = {"packages": {"numpy": "2.2.0", "torch": "2.11", "wandb": "1.0"}, "cpu": {"flags": ["avx", "sse"]}}


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return Tracker()


def stored(kind: str = "environment") -> list[Run]:
    client, experiment = open_store()
    return list(search(client, experiment, f"tags.`fedray.kind` = '{kind}'"))


def test_what_is_recorded_of_this_process() -> None:
    found = collect_environment()
    assert found["packages"]["torch"] == version("torch")
    assert found["packages"]["pydantic-core"] == version("pydantic_core"), "one spelling of a name"
    assert found["cpu"]["count"] == os.cpu_count()
    assert json.loads(json.dumps(found)) == found, "as a store gives it back"
    text = json.dumps(found)
    assert f'"{os.uname().nodename}"' not in text
    assert str(Path.home()) not in text


def test_gpus_are_those_that_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its documented CSV without a header; an answer of another form, or none, is no GPU."""
    smi = tmp_path / "nvidia-smi"
    smi.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for said, expected in (
        ("580.65.06, NVIDIA H100 80GB HBM3, 81559 MiB\n" * 2, ["NVIDIA H100 80GB HBM3, 81559 MiB"] * 2),
        ("No devices were found\n", None),
    ):
        smi.write_text(f"#!/bin/sh\nprintf '{said}'\n", encoding="utf-8")
        found = environment._describe_gpus()
        assert found == ({} if expected is None else {"driver": "580.65.06", "models": expected})
    smi.write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    assert environment._describe_gpus() == {}


def test_containers_by_the_marks_that_they_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {kind: tmp_path / kind for kind in ("docker", "podman")}
    monkeypatch.setattr(environment, "MARKS", marks)
    assert environment._describe_container({}) == {}
    assert environment._describe_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == {"kind": "kubernetes"}
    assert environment._describe_container({"APPTAINER_CONTAINER": "/home/me/fedray.sif"}) == {
        "kind": "apptainer",
        "image": "fedray.sif",
    }
    marks["podman"].write_text('engine="podman-5.4"\nimage="docker.io/me/fedray:0.2"\n', encoding="utf-8")
    assert environment._describe_container({}) == {"kind": "podman", "image": "docker.io/me/fedray:0.2"}
    marks["podman"].unlink()
    marks["docker"].touch()
    assert environment._describe_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == {"kind": "docker"}


def test_a_store_holds_each_environment_once(store: Tracker) -> None:
    """Two trackers, three cells, one environment; another one is another run. The hash is that of the content."""
    for seed in range(3):
        write_run(store if seed else Tracker(), cell(FEDAVG, 0.5, seed), history(50))
    (one,) = stored()
    here = hash_of(collect_environment())
    assert one.data.tags["fedray.environment"] == here
    assert [list_hashes(run) for run in stored("cell")] == [[here]] * 3
    assert read_environment(store.client, store.experiment, here) == collect_environment()
    assert keep_environment(store.client, store.experiment, ONE) == hash_of(ONE)
    assert len(stored()) == 2


def spoil_deleted(run: str, store: Tracker) -> None:
    store.client.delete_run(run)


def spoil_artefact(run: str, store: Tracker) -> None:
    artefacts = Path(store.client.get_run(run).info.artifact_uri.removeprefix("file://"))
    (artefacts / "environment.json").unlink()


def spoil_content(run: str, store: Tracker) -> None:
    store.client.log_dict(run, OTHER, "environment.json")


def spoil_end(run: str, store: Tracker) -> None:
    store.client.update_run(run, status="RUNNING")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_deleted, "this store has no run that holds it; it may have been deleted in MLflow"),
        (spoil_end, "this store has no run that holds it; it may have been deleted in MLflow"),
        (spoil_artefact, "the artefact environment.json of run [0-9a-f]{32} is missing"),
        (spoil_content, "the artefact environment.json of run [0-9a-f]{32} has been changed"),
    ],
)
def test_one_that_is_missing_is_one_line(spoil: Callable[[str, Tracker], None], message: str, store: Tracker) -> None:
    """A process that was killed before the artefact was there leaves a run that is RUNNING; the next call makes one."""
    hash = keep_environment(store.client, store.experiment, ONE)
    spoil(stored()[0].info.run_id, store)
    with pytest.raises(UserError, match=rf"^environment {hash}: {message}$"):
        read_environment(store.client, store.experiment, hash)
    if spoil in (spoil_deleted, spoil_end):
        keep_environment(store.client, store.experiment, ONE)
        assert read_environment(store.client, store.experiment, hash) == ONE


def test_differences_are_named_by_key() -> None:
    assert list_differences([ONE, ONE]) == {}
    assert list_differences([ONE, OTHER]) == {
        "packages.numpy": ["2.1.0", "2.2.0"],
        "packages.wandb": ["-", "1.0"],
        "cpu.flags": ["avx2, fma", "sse"],
    }
    named = {"a": ONE, "b": OTHER}
    assert describe_differences(named, most=1) == "packages.numpy (2.1.0 | 2.2.0) and 2 more"


def read(hash: str) -> Any:
    if hash == "gone":
        raise UserError("environment gone: it is not here")
    return {"one": ONE, "other": OTHER}[hash]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ([], ""),
        ([["one"], ["one"]], ""),
        ([[], []], ""),
        ([["one"], []], "one (1 cell), not recorded (1 cell)"),
        (
            [["one"], ["one", "other"]],
            "one (2 cells), other (1 cell); they differ in packages.numpy (2.1.0 | 2.2.0), "
            "cpu.flags (avx2, fma | sse), packages.wandb (- | 1.0)",
        ),
        ([["one"], ["gone"]], "one (1 cell), gone (1 cell); environment gone: it is not here"),
    ],
)
def test_cells_of_different_environments(named: list[list[str]], said: str) -> None:
    """A cell that was resumed in another environment counts for both."""
    found = describe_mixture({str(k): hashes for k, hashes in enumerate(named)}, read)
    assert found == (said and f"the cells come from different environments: {said}")


def attempt(cell_: dict[str, Any], status: Status, seconds: float, shown: bool = False) -> None:
    """Call a cell for so long; a RUNNING one is killed."""
    store = Tracker()
    run = CellRun(CellSpec.from_json(cell_), began=0.0, ended=seconds, shown=shown)
    store.open_cell(run)
    if status is not Status.RUNNING:
        store.close_cell(run, environment_record(status))


def environment_record(status: Status) -> Any:
    from fedray.cells.record import RunRecord

    return RunRecord(Ending(status), history(50))


def test_a_resumed_run_adds_up_its_time_and_names_each_environment(
    store: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after 5 s, then killed, then finished in 7 s elsewhere: 12 s, one call without a time, two hashes.

    A call that only shows the finished run changes neither.
    """
    one, here = cell(FEDAVG, 0.5, 0), hash_of(collect_environment())

    def tags() -> list[str | None]:
        (run,) = find_runs(store.client, store.experiment, [one["hash"]])
        names = ("fedray.seconds", "fedray.untimed", "fedray.environment")
        return [run.data.tags.get(name) for name in names]

    attempt(one, Status.INTERRUPTED, 5)
    assert tags() == ["5.000", None, here]
    attempt(one, Status.RUNNING, 100)
    monkeypatch.setattr(tracker, "collect_environment", lambda: OTHER)
    attempt(one, Status.FINISHED, 7)
    expected = ["12.000", "1", f"{here} {hash_of(OTHER)}"]
    assert tags() == expected
    monkeypatch.setattr(tracker, "collect_environment", lambda: ONE)
    attempt(one, Status.FINISHED, 3, shown=True)
    assert tags() == expected
