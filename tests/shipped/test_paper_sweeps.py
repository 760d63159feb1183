"""The papers' sweeps: their cells counted against the papers, shared between tables, their smoke versions run."""

import math
from typing import Any

import pytest

import fedray
from fedray.common.errors import Diverged
from fedray.config import RunConfig
from fedray.sweep.file.entries import with_key
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import make_label
from fedray.sweep.plan.draws import find_axes, iter_points
from tests.shipped.papers import CELLS, NO_TABLES, PAPER_FOLDERS, PAPERS, SEARCHES, SEEDS, SWEEPS, TRAININGS, cells


@pytest.mark.parametrize("name", ["fedsol/table2", "fedtoga/table1", "fedgela/table2"])
def test_labels_are_readable_and_tell_cells_apart(name: str) -> None:
    sweep = Sweep.load(SWEEPS / f"{name}.yaml")
    points, varied = list(iter_points(sweep)), [key for key, varies in find_axes(sweep).items() if varies]
    labels = [make_label(point, RunConfig.parse(point), varied) for point in points]
    assert len(set(labels)) == len(labels)
    assert not any("{" in text or len(text) > 160 for text in labels)


def test_every_file_is_counted() -> None:
    found = {str(p.relative_to(SWEEPS).with_suffix("")) for p in SWEEPS.glob("fed*/*.yaml")}
    assert {name for name in found if name.startswith(PAPER_FOLDERS)} - NO_TABLES == set(CELLS)


@pytest.mark.parametrize("name", PAPERS)
def test_cells_are_the_papers(name: str) -> None:
    sweep = Sweep.load(SWEEPS / f"{name}.yaml")
    assert sweep.name == name
    assert len(cells(name)) == CELLS[name]
    assert len(set(cells(name))) == CELLS[name], "two points are the same run"


@pytest.mark.parametrize("paper", TRAININGS)
def test_tables_share_their_runs(paper: str) -> None:
    """The number of different trainings behind a paper's tables, as counted from the paper."""
    tables = [name for name in PAPERS if name.startswith(f"{paper}/table") and name not in SEARCHES]
    assert len(set().union(*(cells(name) for name in tables))) == TRAININGS[paper]


@pytest.mark.parametrize(
    ("name", "of", "shared"),
    [
        ("fedsam/table2", "fedsam/table1", 7),
        ("fedsam/table4", "fedsam/table1", 7),
        ("fedsam/table5", "fedsam/table1", 7),
        ("fedsam/figure3", "fedsam/table1", 7),
        ("fedsam/figure5", "fedsam/table1", 7),
        ("fedsam/figure6", "fedsam/table1", 7),
        ("fedsol/table1", "fedsol/table2", 2),  # FedAvg, FedProx
        ("fedsol/table4", "fedsol/table2", 9),  # FedProx, FedNova, SCAFFOLD x 3 data sets
        ("fedsol/table5", "fedsol/table2", 2),  # rho = 0, head with rho = 2
        ("fedsol/table10", "fedsol/table2", 2),
        ("fedsol/table10", "fedsol/table1", 2),  # A0 and A1; A0 and A5
        ("fedsol/figure4", "fedsol/table2", 2),
        ("fedsol/figure4", "fedsol/table5", 5),  # rho 0, 0.5, 1, 1.5, 2 of the head
        ("fedsol/figure5", "fedsol/table5", 4),
        ("fedgela/table4", "fedgela/table2", 36),
        ("fedgela/table4", "fedgela/table3", 2),  # FedAvg and FedGELA
        ("fedgela/table6", "fedgela/table2", 3),
        ("fedgela/table10", "fedgela/table2", 66),
        ("fedgela/figure4", "fedgela/table2", 6),
        ("fedgela/figure4", "fedgela/table3", 2),
        ("fedgela/figure10", "fedgela/table2", 11),
        ("fedtoga/table3", "fedtoga/table2", 7),
        ("fedtoga/table8", "fedtoga/table2", 36),
        ("fedtoga/table9", "fedtoga/table2", 14),
        ("fedtoga/table7", "fedtoga/table2", 112),
        ("fedtoga/table10", "fedtoga/table1", 4),  # FedSAM with rho 0.01 and FedTOGA x 2 data sets
        ("fedtoga/figure2", "fedtoga/table2", 1),
        ("fedtoga/grid", "fedtoga/table2", 2),  # the printed rho, alpha and beta
        ("fedsam/grid", "fedsam/table2", 2),  # rho 0.5 and beta 0.1 x Dirichlet 0.6, 0.3
        ("fedsol/grid", "fedsol/table2", 4),  # rho 2
        ("fedsol/grid", "fedsol/table5", 4),  # alpha 0.1, rho from 0.5 on
        ("fedgela/grid", "fedgela/table2", 3),  # E_W 1e4
        ("fedgela/grid", "fedgela/figure4", 5),  # beta 0.1
        ("fedsam/printed", "fedsam/table1", 6),  # FedSAM and MoFedSAM x 3 data sets
        ("fedsam/clients", "fedsam/table1", 21),
        ("fedsol/printed", "fedsol/table2", 2),
        ("fedsol/v1_table1", "fedsol/table2", 7 * 14),  # all but FedSoL itself
        ("fedsol/v1_table6", "fedsol/table10", 2),  # A0 and A5
        ("fedtoga/printed", "fedtoga/table2", 4),
        ("fedgela/printed", "fedgela/table2", 12),
    ],
)
def test_shared_runs(name: str, of: str, shared: int) -> None:
    """Each of these once per seed."""
    assert len(set(cells(name)) & set(cells(of))) == shared * SEEDS


def smoke_points(name: str) -> list[dict[str, Any]]:
    points = list(iter_points(Sweep.load(SWEEPS / f"{name}.yaml", smoke=True)))
    return [with_key(point, "runtime.backend", "inline") for point in points]


@pytest.mark.parametrize("name", [*PAPERS, *sorted(NO_TABLES)])
def test_first_smoke_cell(name: str) -> None:
    """Every smoke cell is a valid run on the CPU; the first one is made."""
    points = smoke_points(name)
    assert len(set(cells(name, smoke=True))) == len(points), "two points are the same run"
    assert {RunConfig.parse(point).runtime.torch_device for point in points} == {"cpu"}
    assert math.isfinite(fedray.simulate(points[0]).history[-1]["test_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAPERS, *sorted(NO_TABLES)])
def test_all_smoke_cells(name: str) -> None:
    """All of them, one after the other; with a radius or lr out of range one may diverge, which must be reported."""
    finished = 0
    for point in smoke_points(name):
        try:
            finished += math.isfinite(fedray.simulate(point).history[-1]["test_loss"])
        except Diverged as error:
            print(f"{name}: {point['algorithm']}: {error}")
    assert finished > 0.8 * len(smoke_points(name))
