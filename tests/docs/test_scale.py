"""The formulas of docs/performance.md, against what the code holds and sends."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from fedray.engine.messages import Broadcast, ClientTask, Reply
from fedray.engine.process import residence
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import load_state
from tests import small

PAGE = " ".join((Path(__file__).parent.parent.parent / "docs" / "performance.md").read_text().split())
P = 64 * 12 + 12 + 12 * 10 + 10
METHODS = {"fedavg": (0, 0, 0, 1), "scaffold": (1, 1, 1, 2), "fedtoga": (1, 2, 1, 3), "fedlada": (0, 2, 2, 4)}
"""Method -> k, v, m, u. SCAFFOLD: c_i; c; c; the update and the change of c_i. FedTOGA: H_i; h, Δ; Δ; three sums.
FedLADA: nothing; Δ, v; both; the update, Δ and v, whose sum is wide."""


class Watched(InlineBackend):
    """Keeps what it received and returned."""

    def train(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> list[Reply]:
        self.broadcast, self.parts = broadcast, super().train(broadcast, tasks)
        return self.parts


def count(tensors: Sequence[Tensor]) -> int:
    """Bytes of vectors of P numbers."""
    return sum(v.nbytes for v in tensors if v.numel() == P)


@pytest.mark.parametrize("algorithm", METHODS)
def test_memory_and_bytes_of_a_round(algorithm: str) -> None:
    """Two rounds of 3 of 6 clients, Dirichlet(0.3), an MLP of P parameters."""
    (k, v, m, u), backend, training = METHODS[algorithm], Watched(), {"rounds": 2, "batch_size": 16}
    running = Simulation(small.problem(algorithm, (6, 3), 12, 0.3, training=training), backend)
    running.step()
    running.step()
    assert "| to each node, per round | 4 P (1 + m): the broadcast |" in PAGE
    assert count([backend.broadcast.theta, *backend.broadcast.message.values()]) == 4 * P * (1 + m)
    assert "8 P u A while sums arrive" in PAGE
    assert count([s for part in backend.parts for s in part.sums.values()]) == 8 * P * u * 1
    assert "4 P (1 + v + m) for the server" in PAGE
    assert count([running.state.theta, *running.state.server.values()]) == 4 * P * (1 + v)
    assert "S = 4 k P is a client's state" in PAGE
    states = [load_state(state) for state in running.state.clients.values()]
    assert [count(list(state.values())) for state in states] == [4 * k * P] * (len(states) if k else 0)
    assert len(states) == (len({*running.draw_cohort(0), *running.draw_cohort(1)}) if k else 0)


def test_the_limit_is_that_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2 f G with f = 1/4 and G = 80 GB: 4 GB."""
    assert "Σ (n_i d) + S N_s, at most 0.2 f G" in PAGE
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1, 80 * 10**9))
    assert residence.limit_memory(0.25) == 4 * 10**9
