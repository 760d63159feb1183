"""Stores and archives of fedray 0.2 are still read: each of their configurations holds `runtime.cuda_graph`."""

import contextlib
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedray
from fedray.cli.main import main
from fedray.components.identity import hash_of
from fedray.config import RunConfig
from fedray.sweep.plan.agreement import refuse_disagreement
from fedray.tracking.store import find_runs, find_sweeps, open_store, read_artefact, read_cells
from tests import small
from tests.conftest import Call
from tests.sweep.running import REPOSITORY, write

ARCHIVES = sorted((REPOSITORY / "results").rglob("*.zip"))
SWEEP: dict[str, Any] = {
    "name": "old",
    "base": small.sections(model=4, training={"rounds": 2, "local_epochs": 1}, runtime={}),
    "grid": {"seed": [0, 1]},
}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_every_cell_of_the_archives_agrees_with_its_identity(archive: Path) -> None:
    with zipfile.ZipFile(archive) as members:
        sweep = json.loads(members.read("sweep.json"))
    cells = [cell for stage in (sweep, sweep.get("tune") or {"cells": []}) for cell in stage["cells"]]
    for cell in cells:
        refuse_disagreement(cell["config"], cell["identity"])
    assert len(cells) >= 6


def test_an_archive_is_imported_shown_and_exported(
    call: Call, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest: six cells (docs/reproduction.md)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    name, archive = "fedsol/mnist_causes", REPOSITORY / "results/mnist_causes.zip"
    assert call("import", str(archive)).out == f"{name}: 6 cells added, 0 already present\n"
    assert call("import", str(archive)).out == f"{name}: 0 cells added, 6 already present\n"
    assert re.search(rf"{name} .* 6 finished\n", call("status").out)
    assert "fedsol" in call("tables", name).out
    assert call("export", name, "again.zip").out == f"{name}: 6 cells in again.zip\n"
    assert call("import", "again.zip").out == f"{name}: 0 cells added, 6 already present\n"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """The folder of a sweep of two finished cells, stored as 0.2 did it: with `cuda_graph: false` in each runtime."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
    write(folder, SWEEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for number in ("1", "2"):
            patch.setattr("sys.argv", ["fedray", "run", "sweep.yaml", "--cell", number])
            with pytest.raises(SystemExit, match="0"):
                main()
        client, experiment = open_store()
        parent = find_sweeps(client, experiment)["old"]
        cells = [cell.to_json() for cell in read_cells(client, parent)]
        for cell in cells:
            cell["config"]["runtime"]["cuda_graph"] = False
            (run,) = find_runs(client, experiment, [cell["hash"]])
            client.log_text(run.info.run_id, yaml.safe_dump(cell["config"]), "config.yaml")
        client.log_dict(parent.info.run_id, {"cells": cells}, "cells.json")
    return folder


@pytest.fixture
def there(old: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(old)
    for name in ("MLFLOW_TRACKING_URI", "FEDRAY_STORAGE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return old


def _read_list() -> bytes:
    client, experiment = open_store()
    return read_artefact(client, find_sweeps(client, experiment)["old"].info.run_id, "cells.json") or b""


def test_finished_cells_are_found_run_again_and_loaded(there: Path, call: Call) -> None:
    """No cell is computed again for its new form, and the store's list of cells stays as 0.2 wrote it."""
    before = _read_list()
    assert before.count(b'"cuda_graph": false') == 2
    assert "old: 2 cells, 2 finished, 0 diverged, 0 to run\n" in call("sweep", "sweep.yaml").out
    assert _read_list() == before
    assert "same           fedavg iid s1\n" in call("verify", "old", "--cells", "2").out
    shown = json.loads(call("run", "sweep.yaml", "--cell", "2", "--json").out.splitlines()[-1])
    loaded = fedray.load(shown["run_id"])
    assert loaded.summary()["theta_sha256"] == shown["theta_sha256"]


@contextlib.contextmanager
def _recorded(config: dict[str, Any], identity: dict[str, Any]) -> Iterator[None]:
    """Let the store hold the second cell as 0.2 recorded it, for the duration of a block."""
    client, experiment = open_store()
    parent = find_sweeps(client, experiment)["old"]
    first, second = json.loads(_read_list())["cells"]
    recorded = second | {"hash": hash_of(identity), "identity": identity, "config": config}
    (stored,) = find_runs(client, experiment, [second["hash"]])
    client.log_dict(parent.info.run_id, {"cells": [first, recorded]}, "cells.json")
    client.set_tag(stored.info.run_id, "fedray.cell", recorded["hash"])
    try:
        yield
    finally:
        client.log_dict(parent.info.run_id, {"cells": [first, second]}, "cells.json")
        client.set_tag(stored.info.run_id, "fedray.cell", second["hash"])


def test_a_cell_that_was_recorded_as_cuda_graphs_is_read_and_not_compared(there: Path, call: Call) -> None:
    """`cuda_graph: true` was part of the identity of a cell on a GPU, so no cell of 0.3 has its hash."""
    _, second = json.loads(_read_list())["cells"]
    run = RunConfig.parse(SWEEP["base"] | {"seed": 1, "runtime": {"gpus_per_actor": 1}})
    identity = run.make_identity(second["identity"]["data"]["digest"])
    identity["runtime"]["cuda_graph"] = True
    config = run.resolve()
    config["runtime"]["cuda_graph"] = True
    refuse_disagreement(config, identity)
    with _recorded(config, identity):
        assert "2 finished" in call("status").out
        assert "over 2 seeds" in call("tables", "old").out
        found = call("verify", "old", "--cells", "2").out
        assert "not comparable fedavg iid s1: other settings, data or sources: runtime\n" in found


def test_a_cell_of_an_option_that_has_moved_keeps_its_label_and_is_a_cell_of_its_own(there: Path, call: Call) -> None:
    """`{name: scaffold, divisor: effective}` of 0.2 is `scaffold@forms` now; the stored run counts for the former."""
    _, second = json.loads(_read_list())["cells"]
    run = RunConfig.parse(SWEEP["base"] | {"seed": 1, "algorithm": {"name": "scaffold@forms", "divisor": "effective"}})
    config, identity = run.resolve(), run.make_identity(second["identity"]["data"]["digest"])
    config["algorithm"]["name"] = identity["algorithm"]["name"] = "scaffold"
    refuse_disagreement(config, identity)
    assert hash_of(identity) != run.hash_cell(second["identity"]["data"]["digest"])
    with _recorded(config, identity):
        assert "2 finished" in call("status").out
        assert "| scaffold " in call("tables", "old").out
        assert call("report", "old", "--out", "report.html").code == 0
        found = call("verify", "old", "--cells", "2").out
        assert "not comparable fedavg iid s1: other settings, data or sources: algorithm\n" in found
