"""Options of several methods that mean the same, along one axis."""

from pathlib import Path

import pytest

from fedray.analysis.commands.figures import main
from fedray.analysis.data.collect import collect
from fedray.analysis.plots.sensitivity import draw_sensitivity
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, cell, write

SAME = "mofedsam.beta,fedcm.alpha,1-mimelite.beta"
CELLS = [
    FEDAVG,
    *({"name": "mofedsam", "beta": beta, "rho": 0.5} for beta in (0.1, 0.2)),
    *({"name": "mofedsam", "beta": 0.1, "rho": rho} for rho in (0.6, 0.7)),
    *({"name": "fedcm", "alpha": alpha} for alpha in (0.1, 0.2)),
    *({"name": "mimelite", "beta": beta} for beta in (0.9, 0.8)),
]


def write_cells(store: Tracker) -> None:
    """MimeLite's learning rate follows from its β, as in FedSAM's sweeps."""
    cells = [cell(one, 0.5, 0) for one in CELLS]
    for one in cells:
        beta = one["config"]["algorithm"].get("beta") if "mimelite" in one["hash"] else 0.0
        one["config"]["training"] = {"lr": round(0.1 * (1 - beta), 3)}
    write(store, cells, [50.0 + k for k in range(len(cells))])


def test_methods_share_an_axis(store: Tracker, tmp_path: Path) -> None:
    """β = 0.1 and 0.2 of MoFedSAM, FedCM's α and MimeLite's 1 - β in one panel, and nothing else."""
    write_cells(store)
    ((_, figure),) = draw_sensitivity(collect("sweep"), SAME).items()
    (area,) = figure.axes
    assert area.get_xlabel() == "β (mofedsam), α (fedcm), 1 - β (mimelite)"
    named = [line for line in area.lines if not str(line.get_label()).startswith("_")]
    drawn = {line.get_label(): [*map(tuple, line.get_xydata())] for line in named}
    assert drawn == {
        "mofedsam ρ=0.5": [(0.1, 51), (0.2, 52)],
        "fedcm": [(0.1, 55), (0.2, 56)],
        "mimelite": [(0.1, 57), (0.2, 58)],
    }
    main("sweep", "sensitivity", SAME, out=tmp_path / "drawn")
    assert {path.suffix for path in (tmp_path / "drawn").iterdir()} == {".png", ".pdf"}


def test_flat_lines_are_methods_without_numbers_of_their_own(store: Tracker) -> None:
    """By MoFedSAM's β FedAvg is a flat line; FedCM's two values of α are none."""
    write_cells(store)
    for figure in draw_sensitivity(collect("sweep"), "algorithm.beta").values():
        for area in figure.axes:
            named = [line for line in area.lines if not str(line.get_label()).startswith("_")]
            flat = {line.get_label() for line in named if line.get_marker() == ""}
            assert flat <= {"fedavg"}
            assert {line.get_label() for line in named} - flat == {"mofedsam ρ=0.5"}


def test_unknown_options_are_refused(store: Tracker) -> None:
    write_cells(store)
    for x, message in (
        ("mofedsam.bta", "--x: unknown name 'mofedsam.bta'; did you mean 'mofedsam.beta'"),
        ("fedavg.beta", "--x: unknown name 'fedavg.beta'"),
        ("mofedsam.beta,", "--x: unknown name ''"),
    ):
        with pytest.raises(UserError) as error:
            main("sweep", "sensitivity", x)
        assert str(error.value).startswith(message)
