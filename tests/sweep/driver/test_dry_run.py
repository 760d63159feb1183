"""`--dry-run` says what an actor keeps on a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedray.config import Runtime
from fedray.sweep.driver import dry_run


@pytest.mark.parametrize(
    ("runtime", "kept", "limit"),
    [
        ({"gpus_per_actor": 0.25}, "shards and states", "5 %"),  # 0.2 of a quarter
        ({"gpus_per_actor": 0.25, "actors": 2}, "shards", "5 %"),  # states are in the object store
        ({"gpus_per_actor": 2}, "shards and states", "20 %"),  # of the one it trains on
        ({"gpus_per_actor": "auto"}, "", ""),  # the fraction is not known yet
        ({}, "", ""),
    ],
)
def test_memory_on_a_gpu(
    runtime: dict[str, Any],
    kept: str,
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(dry_run, "list_local_nodes", lambda: [{"CPU": 8.0, "GPU": 2.0}])
    plan: Any = SimpleNamespace(cells={}, known={}, requests={Runtime(**runtime): 3})
    dry_run.print_plan(plan, None)
    said = " ".join(capsys.readouterr().out.split())
    assert "3 trials ask for" in said
    line = f"each actor keeps its clients' {kept} on the GPU, in at most {limit} of a GPU's memory"
    assert (line in said) if kept else ("keeps its clients'" not in said)
