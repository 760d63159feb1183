"""Finished cells run again: the same, different, or not comparable."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedray
from fedray.cli.main import app
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.sweep.single import verify
from fedray.tracking.environment import PREFIX
from fedray.tracking.store import find_runs, open_store
from fedray.tracking.tracker import Tracker
from tests import small
from tests.analysis.runs import sheet

RUN = small.sections("scaffold", (5, 2), 4, training={"rounds": 2, "local_epochs": 1})


@pytest.fixture
def cells(project: Path) -> list[str]:
    """A store with a sweep of three finished cells; their hashes."""
    configs = [RunConfig.parse(RUN | {"seed": seed}) for seed in range(3)]
    digest = configs[0].data.load().digest
    for config in configs:
        fedray.simulate(config, track=f"s{config.seed}")
    made = [small.list_cell(config, digest) for config in configs]
    Tracker().open_sweep(sheet("three", made))
    return [str(cell["hash"]) for cell in made]


def tag(cell: str, key: str, value: str) -> None:
    client, experiment = open_store()
    (run,) = find_runs(client, experiment, [cell])
    client.set_tag(run.info.run_id, key, value)


def test_a_sample_is_spread_over_the_sweep_and_each_cell_gets_its_verdict(cells: list[str]) -> None:
    """Two of three cells: the first and the one at 1 x 3 // 2 = 1."""
    assert [*verify("three", 2)] == [("same", "s0"), ("same", "s1")]
    tag(cells[1], "fedray.theta_sha256", "0" * 64)
    result = CliRunner().invoke(app, ["verify", "three"])
    first, second, third = result.stdout.splitlines()
    assert (result.exit_code, first, third) == (1, "same           s0", "same           s2")
    assert second.startswith("different      s1: theta_sha256 is ")
    assert second.endswith(f", was {16 * '0'}")


def test_what_differs_or_cannot_be_compared_is_said(cells: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal bits are the same on any processor; a changed number of the last row is found though the hash is right.
    Settings that mean something else now, a class that is not here, and a sweep without finished cells."""
    tag(cells[0], f"{PREFIX}cpu", "Z80")
    assert [*verify("three", 1)] == [("same", "s0")]
    client, experiment = open_store()
    (run,) = find_runs(client, experiment, cells[:1])
    client.log_metric(run.info.run_id, "test_accuracy", 99.0, step=3)
    ((word, said),) = verify("three", 1)
    assert word == "different"
    assert said.startswith("s0: test_accuracy is ")
    assert ", was 99" in said
    tag(cells[0], "fedray.theta_sha256", "0" * 64)
    ((_, said),) = verify("three", 1)
    assert "; cpu was Z80, here it is " in said
    with monkeypatch.context() as patch:
        patch.setattr("fedray.config.run.NUMERICS", 99)
        assert [*verify("three", 1)] == [("not comparable", "s0: other settings, data or sources: numerics")]
    foreign = {"hash": cells[0], "label": "s0", "config": RUN | {"algorithm": "no_such_module:Mine"}}
    Tracker().open_sweep(sheet("foreign", [foreign]))
    ((word, said),) = verify("foreign", 1)
    assert word == "not comparable"
    assert said.startswith("s0: algorithm.name: 'no_such_module:Mine' cannot be imported")
    for cell in cells:
        tag(cell, "fedray.status", "failed")
    with pytest.raises(UserError, match="three: has no finished cell to verify"):
        list(verify("three", 1))
