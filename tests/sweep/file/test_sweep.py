"""Sweep files as objects: axes, draws, files that extend others, keys that `--set` changes, and cells by name."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedray.algorithms.fedavg import FedAvg
from fedray.cells.cell import get_dotted
from fedray.cells.sheet import select_labels
from fedray.common.errors import UserError
from fedray.sweep.document import get_sweeps_folder, list_sweeps, load_document, locate_sweep
from fedray.sweep.draws import find_axes, iter_points
from fedray.sweep.plan import Problems, make_sheet
from fedray.sweep.run import describe_partial
from fedray.sweep.single import pick_point
from fedray.sweep.stages import make_tune_stage
from fedray.sweep.sweep import Sweep
from tests import small
from tests.conftest import each
from tests.sweep.running import write


def written(folder: Path, sweep: dict[str, Any]) -> Path:
    return write(folder, {"name": "s", "base": {"seed": 3}, **sweep})


def test_axes_of_cases_are_multiplied_later_ones_win_and_smoke_replaces_one(tmp_path: Path) -> None:
    """2 x 2 cases x 2 seeds, in the file's order: the second axis overrides the first."""
    cases = {"a": [{"x": 1}, {"x": 2}], "b": [{"y": 1}, {"y": 2, "x": 9}]}
    path = written(tmp_path, {"cases": cases, "grid": {"seed": [0, 1]}})
    expected = [(x, y, seed) for x, y in ((1, 1), (9, 2), (2, 1), (9, 2)) for seed in (0, 1)]
    assert [(p["x"], p["y"], p["seed"]) for p in iter_points(Sweep.load(path))] == expected
    sweep = {"cases": {"a": [{"x": 1}, {"x": 2}], "b": [{"y": 1}, {"y": 2}]}, "smoke": {"cases": {"a": [{"x": 7}]}}}
    path = written(tmp_path, sweep)
    assert len(list(iter_points(Sweep.load(path)))) == 4
    assert list(iter_points(Sweep.load(path, smoke=True))) == [{"seed": 3, "x": 7, "y": 1}, {"seed": 3, "x": 7, "y": 2}]
    one = written(tmp_path, {"cases": [{"x": 1}, {"x": 2}], "smoke": {"cases": [{"x": 7}]}})
    assert list(iter_points(Sweep.load(one, smoke=True))) == [{"seed": 3, "x": 7}]


class Mode(StrEnum):
    A, B = "ab"


class Listed(FedAvg):
    layers: Sequence[int] = ()
    mode: Mode = Mode.A


FEDSAM = {"name": "fedsam", "rho": [0.05, 0.1]}
OF_ONE_METHOD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a list inside an entry": ({"grid": {"algorithm": ["fedavg", FEDSAM]}}, ["fedavg", "fedsam .05", "fedsam .1"]),
    "a list inside a case": (
        {"cases": [{"algorithm": FEDSAM}, {"algorithm": "fedavg"}]},
        ["fedsam .05", "fedsam .1", "fedavg"],
    ),
    "the grid of a case": (
        {"cases": [{"algorithm": "fedavg"}, {"algorithm": "fedsam", "grid": {"algorithm.rho": [0.05, 0.1]}}]},
        ["fedavg", "fedsam .05", "fedsam .1"],
    ),
    "a key that two of three have": (
        {"grid": {"algorithm": ["fedsam", "fedavg", "fedtoga"], "algorithm.rho": [0.05, 0.1]}},
        ["fedsam .05", "fedsam .1", "fedavg", "fedtoga .05", "fedtoga .1"],
    ),
    "lists for an option of another collection": (
        {"grid": {"algorithm": [{"name": f"{__name__}:Listed", "layers": [1, 2]}]}},
        [f"{__name__}:Listed"],
    ),
    "a list for an option that is a text": (
        {"grid": {"algorithm": [{"name": f"{__name__}:Listed", "mode": ["a", "b"]}]}},
        [f"{__name__}:Listed"] * 2,
    ),
    "a key that is searched": (
        {"cases": [{"algorithm": "fedavg"}, {"algorithm": "fedsam"}], "search": {"algorithm.rho": {"choice": [0.1]}}},
        ["fedavg", "fedsam .1"],
    ),
    "a list that is one value": (
        {"grid": {"algorithm": ["fedavg"], "model": [{"name": "mlp", "hidden": [8, 8]}]}},
        ["fedavg"],
    ),
    "an entry of a plain section": (
        {"grid": {"algorithm": ["fedavg"], "training": [{"lr": 0.1}, {"lr": [0.2, 0.3], "rounds": 5}]}},
        ["fedavg", "fedavg", "fedavg"],
    ),
}


