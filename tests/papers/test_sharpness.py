"""Sharpness of a real run's checkpoint, found through the store, and FedSOL's toy example."""

import csv
import json
import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from analysis import toy
from fedray.common.errors import UserError
from fedray.common.location import get_storage
from fedray.config import RunConfig
from fedray.engine.problem import Problem
from fedray.engine.result import Result
from fedray.papers.sharpness import TrainedRun, find_runs, main
from fedray.sweep.single import run_problem
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import sheet, write_run

RUN = small.sections(
    clients=(5, 2),
    model={"name": "mlp", "hidden": []},
    training={"rounds": 2, "local_epochs": 1},
    evaluation={"every": 1},
)


@pytest.fixture(autouse=True)
def _storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRAY_STORAGE", str(tmp_path / "storage"))
    monkeypatch.chdir(tmp_path)


def logged(store: Tracker, resolved: Mapping[str, Any], cell: str = "abc") -> str:
    return write_run(store, {"hash": cell, "label": "a run", "config": resolved}, again=False)


def trained(config: RunConfig) -> Result:
    return run_problem(Problem.build(config), "abc", checkpoints=nullcontext(get_storage() / "cells" / "abc"))


def test_eigenvalues_and_plane_of_a_checkpoint(store: Tracker, capsys: pytest.CaptureFixture[str]) -> None:
    """Files: eigenvalues in descending order, their ratio, and a grid whose middle is the loss at the model itself.

    Along unit eigenvectors second differences of the loss are λ1 and λ2 times the squared step, up to fourth order (for
    a linear model; a ReLU's kinks, which have no Hessian, would add to them).
    """
    config = RunConfig.parse(RUN)
    trained(config)
    run = logged(store, config.resolve())
    main(run=[run], plot="eigen", samples=300, points=3, reach=0.1)
    found = json.loads(Path(f"sharpness/{run}.json").read_text())
    values = found["eigenvalues"]
    assert len(values) == 5
    assert values == sorted(values, reverse=True)
    assert found["ratio"] == values[0] / values[4]
    assert (found["label"], found["round"], found["samples"]) == ("a run", 2, 300)
    rows = list(csv.DictReader(Path(f"sharpness/{run}-eigen.csv").read_text().splitlines()))
    grid = np.array([float(row["loss"]) for row in rows]).reshape(3, 3)
    assert [(row["first"], row["second"]) for row in rows[:4]] == [
        ("-0.1", "-0.1"),
        ("-0.1", "0"),
        ("-0.1", "0.1"),
        ("0", "-0.1"),
    ]
    assert grid[1, 1] == pytest.approx(found["loss"], abs=1e-6)
    curvature = (grid[2, 1] - 2 * grid[1, 1] + grid[0, 1]) / 0.01, (grid[1, 2] - 2 * grid[1, 1] + grid[1, 0]) / 0.01
    assert curvature == pytest.approx(values[:2], rel=0.02)
    names = {path.name.removeprefix(run) for path in Path("sharpness").iterdir()}
    assert names == {".json", "-eigen.csv", *(f"eigen{view}.{kind}" for view in ("", "-3d") for kind in ("png", "pdf"))}
    assert f"λ1 {values[0]:.4g}, λ1/λ5 {found['ratio']:.4g}" in capsys.readouterr().out
    again = Path(f"sharpness/{run}.json").read_bytes()
    main(run=[run], plot="random", samples=300, points=3, reach=0.1)
    assert Path(f"sharpness/{run}.json").read_bytes() == again, "the same samples and the same start each time"


def test_the_model_that_was_tested_is_examined(store: Tracker) -> None:
    """FedExP tests the mean of its last two iterates, and its logged loss is of that model."""
    config = RunConfig.parse(RUN | {"algorithm": "fedexp"})
    result = trained(config)
    found = TrainedRun(logged(store, config.resolve()), 10)
    assert found.theta.equal(result.theta)
    assert not found.theta.equal(result.state.theta)


def test_refusals(store: Tracker) -> None:
    config = RunConfig.parse(RUN)
    none = logged(store, config.resolve())
    personal = logged(store, RunConfig.parse(RUN | {"algorithm": "local-only"}).resolve())
    foreign = logged(store, config.resolve() | {"model": {"name": "os:path"}})
    sweep = store.open_sweep(sheet("sweep", []))
    for run, message in (
        (none, "there is no checkpoint of it in"),
        (personal, "has no global model"),
        (foreign, "a plug-in; fedray imports no class that a store names"),
        (sweep, "is a sweep; one of its cells is required"),
        ("0" * 32, "is not in this store"),
    ):
        with pytest.raises(UserError, match=message):
            main(run=[run])
    with pytest.raises(UserError, match="unknown name 'egien'; did you mean 'eigen'"):
        main(run=[none], plot="egien")
    for reach in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UserError, match=r"--reach: found .*; expected a number above 0"):
            main(run=[none], plot="eigen", reach=reach)


