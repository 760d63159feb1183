"""Heat maps of classes: their accuracy by round, and clients' samples of them."""

import re
from pathlib import Path

import pytest

from fedray.analysis.data.collect import collect
from fedray.analysis.figures import main
from fedray.analysis.plots.clients import draw_classes, draw_partitions
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, cell, rows, write


def test_classes_by_round(store: Tracker) -> None:
    """Classes down in their own order, rounds across; the mean of two seeds."""
    cells = [cell(FEDAVG, 0.5, 0), cell(FEDAVG, 0.5, 1)]
    seeds = [
        rows(accuracy_class_10=(1, 2), accuracy_class_2=(3, 4)),
        rows(accuracy_class_10=(3, 4), accuracy_class_2=(5, 6)),
    ]
    write(store, cells, seeds)
    ((name, figure),) = draw_classes(collect("sweep")).items()
    assert name == "fedavg dirichlet α=0.5"
    assert figure.axes[0].collections[0].get_array().tolist() == [[4, 5], [2, 3]]


def test_partitions_need_no_runs(store: Tracker) -> None:
    """One picture per setting: each column is a client, all of them together the 1,437 samples."""
    cells = [cell(FEDAVG, alpha, seed) for alpha in (0.5, 100) for seed in (0, 1)]
    for one in cells:
        one["config"] |= {"data": {"name": "digits"}, "clients": {"total": 5}}
    write(store, cells, [])
    figures, _ = draw_partitions(collect("sweep"))
    assert list(figures) == ["digits dirichlet α=0.5", "digits dirichlet α=100"]
    counts = [figure.axes[0].images[0].get_array() for figure in figures.values()]
    assert [(one.shape, int(one.sum())) for one in counts] == [((10, 5), 1437)] * 2
    assert counts[0].std() > 2 * counts[1].std()


@pytest.mark.parametrize("with_store", [True, False])
def test_partitions_of_a_file_that_has_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, with_store: bool
) -> None:
    """With a store that knows other sweeps, and without any; a name that is neither a sweep nor a file is refused."""
    if with_store:
        write(request.getfixturevalue("store"), [cell(FEDAVG, 0.5, 0)], [70])
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(
        """name: own
base: {data: digits, clients: {total: 5, per_round: 2}, model: mlp, algorithm: fedavg}
grid: {partition: [{name: dirichlet, alpha: 0.1}, {name: pathological, classes: 2}]}
""",
        encoding="utf-8",
    )
    main("own.yaml", "partition", out=Path("drawn"))
    assert sorted(path.name for path in Path("drawn").glob("*.png")) == [
        "own-partition-digits-dirichlet-alpha=0.1.png",
        "own-partition-digits-pathological-classes=2.png",
    ]
    assert Path("mlflow.db").exists() == with_store
    with pytest.raises(UserError, match=r"there is no store at|sweep: unknown name .own"):
        main("own", "partition")


def test_partitions_without_data_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of digits are drawn although CIFAR-10 is not here; if nothing can be drawn, the command is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path / "data"))
    file = """name: own
base: {clients: {total: 5, per_round: 2}, model: mlp, algorithm: fedavg, partition: {name: dirichlet, alpha: 0.1}}
grid: {data: [DATA]}
"""
    Path("own.yaml").write_text(file.replace("DATA", "cifar10, digits"), encoding="utf-8")
    main("own.yaml", "partition", out=Path("drawn"))
    assert [path.name for path in Path("drawn").glob("*.png")] == ["own-partition.png"]
    assert re.search(r"^not drawn, .*cifar.*: cifar10 dirichlet α=0.1$", capsys.readouterr().out, re.M)
    Path("own.yaml").write_text(file.replace("DATA", "cifar10, svhn"), encoding="utf-8")
    with pytest.raises(UserError, match=r"cifar.*; .*svhn"):
        main("own.yaml", "partition", out=Path("none"))
    assert not Path("none").exists()
