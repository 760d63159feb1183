"""A key that is set is set in every run, or refused with advice that works when it is followed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedray.cells.cell import get_dotted
from fedray.common.errors import UserError
from fedray.sweep.document import get_sweeps_folder, list_sweeps
from fedray.sweep.draws import iter_points
from fedray.sweep.points import has_option
from fedray.sweep.sweep import Sweep

SETTINGS: dict[str, Any] = {
    "training.lr": 0.123,
    "training.rounds": 3,
    "seed": 77,
    "clients.per_round": 2,
    "partition.alpha": 0.77,
    "algorithm.rho": 0.077,
    "algorithm.perturb": "body",
    "partition": "iid",
    "model": {"name": "mlp", "hidden": [7]},
}
BASE = {
    "data": "digits",
    "partition": "iid",
    "clients": {"total": 4, "per_round": 2},
    "model": "mlp",
    "algorithm": "fedavg",
    "training": {"lr": 0.1, "rounds": 2},
}


def follow(sweep: Sweep, key: str, value: Any) -> Sweep:
    """Set a key as a user would: set what a refusal names to one setting, then the key."""
    for _ in range(8):
        try:
            return sweep.with_overrides({key: value})
        except UserError as error:
            said = str(error)
        found = re.fullmatch(rf"(--set {key}): (\S+) (varies|draws) it; set \2", said)
        assert found, said
        name = found[2].partition(".")[2]
        if found[3] == "draws":
            first: Any = {"choice": [value]}
        else:
            first = [value] if name == key else [next(v for v in sweep.grid[name] if has_option({name: v}, key))]
        sweep = sweep.with_overrides({found[2]: first})
        if found[3] == "draws" or name == key:
            return sweep
    raise AssertionError(f"{key}: the advice never ends")


def list_values(sweep: Sweep, key: str) -> list[Any]:
    """Return the value of a key in each run that has the option; of a section its name, since axes may add options."""
    found = [get_dotted(point, key) for point in iter_points(sweep) if has_option(point, key)]
    return [value["name"] if isinstance(value, Mapping) else value for value in found]


ALIKE = re.compile(r"fed\w+/(?!table2$|printed$|search$)")
"""Of each paper's sweeps, those whose axes and stages are of the kinds of the others."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if ALIKE.match(name) else name
        for name in list_sweeps()
        if name != "example"
    ],
)
def test_set_reaches_every_run_of_a_shipped_sweep(name: str) -> None:
    """An option that the sweep does not mention is left out: RunConfig says which method has it."""
    sweep = Sweep.load(get_sweeps_folder() / f"{name}.yaml")
    for key, value in SETTINGS.items():
        if key == "seed" and sweep.tune is not None:
            with pytest.raises(UserError, match="--set seed: belongs to `tune` and `final`"):
                sweep.with_overrides({key: value})
            continue
        before = list_values(sweep, key)
        if before and (not key.startswith("algorithm.") or any(one is not None for one in before)):
            found = list_values(follow(sweep, key, value), key)
            assert set(found) == {value["name"] if isinstance(value, Mapping) else value}, key


def points(sweep: Sweep, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(get_dotted(point, key) for key in keys) for point in iter_points(sweep)]


def test_a_case_does_not_undo_what_is_set() -> None:
    """lr is 0.2 in the first case and the base's in the second: both are 0.5, and the momentum stays."""
    cases = [{"training": {"lr": 0.2, "momentum": 0.5}}, {"training.rounds": 3}]
    sweep = Sweep.parse({"name": "x", "base": BASE, "cases": cases})
    assert points(sweep, "training.lr", "training.momentum") == [(0.2, 0.5), (0.1, None)]
    changed = sweep.with_overrides({"training.lr": 0.5})
    assert points(changed, "training.lr", "training.momentum") == [(0.5, 0.5), (0.5, None)]


SMOKE = {"smoke": {"base": {"training.lr": 0.5}}}


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (
            {"grid": {"training.lr": [0.1, 0.2]}},
            r"smoke\.base\.training\.lr: grid\.training\.lr varies it; set smoke\.grid\.training\.lr",
        ),
        (
            {"search": {"training.lr": {"uniform": [0.1, 0.2]}}},
            r"smoke\.base\.training\.lr: search\.training\.lr draws it",
        ),
    ],
)
def test_smoke_follows_the_same_rule(axes: dict[str, Any], message: str) -> None:
    cases = [{"training": {"lr": 0.2}}, {"training.rounds": 3}]
    small = Sweep.parse({"name": "x", "base": BASE, "cases": cases, **SMOKE}, smoke=True)
    assert points(small, "training.lr") == [(0.5,), (0.5,)]
    with pytest.raises(UserError, match=message):
        Sweep.parse({"name": "x", "base": BASE, **axes, **SMOKE}, smoke=True)


def test_the_advice_for_smoke_works() -> None:
    document = {
        "name": "x",
        "base": BASE,
        "grid": {"training.lr": [0.1, 0.2]},
        "smoke": {"grid": {"training.lr": [0.5]}},
    }
    assert points(Sweep.parse(document, smoke=True), "training.lr") == [(0.5,)]


def test_extends_follows_the_same_rule(tmp_path: Path) -> None:
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


def test_tune_and_final_are_set_as_keys_of_the_file() -> None:
    more = {"search": {"training.lr": {"uniform": [0.1, 0.2]}}, "tune": {"seeds": [0]}, "final": {"seeds": [1]}}
    sweep = Sweep.parse({"name": "x", "base": BASE, **more})
    assert sweep.with_overrides({"final.seeds": [2, 3]}).final == sweep.final.model_copy(update={"seeds": (2, 3)})  # type: ignore[union-attr]
    assert follow(sweep, "training.lr", 0.15).search == {"training.lr": {"choice": [0.15]}}


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
    assert stored["base"] == BASE
    assert points(Sweep.parse(stored), *keys) == expected
