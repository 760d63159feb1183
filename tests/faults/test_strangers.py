"""A Ray that fedray starts listens on every interface (Ray offers no choice), so it must refuse strangers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from fedray.cluster.connection import use_cluster
from tests.sweep.running import SWEEP, done, start

JOIN = "import ray, sys; ray.init(sys.argv[1], logging_level='ERROR'); print('joined')"


def joined(address: str, **environment: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", JOIN, address], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    return done.returncode == 0 and "joined" in done.stdout


@pytest.mark.faults
def test_only_who_has_the_token_can_join_a_local_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user can; with another home (no token file) or without authentication no process can."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with use_cluster():
        address = ray.get_runtime_context().gcs_address
        assert joined(address, RAY_AUTH_MODE="token")
        assert not joined(address, RAY_AUTH_MODE="token", HOME=str(tmp_path))
        assert not joined(address, RAY_AUTH_MODE="disabled")


@pytest.mark.faults
def test_a_cluster_that_asks_for_a_token_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ray's own 20 lines, which do not name the remedy."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with use_cluster():
        address = ray.get_runtime_context().gcs_address
        error = done(start(tmp_path, SWEEP, "--address", address), 2).splitlines()[-1]
    assert error.startswith(f"fedray: --address: cannot join {address}: ")
    assert "; if the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or " in error
    assert list(tmp_path.iterdir()) == [tmp_path / "sweep.yaml"]
