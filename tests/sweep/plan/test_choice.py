"""Sweeps by name, cells by number, hash or label, and what `--set` makes of a file."""

import re
from pathlib import Path
from typing import Any

import pytest

from fedray.common.errors import UserError
from fedray.sweep.document import get_sweeps_folder, list_sweeps, locate_sweep
from fedray.sweep.plan import Problems, make_sheet
from fedray.sweep.single import pick_point
from fedray.sweep.stages import make_tune_stage
from fedray.sweep.sweep import Sweep
from tests import small

BASE = small.sections(clients=(5, 2), model=4, training={"rounds": 2}, runtime={})


def sweep(**changes: Any) -> Sweep:
    grid = {"algorithm": ["fedavg", {"name": "fedsam", "rho": 0.1}], "seed": [0, 1]}
    return Sweep.model_validate({"name": "x", "base": BASE, "grid": grid} | changes)


def test_shipped_sweeps_go_by_name() -> None:
    assert {"quickstart", "fedtoga/table1"} <= set(list_sweeps())
    assert not any(name.startswith("clusters") for name in list_sweeps())
    assert locate_sweep(Path("quickstart")) == get_sweeps_folder() / "quickstart.yaml"
    assert locate_sweep(Path("mine.yaml")) == Path("mine.yaml"), "a path is left alone, whether it exists or not"
    with pytest.raises(UserError, match="did you mean quickstart"):
        locate_sweep(Path("quickstrat"))


def test_a_file_of_ones_own_comes_first_but_a_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").mkdir()
    assert locate_sweep(Path("quickstart")) == get_sweeps_folder() / "quickstart.yaml"
    Path("quickstart").rmdir()
    Path("quickstart").write_text("name: mine\n")
    assert locate_sweep(Path("quickstart")) == Path("quickstart")


def test_cells_by_number_hash_and_label() -> None:
    """What `sweep --only`, `run --cell` and `rm --cell` take."""
    sheet, _ = make_sheet(sweep(), Problems())
    hashes = list(sheet.cells)
    assert sheet.select("3", "--only") == [hashes[2]]
    assert sheet.select(hashes[1][:6], "--only") == [hashes[1]]
    assert sheet.select("fedsam*", "--only") == hashes[2:]
    assert sheet.select("*s1", "--only") == [hashes[1], hashes[3]]
    for wrong in ("0", "5", "moon*", "zz"):
        with pytest.raises(UserError, match=r"^--only: '.*' names no cell; give a number from 1 to 4.*'fedavg\*'"):
            sheet.select(wrong, "--only")


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"partition.sigma": [0, 0.3]}, ["sigma=0", "sigma=0.3"]),
        ({"partition": [{"name": "dirichlet_client", "alpha": 1, "sigma": s} for s in (0, 1)]}, ["sigma=0", "sigma=1"]),
        ({"model": [{"name": "mlp", "hidden": [h]} for h in (4, 8)]}, ["hidden=[4]", "hidden=[8]"]),
        ({"model": [{"name": "mlp", "hidden": [4]}, "simple_cnn"]}, ["model=mlp", "model=simple_cnn"]),
        ({"data": [{"name": "digits"}, {"name": "digits", "channels": 3}]}, ["", "channels=3"]),
    ],
    ids=str,
)
def test_labels_tell_cells_apart_by_every_option_that_varies(grid: dict[str, Any], words: list[str]) -> None:
    """Except for the option that is part of a partition's name, and for options that a section's name implies."""
    base = BASE | {"partition": {"name": "dirichlet_client", "alpha": 1}, "algorithm": "fedavg"}
    found = Sweep.model_validate({"name": "x", "base": base, "grid": grid})
    labels = [cell.label for cell in make_sheet(found, Problems())[0].cells.values()]
    assert labels == [" ".join(f"fedavg dirichlet_client(1) {word} s0".split()) for word in words]