@pytest.mark.parametrize("case", OF_ONE_METHOD)
def test_one_method_has_values_of_its_own(case: str) -> None:
    document, expected = OF_ONE_METHOD[case]
    points = list(iter_points(Sweep.model_validate({"name": "x", "base": {}, **document})))
    found = [f"{get_dotted(p, 'algorithm.name') or p['algorithm']} {get_dotted(p, 'algorithm.rho')}" for p in points]
    assert [name.removesuffix(" None").replace(" 0.", " .") for name in found] == expected
    assert all(point.get("model") in (None, {"name": "mlp", "hidden": [8, 8]}) for point in points)


def test_what_varies_is_named_key_by_key_and_methods_that_lack_a_key(tmp_path: Path) -> None:
    """The keys of a section that differ; values that all configurations have in common are not named."""
    training = [{"training": {"rounds": 3, "lr": 0.1}}, {"training": {"rounds": 5, "lr": 0.1, "momentum": 0.9}}]
    path = written(tmp_path, {"cases": training, "grid": {"model": [{"name": "mlp"}], "clients.total": [5, 6]}})
    sweep = Sweep.load(path)
    varying = [key for key, varies in find_axes(sweep.keys, iter_points(sweep)).items() if varies]
    assert varying == ["training.rounds", "clients.total", "training.momentum"]
    grid = {"algorithm": ["fedavg", {"name": "fedsam"}, "fedprox"], "algorithm.rho": [0.1]}
    (line,) = describe_partial(Sweep.model_validate({"name": "x", "base": {}, "grid": grid}))
    assert line == "x: algorithm.rho varies for fedsam; without rho: fedavg, fedprox"


