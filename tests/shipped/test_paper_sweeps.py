"""The papers' sweeps: their cells counted against the papers and shared between tables, settings that a paper prints
and those that a D-number changes; their smoke versions run. In one file, so that one process expands each sweep once.
"""

import math
from typing import Any

import pytest

import fedray
from fedray.common.errors import Diverged
from fedray.models import make_model_spec
from fedray.models.network import Network
from fedray.sweep.points import with_key
from fedray.sweep.sweep import Sweep
from tests.shipped.papers import (
    CELLS,
    NO_TABLES,
    PAPER_FOLDERS,
    PAPERS,
    SEARCHES,
    SWEEPS,
    TRAININGS,
    cells,
    points,
    runs,
)


def test_every_file_is_counted() -> None:
    found = {str(p.relative_to(SWEEPS).with_suffix("")) for p in SWEEPS.glob("fed*/*.yaml")}
    assert {name for name in found if name.startswith(PAPER_FOLDERS)} - NO_TABLES == set(CELLS)


@pytest.mark.parametrize("name", PAPERS)
def test_cells_are_the_papers(name: str) -> None:
    assert Sweep.load(SWEEPS / f"{name}.yaml").name == name
    assert len(cells(name)) == CELLS[name]
    assert len(set(cells(name))) == CELLS[name], "two points are the same run"


@pytest.mark.parametrize("paper", TRAININGS)
def test_tables_share_their_runs(paper: str) -> None:
    """The number of different trainings behind a paper's tables, as counted from the paper."""
    tables = [name for name in PAPERS if name.startswith(f"{paper}/table") and name not in SEARCHES]
    assert len(set().union(*(cells(name) for name in tables))) == TRAININGS[paper]


def smoke_points(name: str) -> list[dict[str, Any]]:
    return [with_key(point, "runtime.backend", "inline") for point in points(name, smoke=True)]


@pytest.mark.parametrize("name", [*PAPERS, *sorted(NO_TABLES)])
def test_smoke_cells(name: str) -> None:
    """Every one is a valid run on the CPU."""
    assert len(set(cells(name, smoke=True))) == len(points(name, smoke=True)), "two points are the same run"
    assert {run.runtime.torch_device for run in runs(name, smoke=True)} == {"cpu"}


@pytest.mark.parametrize("paper", PAPER_FOLDERS)
def test_a_smoke_cell_of_each_table(paper: str) -> None:
    """Two rounds of the first of each; `make test-slow` makes all, of figures and searches, too, to their ends."""
    for name in [name for name in PAPERS if name.startswith(f"{paper}table") and name not in SEARCHES]:
        point = with_key(smoke_points(name)[0], "training.rounds", 2)
        assert math.isfinite(fedray.simulate(point).history[-1]["test_loss"]), name


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


FEDTOGA_EXCEPTIONS = {"fedsmoo", "fedlesam", "fedlesam-s", "fedlesam-d"}


@pytest.mark.parametrize("name", [name for name in PAPERS if name.startswith("fedtoga/table") and name not in SEARCHES])
def test_fedtoga_learning_rates_decay_as_printed(name: str) -> None:
    """D-108: LeNet 0.997, ResNet-18 0.998, there 0.9995 for FedSMOO and FedLESAM's family; 0.9995 for 200 clients."""
    for run in runs(name):
        by_model = {"lenet": 0.997, "resnet18": 0.998}[run.model.name]
        exception = run.model.name == "resnet18" and run.algorithm.name in FEDTOGA_EXCEPTIONS
        assert run.training.lr_decay == (0.9995 if exception or run.clients.total == 200 else by_model)


def test_fixed_radii_of_the_propositions_are_those_of_appendix_g() -> None:
    """A fixed ρ corresponds to an adaptive ρ √P times as large: 0.5 to 2 on the head, 2 on the whole model."""
    spec = make_model_spec("mcmahan_cnn")
    layout = Network(spec.build((3, 32, 32), 10)).layout
    parameters = {"head": int(layout.part("head").sum()), "all": len(layout.part("head"))}
    assert parameters == {"head": 5130, "all": 2156490}
    adaptive: dict[str, list[float]] = {"head": [], "all": []}
    for run in runs("fedsol/propositions"):
        if getattr(run.algorithm, "radius", "") == "fixed" and run.seed == 0:
            of = run.algorithm.perturb
            adaptive[of].append(round(run.algorithm.rho * parameters[of] ** 0.5, 3))
    assert adaptive == {"head": [0.5, 1, 1.5, 2], "all": [2]}