def test_a_label_names_an_option_of_a_nested_section_once() -> None:
    """As `local-muon` in a tuned sweep, beside methods that search its learning rate only."""
    muon = {"algorithm": "local-muon", "training": {"muon": {"lr_factor": 2}}}
    searched = {"algorithm": "local-muon", "search": {"training.muon.lr_factor": {"choice": [3, 4]}}}
    cases = [muon, searched, {"algorithm": "fedavg"}]
    rates = {"search": {"training.lr": {"choice": [0.1, 0.2]}}, "samples": 4, "searcher": "random", "grid": {}}
    held = BASE | {"data": {"name": "digits", "validation": {}}, "partition": "iid"}
    sheet, _ = make_sheet(Sweep.model_validate({"name": "x", "base": held, "cases": cases} | rates), Problems())
    labels = [re.sub(r"\b(lr|lr_factor)=\S+", r"\1=", cell.label) for cell in sheet.cells.values()]
    assert list(dict.fromkeys(labels)) == ["local-muon iid lr= lr_factor= s0", "fedavg iid lr= s0"]
    alone, _ = make_sheet(Sweep.model_validate({"name": "x", "base": held, "cases": cases[::2]} | rates), Problems())
    assert "local-muon iid lr_factor=2 lr=" in next(iter(alone.cells.values())).label


def test_the_configuration_of_one_cell() -> None:
    loaded = sweep()
    hashes = list(make_sheet(loaded, Problems())[0].cells)
    first = {**BASE, "algorithm": "fedavg", "seed": 0}
    last = {**BASE, "algorithm": {"name": "fedsam", "rho": 0.1}, "seed": 1}
    assert pick_point(loaded, "1", Problems())[0] == first
    assert [pick_point(loaded, text, Problems())[0] for text in ("4", hashes[3], "fedsam*s1")] == [last] * 3
    assert list(pick_point(loaded, "1", Problems())[1].cells) == hashes
    with pytest.raises(UserError, match=r"^--cell: '5' names no cell"):
        pick_point(loaded, "5", Problems())
    with pytest.raises(UserError, match=r"^--cell: 'fedsam\*' names 2 cells, such as 'fedsam .* s0'; one is required"):
        pick_point(loaded, "fedsam*", Problems())


def test_cells_of_a_search_are_those_that_a_dry_run_numbers() -> None:
    """With `tune`: of its stage, which holds samples out; a search that learns has no second cell yet."""
    search = {"search": {"training.lr": {"uniform": [0.1, 1]}}, "samples": 2, "grid": {"algorithm": ["fedavg"]}}
    tuned = sweep(**search, tune={"seeds": [7]}, final={"seeds": [1]})
    point, listed = pick_point(tuned, "2", Problems())
    assert list(listed.cells) == list(make_sheet(make_tune_stage(tuned), Problems())[0].cells)
    assert (listed.name, listed.file) == ("x/tune", tuned.to_yaml())
    assert (point["seed"], point["data"]["validation"]["fraction"]) == (7, 0.1)


def test_set_changes_the_base_or_the_file_and_the_name() -> None:
    changed = sweep().with_overrides({"training.rounds": 1, "grid.seed": [7]})
    assert {point["training"]["rounds"] for point, _ in changed.points} == {1}
    assert changed.grid["seed"] == [7]
    assert changed.name == "x-training.rounds-1-grid.seed-7", "its results are not taken for the file's"
    assert sweep().with_overrides({"training.rounds": 1, "name": "mine"}).name == "mine"
    assert sweep().with_overrides({"grid.training.lr": [0.1, 0.2]}).grid["training.lr"] == [0.1, 0.2]


def test_set_reaches_into_every_section() -> None:
    """A key of the base by its long name, one below a section with defaults, and one below a section without."""
    search = {"algorithm.rho": {"uniform": [0, 1]}}
    tuned = sweep(grid={"algorithm": ["fedsam"]}, search=search, tune={"seeds": [0]}, final={"seeds": [1]})
    assert tuned.with_overrides({"searcher.seed": 1}).searcher.seed == 1
    assert tuned.with_overrides({"searcher.name": "sobol", "searcher.seed": 2}).searcher.model_dump() == {
        "name": "sobol",
        "seed": 2,
    }
    validation = tuned.with_overrides({"tune.validation.fraction": 0.3}).tune
    assert validation is not None
    assert validation.model_dump(exclude_unset=True) == {"seeds": (0,), "validation": {"fraction": 0.3}}
    pool = (
        tuned.with_overrides({"tune.validation": {"from": "clients"}})
        .with_overrides({"tune.validation.from": "pool"})
        .tune
    )
    assert pool is not None
    assert pool.model_dump(exclude_unset=True) == {"seeds": (0,), "validation": {"from": "pool"}}
    assert tuned.with_overrides({"base.training.rounds": 3}) == tuned.with_overrides({"training.rounds": 3})
    assert {point["training"]["rounds"] for point, _ in tuned.with_overrides({"training.rounds": 3}).points} == {3}
    assert {point["name"] for point, _ in tuned.with_overrides({"base.name": "x"}).points} == {"x"}  # cells refuse it