OTHER = """
name: other
base: {data: digits, partition: {name: dirichlet, alpha: 0.1}, training: {rounds: 4, lr: 0.1}}
grid: {algorithm: [fedavg, fedsam], seed: [0, 1, 2]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "other.yaml").write_text(OTHER)
    (tmp_path / "run.yaml").write_text("data: digits\nalgorithm: fedavg\n")
    return tmp_path


def save(folder: Path, text: str, name: str = "own.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_base_is_changed_other_keys_are_replaced_and_shipped_sweeps_extended(folder: Path) -> None:
    """A mapping is merged into `training` but replaces `partition`, which is a component."""
    text = "extends: other.yaml\nname: own\nbase: {partition.alpha: 0.6, training: {lr: 1}}\ngrid: {seed: [7]}"
    save(folder, text)
    ((config, _),) = Sweep.load(folder / "own.yaml").points
    partition, training = {"name": "dirichlet", "alpha": 0.6}, {"rounds": 4, "lr": 1}
    assert config == {"data": "digits", "partition": partition, "training": training, "seed": 7}
    text = "extends: own.yaml\nname: third\nbase: {partition: iid}"
    ((third, _),) = Sweep.load(save(folder, text, "third.yaml")).points
    assert third == config | {"partition": "iid"}
    bare = load_document(save(folder, "extends: own.yaml\nname: bare\ngrid: []", "bare.yaml"))
    assert "grid" not in bare, "an empty list leaves the other's out"
    # The cells are those of the shipped sweep with one key changed.
    sweep = Sweep.load(save(folder, "extends: quickstart\nname: own\nbase: {training.rounds: 2}"))
    shipped = Sweep.load(get_sweeps_folder() / "quickstart.yaml")
    changed = shipped.with_overrides({"training.rounds": 2, "name": "own"})
    assert list(sweep.points) == list(changed.points) != list(shipped.points)


@each(
    ("extends: 3\nname: own", "extends: found 3; a sweep's name or file is required"),
    ("extends: gone.yaml\nname: own", "own.yaml: extends: .*gone.yaml: cannot be read: No such file or directory"),
    ("extends: quickstar\nname: own", "extends: 'quickstar': .* did you mean quickstart?"),
    ("extends: other\nname: own", "extends: 'other': there is no such file and no shipped"),
    ("extends: run.yaml\nname: own", "extends: .*run.yaml has no `base`; the file of a sweep is required"),
    ("extends: own.yaml\nname: own", "own.yaml: extends: the file extends itself"),
    ("extends: other.yaml", "own.yaml: name: a sweep that extends .*other.yaml needs a name of its own"),
    ("extends: other.yaml\nname: own\nbase: 3", "own.yaml: base: found 3, which is not a mapping"),
    ("extends: other.yaml\nname: own\nbase: {training.lr.x: 1}", "own.yaml: base: lr.x: lr holds 0.1, which has"),
)
def test_what_cannot_be_extended(text: str, message: str, folder: Path) -> None:
    with pytest.raises(UserError, match=message):
        Sweep.load(save(folder, text))


BASE = small.sections(clients=(4, 2), model="mlp", training={"lr": 0.1, "rounds": 2}, runtime={})


def points(sweep: Sweep, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(get_dotted(point, key) for key in keys) for point in iter_points(sweep)]


def test_cases_smoke_and_extensions_do_not_undo_what_is_set(tmp_path: Path) -> None:
    """lr is 0.2 in the first case and the base's in the second: both are 0.5, and the momentum stays."""
    cases = [{"training": {"lr": 0.2, "momentum": 0.5}}, {"training.rounds": 3}]
    sweep = Sweep.parse({"name": "x", "base": BASE, "cases": cases})
    assert points(sweep, "training.lr", "training.momentum") == [(0.2, 0.5), (0.1, None)]
    changed = sweep.with_overrides({"training.lr": 0.5})
    assert points(changed, "training.lr", "training.momentum") == [(0.5, 0.5), (0.5, None)]
    cases = [{"training": {"lr": 0.2}}, {"training.rounds": 3}]
    smaller = Sweep.parse({"name": "x", "base": BASE, "cases": cases, **SMOKE}, smoke=True)
    assert points(smaller, "training.lr") == [(0.5,), (0.5,)]
    said = r"smoke\.base\.training\.lr: grid\.training\.lr varies it; set smoke\.grid\.training\.lr"
    with pytest.raises(UserError, match=said):
        Sweep.parse({"name": "x", "base": BASE, "grid": {"training.lr": [0.1, 0.2]}, **SMOKE}, smoke=True)
    (tmp_path / "a.yaml").write_text(
        "name: a\nbase: {data: digits, partition: iid, model: mlp, training: {lr: 0.1}}\n"
        "grid: {algorithm: [{name: fedsam, rho: 0.1}, fedavg], seed: [0, 1]}\n"
    )
    (tmp_path / "b.yaml").write_text("extends: a.yaml\nname: b\nbase: {algorithm.rho: 0.3}\n")
    (tmp_path / "c.yaml").write_text("extends: a.yaml\nname: c\nbase: {seed: 5}\n")
    assert points(Sweep.load(tmp_path / "b.yaml"), "algorithm.rho") == [(0.3,), (0.3,), (None,), (None,)]
    with pytest.raises(UserError, match=r"c\.yaml: base\.seed: grid\.seed varies it; set grid\.seed"):
        Sweep.load(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_text("extends: a.yaml\nname: d\ngrid: {algorithm: [fedavg, fedsam], seed: [5]}\n")
    assert points(Sweep.load(tmp_path / "d.yaml"), "seed") == [(5,), (5,)]
    # b's base does not undo what is given after it, by a file that extends b or by --set: 0.3 before, or a refusal.
    own = "grid: {algorithm: [fedsam], algorithm.rho: [0.1, 0.2]}"
    for text in (own, f"smoke: {{{own}}}", "grid: []\ncases: [{algorithm: {name: fedsam, rho: [0.1, 0.2]}}]"):
        (tmp_path / "e.yaml").write_text(f"extends: b.yaml\nname: e\n{text}\n")
        assert {*points(Sweep.load(tmp_path / "e.yaml", smoke="smoke" in text), "algorithm.rho")} == {(0.1,), (0.2,)}
    for key, value in (("grid.algorithm.rho", [0.1]), ("search.algorithm.rho", {"choice": [0.1]})):
        changed = Sweep.load(tmp_path / "b.yaml").with_overrides({"grid.algorithm": ["fedsam"], key: value})
        assert points(changed, "algorithm.rho") == [(0.1,), (0.1,)]


SMOKE = {"smoke": {"base": {"training.lr": 0.5}}}


def test_what_changed_a_sweep_is_read_again_from_its_stored_file() -> None:
    """The file stays as written; smoke's own axes are set after its base, those that it keeps before."""
    document = {
        "name": "x",
        "base": BASE,
        "cases": {"a": [{"training": {"rounds": 9}}], "b": [{"training": {"rounds": 8, "lr": 0.3}}]},
        "grid": {"algorithm": ["fedavg", "fedsam"]},
        "smoke": {"base": {"training.rounds": 2, "clients.total": 3}, "cases": {"a": [{}, {"clients.total": 5}]}},
    }
    sweep = Sweep.parse(document, smoke=True).with_overrides({"algorithm.rho": 0.3})
    keys = ("training.rounds", "training.lr", "clients.total", "algorithm.rho")
    expected = [(2, 0.3, 3, None), (2, 0.3, 3, 0.3), (2, 0.3, 5, None), (2, 0.3, 5, 0.3)]
    assert points(sweep, *keys) == expected
    stored = yaml.safe_load(sweep.to_yaml())
    assert (stored["base"], points(Sweep.parse(stored), *keys)) == (BASE, expected)


ONE = small.sections(clients=(5, 2), model=4, training={"rounds": 2}, runtime={})


def sweep(**changes: Any) -> Sweep:
    grid = {"algorithm": ["fedavg", {"name": "fedsam", "rho": 0.1}], "seed": [0, 1]}
    return Sweep.model_validate({"name": "x", "base": ONE, "grid": grid} | changes)


def test_shipped_sweeps_go_by_name_after_files_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name does not come first."""
    monkeypatch.chdir(tmp_path)
    assert {"quickstart", "fedtoga/table1"} <= set(list_sweeps())
    assert not any(name.startswith("clusters") for name in list_sweeps())
    assert locate_sweep(Path("quickstart")) == get_sweeps_folder() / "quickstart.yaml"
    assert locate_sweep(Path("mine.yaml")) == Path("mine.yaml"), "a path is left alone, whether it exists or not"
    Path("quickstart").mkdir()
    assert locate_sweep(Path("quickstart")) == get_sweeps_folder() / "quickstart.yaml"
    Path("quickstart").rmdir()
    Path("quickstart").write_text("name: mine\n")
    assert locate_sweep(Path("quickstart")) == Path("quickstart")


def test_cells_by_number_hash_and_label_and_the_configuration_of_one() -> None:
    """What `sweep --only`, `run --cell` and `rm --cell` take."""
    sheet, _ = make_sheet(sweep(), Problems())
    hashes = list(sheet.cells)
    assert (sheet.select("3", "--only"), sheet.select(hashes[1][:6], "--only")) == ([hashes[2]], [hashes[1]])
    assert sheet.select("fedsam*", "--only") == hashes[2:]
    assert select_labels({"a": "fedavg hidden=[8] s0", "b": "fedavg s0"}, "fedavg hidden=[8] s?", "--only") == ["a"]
    assert sheet.select("*s1", "--only") == [hashes[1], hashes[3]]
    for wrong in ("0", "5", "moon*", "zz", "sam"):
        with pytest.raises(UserError, match=r"^--only: '.*' names no cell; give a number from 1 to 4.*'fedavg\*'"):
            sheet.select(wrong, "--only")
    loaded = sweep()
    hashes, first = list(make_sheet(loaded, Problems())[0].cells), {**ONE, "algorithm": "fedavg", "seed": 0}
    last = {**ONE, "algorithm": {"name": "fedsam", "rho": 0.1}, "seed": 1}
    assert pick_point(loaded, "1", Problems())[0] == first
    assert [pick_point(loaded, text, Problems())[0] for text in ("4", hashes[3], "fedsam*s1")] == [last] * 3
    assert list(pick_point(loaded, "1", Problems())[1].cells) == hashes
    with pytest.raises(UserError, match=r"^--cell: '5' names no cell"):
        pick_point(loaded, "5", Problems())
    with pytest.raises(UserError, match=r"^--cell: 'fedsam\*' names 2 cells, such as 'fedsam .* s0'; one is required"):
        pick_point(loaded, "fedsam*", Problems())


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"partition.sigma": [0, 0.3]}, ["sigma=0", "sigma=0.3"]),
        ({"model": [{"name": "mlp", "hidden": [h]} for h in (4, 8)]}, ["hidden=[4]", "hidden=[8]"]),
        ({"data": [{"name": "digits"}, {"name": "digits", "channels": 3}]}, ["", "channels=3"]),
    ],
    ids=str,
)
def test_labels_tell_cells_apart_by_every_option_that_varies(grid: dict[str, Any], words: list[str]) -> None:
    """Except for the option that is part of a partition's name, and for options that a section's name implies."""
    base = ONE | {"partition": {"name": "dirichlet_client", "alpha": 1}, "algorithm": "fedavg"}
    found = Sweep.model_validate({"name": "x", "base": base, "grid": grid})
    labels = [cell.label for cell in make_sheet(found, Problems())[0].cells.values()]
    assert labels == [" ".join(f"fedavg dirichlet_client(1) {word} s0".split()) for word in words]


def test_cells_of_a_search_are_those_that_a_dry_run_numbers() -> None:
    """With `tune`: of its stage, which holds samples out; a search that learns has no second cell yet."""
    search = {"search": {"training.lr": {"uniform": [0.1, 1]}}, "samples": 2, "grid": {"algorithm": ["fedavg"]}}
    tuned = sweep(**search, tune={"seeds": [7]}, final={"seeds": [1]})
    point, listed = pick_point(tuned, "2", Problems())
    assert list(listed.cells) == list(make_sheet(make_tune_stage(tuned), Problems())[0].cells)
    assert (listed.name, listed.file) == ("x/tune", tuned.to_yaml())
    assert (point["seed"], point["data"]["validation"]["fraction"]) == (7, 0.1)


def test_set_changes_the_base_or_the_file_and_reaches_into_every_section() -> None:
    changed = sweep().with_overrides({"training.rounds": 1, "grid.seed": [7]})
    assert ({point["training"]["rounds"] for point, _ in changed.points}, changed.grid["seed"]) == ({1}, [7])
    assert changed.name == "x-training.rounds-1-grid.seed-7", "its results are not taken for the file's"
    assert sweep().with_overrides({"training.rounds": 1, "name": "mine"}).name == "mine"
    others = [{"training.lr": lr} for lr in (0.12341, 0.12344)] + [{"description": "a" * n} for n in (200, 201)]
    names = {sweep().with_overrides(one).name for one in others}
    assert (len(names), max(map(len, names))) == (4, 110)
    rates, hidden, means = "grid.training.lr", "grid.model.hidden", "data.mean"
    plain = {"x-partition-name-dirichlet-alpha-0.1": {"partition": {"name": "dirichlet", "alpha": 0.1}}}
    plain |= {f"x-{rates}-0.1-0.2": {rates: [0.1, 0.2]}, f"x-{means}-0.5": {means: [0.5]}}
    assert {name: sweep().with_overrides(one).name for name, one in plain.items()} == {name: name for name in plain}
    for others_alike in ([[[8], [16]], [[8, 16]]], [["a/b"], ["a:b"]]):
        names = {sweep().with_overrides({hidden: one}).name for one in others_alike}
        assert len({name[:-7] for name in names}) == 1 < len(names), "digests tell them apart"
    assert sweep().with_overrides({means: [-0.5]}).name not in plain
    elsewhere = sweep().with_overrides({"runtime.actors": 2, "base.runtime.checkpoint_every": 3})
    assert (elsewhere.name, {run["runtime"]["actors"] for run, _ in elsewhere.points}) == (sweep().name, {2})
    assert sweep().with_overrides({"grid.training.lr": [0.1, 0.2]}).grid["training.lr"] == [0.1, 0.2]
    # A key of the base by its long name, one below a section with defaults, and one below a section without.
    search = {"algorithm.rho": {"uniform": [0, 1]}}
    tuned = sweep(grid={"algorithm": ["fedsam"]}, search=search, tune={"seeds": [0]}, final={"seeds": [1]})
    assert tuned.with_overrides({"searcher.seed": 1}).searcher.seed == 1
    assert make_tune_stage(tuned.with_overrides(others[-1])).name.endswith("/tune")
    with pytest.raises(UserError, match=r"^name: found 'a+\.\.\.; string should have at most 120 characters"):
        make_tune_stage(tuned.with_overrides({"name": "a" * 116}))
    searcher = tuned.with_overrides({"searcher.name": "sobol", "searcher.seed": 2}).searcher
    assert searcher.model_dump() == {"name": "sobol", "seed": 2}
    validation = tuned.with_overrides({"tune.validation.fraction": 0.3}).tune
    assert validation is not None
    assert validation.model_dump(exclude_unset=True) == {"seeds": (0,), "validation": {"fraction": 0.3}}
    assert validation == tuned.with_overrides({"tune": {"seeds": [0], "validation": {"fraction": 0.3}}}).tune
    pool = Sweep.parse(tuned.model_dump() | {"tune": validation}).with_overrides({"tune.validation": {"from": "pool"}})
    assert pool.tune.model_dump(exclude_unset=True) == {"seeds": (0,), "validation": {"from": "pool"}}  # type: ignore[union-attr]
    assert tuned.with_overrides({"base.training.rounds": 3}) == tuned.with_overrides({"training.rounds": 3})
    assert {point["training"]["rounds"] for point, _ in tuned.with_overrides({"training.rounds": 3}).points} == {3}
    assert {point["name"] for point, _ in tuned.with_overrides({"base.name": "x"}).points} == {"x"}  # cells refuse it
    more = {"search": {"training.lr": {"uniform": [0.1, 0.2]}}, "tune": {"seeds": [0]}, "final": {"seeds": [1]}}
    parsed = Sweep.parse({"name": "x", "base": BASE, **more})
    assert parsed.with_overrides({"final.seeds": [2, 3]}).final == parsed.final.model_copy(update={"seeds": (2, 3)})  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"--set training\.lr: search\.training\.lr draws it; set search\.training\.lr"):
        parsed.with_overrides({"training.lr": 0.15})
    chosen = {"choice": [0.15]}
    assert parsed.with_overrides({"search.training.lr": chosen}).search == {"training.lr": chosen}
    of_case = Sweep.parse({"name": "x", "base": BASE, "cases": [{}, {"search": more["search"]}]})
    with pytest.raises(UserError, match=r"--set search\.training\.lr: a case has a search of it"):
        of_case.with_overrides({"search.training.lr": chosen})


def test_a_file_in_the_store_is_written_as_people_read_it() -> None:
    """A description with a letter of ρ's kind stays one, in the order of the keys, on one line up to 120 letters."""
    words = "Sensitivity to ρ, α and β " * 3
    text = Sweep.model_validate({"name": "x", "description": words.strip(), "base": {"data": "digits"}}).to_yaml()
    assert text.splitlines()[:3] == ["name: x", f"description: {words.strip()}", "base:"]
