"""Sweep files as objects: what travels to a cluster is the same sweep."""

from pathlib import Path

import pytest
import yaml

from fedray.common.errors import UserError
from fedray.sweep.grid import Sweep
from tests.sweep.running import REPOSITORY

FILES = [
    path
    for path in sorted((REPOSITORY / "sweeps").rglob("*.yaml"))
    if "clusters" not in path.parts and {"name", "base"} <= yaml.safe_load(path.read_text(encoding="utf-8")).keys()
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY / "sweeps")))
def test_a_sweep_survives_its_journey_over_ray_client(path: Path) -> None:
    """`fedray sweep --address ray://...` sends the sweep as JSON to the driver in the cluster."""
    sweep = Sweep.load(path)
    again = Sweep.model_validate(sweep.model_dump(mode="json"))
    assert again == sweep
    assert list(again.points()) == list(sweep.points())


def test_the_files_are_found() -> None:
    assert {"quickstart.yaml", "table1.yaml"} <= {path.name for path in FILES}


def test_draws_without_a_search_are_refused() -> None:
    with pytest.raises(UserError, match="samples: found 3; without `search` there is nothing to draw"):
        Sweep.model_validate({"name": "x", "base": {}, "samples": 3})
