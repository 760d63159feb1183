"""Divergence is caught in its round, with the client; the run ends, or continues as if without that client."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from numpy import ndarray

from fedray.common.errors import Diverged
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from tests import small


def problem(
    algorithm: str | dict[str, object], cohorts: Sequence[ndarray] | None = None, **training: object
) -> Problem:
    """12 clients, 5 per round; NotANumber's directions are NaN from round 3 on if a client's samples are odd."""
    clients = {"total": 12, "per_round": 5} | ({} if cohorts is None else {"cohorts": [c.tolist() for c in cohorts]})
    base = {"rounds": 6, "local_epochs": 1, "batch_size": 32, "lr_decay": 0.9, "aggregation": "samples"}
    return small.problem(algorithm, clients, 16, 0.5, training={**base, **training}, evaluation={"every": 1})


def kept(whole: Problem) -> tuple[list[ndarray], list[int]]:
    """The cohorts without diverged clients, and the number of these after each round."""
    simulation, sizes = Simulation(whole, InlineBackend()), whole.shards.sizes
    drawn = [simulation.draw_cohort(t) for t in range(6)]
    cohorts = [cohort if t < 2 else cohort[sizes[cohort] % 2 == 0] for t, cohort in enumerate(drawn)]
    counts = [len(before) - len(after) for before, after in zip(drawn, cohorts, strict=True)]
    return cohorts, [sum(counts[: t + 1]) for t in range(6)]


def test_a_run_that_drops_is_the_run_in_which_they_were_not_drawn() -> None:
    """Bit for bit: the weights are those of the remaining clients, and so are all sums of the method."""
    dropping = problem("tests.plugins:NotANumber", on_divergence="drop")
    cohorts, counts = kept(dropping)
    assert counts[1] == 0 < counts[2] < counts[5], "the example drops nobody"
    assert min(map(len, cohorts)) > 0
    found, expected = run(dropping, InlineBackend()), run(problem("tests.plugins:NotANumber", cohorts), InlineBackend())
    assert found.state.digest() == expected.state.digest()
    assert [row["dropped_clients"] for row in found.history] == counts
    assert [{k: v for k, v in row.items() if k != "dropped_clients"} for row in found.history] == expected.history


def test_the_count_survives_a_checkpoint(tmp_path: Path) -> None:
    dropping = problem("tests.plugins:NotANumber", on_divergence="drop")
    first = Simulation(dropping, InlineBackend())
    for _ in range(4):
        first.step()
    Checkpoints(tmp_path).save(first.state)
    assert (
        run(dropping, InlineBackend(), Checkpoints(tmp_path).load()).history == run(dropping, InlineBackend()).history
    )


def test_a_round_in_which_everyone_goes_wrong_has_diverged() -> None:
    whole = problem("tests.plugins:NotANumber")
    odd = (whole.shards.sizes % 2).nonzero()[0][:2]
    with pytest.raises(Diverged, match=f"diverged in round 3, client {odd[0]}: "):
        run(problem("tests.plugins:NotANumber", [odd] * 6, on_divergence="drop"), InlineBackend())


def test_a_state_that_goes_wrong_is_caught_in_its_round() -> None:
    """Its update is finite, so nothing else would show it before the client is drawn again."""
    simulation, seen = Simulation(problem("fedavg"), InlineBackend()), set[int]()
    for t in range(6):
        cohort = set(simulation.draw_cohort(t).tolist())
        if again := seen & cohort:
            break
        seen |= cohort
    bad = min(again)
    with pytest.raises(Diverged, match=f"diverged in round {t + 1}, client {bad}: its state count is not finite"):
        run(problem({"name": "tests.plugins:BadState", "bad": bad}), InlineBackend())
