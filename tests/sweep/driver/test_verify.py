"""Finished cells run again: the same, different, or not comparable."""

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedray
from fedray.cli.main import app
from fedray.common.errors import UserError
from fedray.components.identity import hash_of
from fedray.components.plugins import find_source_digest
from fedray.config import RunConfig
from fedray.sweep.driver.verify import _judge, describe_environments, verify
from fedray.sweep.plan.agreement import refuse_disagreement
from fedray.tracking import store
from fedray.tracking.archive.merge import import_sweep
from fedray.tracking.archive.pack import export_sweep
from fedray.tracking.environment import PREFIX, TAG, collect_environment, keep_environment
from fedray.tracking.store import find_runs, open_store
from fedray.tracking.stored_sweep import read_stored_sweep
from fedray.tracking.tracker import Tracker
from tests import small

RUN = small.sections("scaffold", (5, 2), 4, training={"rounds": 2, "local_epochs": 1})


@pytest.fixture
def cells(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A store with a sweep of three finished cells; their hashes."""
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    configs = [RunConfig.parse(RUN | {"seed": seed}) for seed in range(3)]
    digest = configs[0].data.load().digest
    for config in configs:
        fedray.simulate(config, track=f"s{config.seed}")
    made = [small.list_cell(config, digest) for config in configs]
    Tracker().open_sweep("three", "", made)
    return [str(cell["hash"]) for cell in made]


def tag(cell: str, key: str, value: str) -> None:
    client, experiment = open_store()
    (run,) = find_runs(client, experiment, [cell])
    client.set_tag(run.info.run_id, key, value)


def test_a_sample_is_spread_over_the_sweep_and_each_cell_gets_its_verdict(cells: list[str]) -> None:
    """Two of three cells: the first and the one at 1 x 3 // 2 = 1."""
    assert [str(verdict) for verdict in verify("three", 2)] == ["same           s0", "same           s1"]
    tag(cells[1], "fedray.state_sha256", "0" * 64)
    first, second, third = verify("three", 10)
    assert (first.word, second.word, third.word) == ("same", "different", "same")
    assert second.reason == "state_sha256"


Change = Callable[[dict[str, list[list[float]]]], object]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m["test_accuracy"][1].__setitem__(0, 99.0), r"test_accuracy of round 2 is [\d.]+, was 99"),
        (lambda m: m["train_loss"].pop(0), r"train_loss of round 1 is [\d.]+, was missing"),
        (lambda m: m.update(test_f1=[[1.0, 7, 2]]), r"test_f1 of round 2 is missing, was 1"),
        (lambda m: m["test_loss"].append([0.0, 7, 1]), r"test_loss of round 1 is ([\d.]+), was (0 and \1|\1 and 0)"),
        (lambda m: m["test_loss"].append([0.0, 7, 3]), r"test_loss of round 3 is missing, was 0"),
        (
            lambda m: m["summary/last10_test_accuracy"][0].__setitem__(0, 99.0),
            r"last10_test_accuracy is [\d.]+, was 99",
        ),
        (
            lambda m: m.update({"summary/last10_mine": [[5.0, 7, 2]]}),
            r"last10_mine is missing, was 5",
        ),
        (
            lambda m: [m["test_accuracy"][k].__setitem__(0, 99.0) for k in (0, 1)]
            + [m["test_loss"][k].__setitem__(0, 0.0) for k in (0, 1)],
            r"test_accuracy of round 1 is .*, test_loss of round 1 is .*, test_accuracy of round 2 is .* and 1 more",
        ),
    ],
    ids=range(8),
)  # fmt: skip
def test_metrics_that_were_changed_while_the_hashes_were_kept(
    change: Change, reason: str, cells: list[str], tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an archive, which another store imports. The cells are fine as far as their hashes go."""
    export_sweep("three", tmp_path / "three.zip")
    with zipfile.ZipFile(tmp_path / "three.zip") as honest, zipfile.ZipFile(tmp_path / "evil.zip", "w") as evil:
        for name in honest.namelist():
            document = honest.read(name)
            if name == f"runs/{cells[0]}/run.json":
                run = json.loads(document)
                change(run["metrics"])
                document = json.dumps(run).encode()
            evil.writestr(name, document)
    (tmp_path / "other.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    assert import_sweep(tmp_path / "evil.zip", refuse_disagreement) == ("three", 3, 0)
    (verdict,) = verify("three", 1)
    assert verdict.word == "different"
    assert re.fullmatch(reason, verdict.reason)


def test_a_cpu_of_the_same_name_may_have_other_instructions(cells: list[str]) -> None:
    """The tag `cpu` is equal, and so says nothing; the kernels that PyTorch chose are in the environment."""
    client, experiment = open_store()
    here = collect_environment()
    name = keep_environment(client, experiment, {**here, "torch": {**here["torch"], "cpu_capability": "AVX10"}})
    for cell in cells:
        tag(cell, TAG, name)
    (verdict,) = verify("three", 1)
    assert verdict.word == "agrees"
    assert verdict.reason.startswith("bits may differ (PyTorch's kernels were for AVX10, here they are for ")


def test_on_another_cpu_accuracies_agree_within_the_spread_of_the_seeds(cells: list[str]) -> None:
    """Exit code 0 then. A value beyond the spread, or a sweep of one seed, is no evidence."""
    for cell in cells:
        tag(cell, f"{PREFIX}cpu", "Z80")
    result = CliRunner().invoke(app, ["verify", "three", "--cells", "1"])
    assert result.exit_code == 0
    assert re.fullmatch(
        r"agrees         s0: bits may differ \(cpu was Z80, here it is .*\); "
        r"last10_test_accuracy is ([\d.]+), was \1, 3 seeds spread over ([\d.]+); "
        r"last10_test_balanced_accuracy is ([\d.]+), was \3, 3 seeds spread over [\d.]+\n",
        result.stdout,
    )
    client, experiment = open_store()
    honest = [store.read_metrics(one)["last10_test_accuracy"] for one in find_runs(client, experiment, cells)]
    spread = max(honest) - min(honest)
    assert f"spread over {spread:.2f}; last10_test_balanced" in result.stdout
    for changed in (cells[:1], cells[1:]):  # one seed, then all of them by the same
        for run in find_runs(client, experiment, changed):
            value = store.read_metrics(run)["last10_test_accuracy"]
            client.log_metric(run.info.run_id, "summary/last10_test_accuracy", value + 60, step=9)
        (verdict,) = verify("three", 1)
        assert verdict.word == "different"
        assert f"was {honest[0] + 60:.2f}, 3 seeds spread over {spread:.2f}" in verdict.reason
    listed_alone(RUN)
    (verdict,) = verify("foreign", 1)
    assert verdict.word == "not comparable"
    assert verdict.reason.endswith(", and a single seed has no spread")


def test_environments_other_than_this_one_are_named_first(cells: list[str]) -> None:
    """One of three cells comes from another NumPy; the bits are the same all the same. One that is lost is one line."""
    here = collect_environment()
    other = {**here, "packages": {**here["packages"], "numpy": "0.1"}}
    client, experiment = open_store()
    hash = keep_environment(client, experiment, other)
    assert list(describe_environments("three")) == []
    tag(cells[0], TAG, hash)
    result = CliRunner().invoke(app, ["verify", "three", "--cells", "1"])
    line, verdict = result.stdout.splitlines()
    assert line.startswith(f"three: 1 of 3 cells come from environment {hash}, not from {hash_of(here)}: ")
    assert line.endswith(f": packages.numpy (0.1 | {here['packages']['numpy']})")
    assert verdict == "same           s0"
    tag(cells[0], TAG, 16 * "0")
    with pytest.raises(UserError, match=rf"^three: environment {16 * '0'}: this store has no run that holds it"):
        list(describe_environments("three"))


def test_a_cell_whose_settings_mean_something_else_now_is_not_comparable(
    cells: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedray.config.run.NUMERICS", 99)
    (verdict,) = verify("three", 1)
    assert str(verdict) == "not comparable s0: other settings, data or sources: numerics"


def test_a_cell_that_was_listed_before_its_gpus_were_measured(
    cells: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of the sweep that finds everything finished lists it with `auto`. Without a GPU it cannot be compared."""
    run = RunConfig.parse(RUN | {"runtime": {"gpus_per_actor": "auto"}})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    digest = run.data.load().digest
    listed = small.list_cell(run, digest)
    Tracker().open_sweep("gpu", "", [listed])
    sweep = read_stored_sweep("gpu")
    sweep.runs[listed["hash"]] = read_stored_sweep("three").runs[cells[0]]
    verdict = _judge(sweep, sweep.cells[0], sweep.cells)
    assert verdict.word == "not comparable"
    assert verdict.reason.startswith("runtime.")


def test_a_sweep_without_finished_cells_is_refused(cells: list[str]) -> None:
    for cell in cells:
        tag(cell, "fedray.status", "failed")
    with pytest.raises(UserError, match="three: has no finished cell to verify"):
        list(verify("three", 1))


PLUGIN = """
open("owned", "w").close()
from fedray.algorithms.fedavg import FedAvg
class Mine(FedAvg):
    pass
"""


def listed_alone(config: dict[str, Any]) -> None:
    """Make a sweep of the store's first cell, with this configuration."""
    cell = next(iter(read_stored_sweep("three").runs))
    Tracker().open_sweep("foreign", "", [{"hash": cell, "label": "s0", "config": config}])


@pytest.mark.parametrize(
    "named",
    [
        {"algorithm": "mine:Mine"},
        {"algorithm": {"name": "mine:Mine"}},
        {"partition": {"name": "mine:Mine"}},
        {"model": {"name": "mine:Mine"}},
        {"data": {"name": "mine:Mine"}},
        {"evaluation": {"probes": ["mine:Mine"]}},
        {"evaluation": {"probes": [{"name": "mine:Mine"}]}},
    ],
    ids=str,
)
def test_a_module_that_a_cell_names_is_not_imported(
    named: dict[str, Any], cells: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a file of that name in the working directory: an archive's sweep can name any file there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PLUGIN)
    listed_alone(RUN | named)
    (verdict,) = verify("foreign", 1, trust=["others"])
    assert verdict.word == "not trusted"
    digest = hashlib.sha256(PLUGIN.encode()).hexdigest()[:16]
    assert verdict.reason == (
        f"the source of 'mine:Mine' has the digest {digest} here, the cell's is None; "
        "if you know the module, give --trust 'mine'"
    )
    assert not (tmp_path / "owned").exists()
    assert "mine" not in sys.modules


def test_a_trusted_module_is_imported(
    cells: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command. The cell's hash is that of SCAFFOLD, so what the module holds is not what was run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "trusted_mine.py").write_text(PLUGIN)
    listed_alone(RUN | {"algorithm": "trusted_mine:Mine"})
    result = CliRunner().invoke(app, ["verify", "foreign", "--trust", "trusted_mine"])
    assert (result.exit_code, result.stdout) == (
        1,
        "not comparable s0: other settings, data or sources: "
        "algorithm, clients, data, model, numerics, partition, sources, training\n",
    )
    assert (tmp_path / "owned").exists()


def test_a_module_with_the_source_that_the_cell_was_run_with_is_imported(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not after a change to its source or its helper, nor if it is in a package, which would be executed, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    (tmp_path / "known_mine.py").write_text(f"import known_helper\n{PLUGIN}")
    (tmp_path / "known_helper.py").write_text("K = 1\n")
    run = RunConfig.parse(RUN | {"algorithm": "known_mine:Mine"})
    digest = run.data.load().digest
    fedray.simulate(run, track="s0")
    cell = small.list_cell(run, digest)
    Tracker().open_sweep("own", "", [cell])
    assert cell["identity"]["sources"] == {"known_mine:Mine": find_source_digest("known_mine")}
    assert [str(verdict) for verdict in verify("own", 1)] == ["same           s0"]
    for name in ("known_helper", "known_mine"):
        (tmp_path / f"{name}.py").write_text((tmp_path / f"{name}.py").read_text() + "# changed\n")
        (verdict,) = verify("own", 1)
        assert verdict.word == "not trusted"
        assert f"here, the cell's is {cell['identity']['sources']['known_mine:Mine'][:16]};" in verdict.reason
        (tmp_path / "known_helper.py").write_text("K = 1\n")
    assert find_source_digest("tests.plugins") is None
    assert find_source_digest("sys") is None
    assert find_source_digest("no_such_module") is None