def test_runs_are_found_by_sweep_and_label(store: Tracker, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of `--cell`, each once; without it all cells of the sweep, which have to be finished."""
    config = RunConfig.parse(RUN)
    trained(config)
    cells = [{"hash": name, "label": f"{name} seed=0", "config": config.resolve()} for name in ("abc", "none")]
    parent = store.open_sweep(sheet("sweep", cells))
    done = write_run(store, cells[0], parent=parent, again=False)
    assert find_runs("sweep", ["abc*", "1"], []) == [done]
    main("sweep", cell=["abc*"], samples=50)
    assert f"sharpness/{done}.json" in capsys.readouterr().out
    for given, message in (
        (("sweep", [], []), "^sharpness: none seed=0 of sweep has no finished run; --cell names others$"),
        (("sweep", ["x*"], []), "^--cell: 'x\\*' names no cell; give a number from 1 to 2"),
        (("sweep", [], [done]), "^--run: a sweep is given too; --cell names its cells$"),
        ((None, ["abc*"], [done]), "^sharpness: a sweep is required"),
        ((None, [], []), "^sharpness: a sweep is required"),
    ):
        with pytest.raises(UserError, match=message):
            find_runs(*given)


def test_a_folder_that_cannot_be_made_is_found_out_first(store: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the eigenvalues, which take minutes."""
    config = RunConfig.parse(RUN)
    trained(config)
    monkeypatch.setattr(TrainedRun, "find_eigenvalues", lambda trained: pytest.fail("eigenvalues were computed"))
    Path("file").touch()
    with pytest.raises(UserError, match=r"--out: file/.* cannot be written: Not a directory"):
        main(run=[logged(store, config.resolve())], out=Path("file"))


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1, 2]", b"not JSON", b'{"sha256": 1, "manifest": 2}', b"\xff\x00"])
def test_a_checkpoint_that_is_not_whole_is_one_line(store: Tracker, damage: bytes) -> None:
    config = RunConfig.parse(RUN)
    trained(config)
    for manifest in (get_storage() / "cells" / "abc").glob("checkpoint-*.json"):
        manifest.write_bytes(damage)
    run = logged(store, config.resolve())
    with pytest.raises(UserError, match=r"^--run: none of its checkpoints in .* is whole \(rounds 2\)"):
        main(run=[run])
    with pytest.raises(UserError, match=r"^load: none of its checkpoints in .* is whole \(rounds 2\)"):
        fedray.load(run)


def test_another_model_or_data_is_noticed(store: Tracker) -> None:
    """The checkpoint records its test loss; here the test set is normalised differently."""
    config = RunConfig.parse(RUN | {"data": {"name": "digits", "mean": [0.5], "std": [1.0]}})
    trained(RunConfig.parse(RUN))
    with pytest.raises(UserError, match="other data, or another version of the model"):
        main(run=[logged(store, config.resolve())])
    assert not Path("sharpness").exists()


def test_fedsols_toy_example_ends_where_it_should(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Appendix H's equilibria: FedProx turns from the direction of the local minimum, FedSOL keeps it (D-123).

    The server is at 0, the local minimum at 1, curvatures h = (1, 0.1). FedAvg: 1 - w1 = 0.99^4000 = 0, 1 - w2 =
    0.999^4000 = 0.01828. FedProx ends where h (w - 1) + μ w = 0, so at h / (h + μ) = (0.9091, 0.5) for μ = 0.1.
    FedSOL's gradient is 0 where w + ρ u = 1 with u from 0 to w: on the line through both, ρ short of the minimum:
    1 - 0.3536 for ρ = 0.5. The flat direction contracts by 0.999 per step (0.998 with μ), so 4000 steps leave at most
    0.02 of the way.
    """
    avg, prox, sol = (points[-1] for points in toy.paths(0.1, 0.5).values())
    assert all(np.array_equal(points[0], [0, 0]) for points in toy.paths(0.1, 0.5).values())
    assert avg == pytest.approx([1, 1 - 0.999**4000], abs=1e-12)
    assert prox == pytest.approx([10 / 11, 1 / 2], abs=1e-3)
    assert sol == pytest.approx([1 - 0.5 / 2**0.5] * 2, abs=0.02)
    assert [toy.measure_turn(np.array(end)) for end in ((1, 1), (0, 1), (2, 0))] == pytest.approx([0, 45, 45])
    assert toy.measure_turn(prox) == pytest.approx(45 - np.degrees(np.arctan(0.55)), abs=0.1)  # (10/11, 1/2)
    assert toy.measure_turn(sol) < 1
    same = list(toy.paths(0, 0).values())
    assert np.array_equal(same[0], same[1])
    assert np.allclose(same[0], same[2], atol=1e-12)
    toy.main(out=tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".pdf", ".png", ".txt"]
    assert len((tmp_path / "fedsol-figure12.csv").read_text().splitlines()) == 1 + 3 * 4001
    printed = capsys.readouterr().out
    assert "are our choice" in printed
    assert "16.2 degrees from the direction of the local minimum" in printed
