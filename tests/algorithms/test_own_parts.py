"""Parts that stay: frozen parameters, on which every method runs or says what it lacks; each client's own part with its
running statistics, through a resume.
"""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedray.common.errors import UserError
from fedray.engine.loop import run
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import load_state
from tests.algorithms.digits import problem
from tests.algorithms.test_pieces import parse
from tests.methods import METHODS

PARTLY = "tests.algorithms.test_own_parts:Partly"


class Partly(nn.Module):
    """A frozen layer, running statistics, dropout, and a head that may have running statistics too."""

    head = "last"

    def __init__(self, input_shape: Sequence[int], num_classes: int, statistics: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(math.prod(input_shape), 12).requires_grad_(False)
        self.norm, self.dropout = nn.BatchNorm1d(12), nn.Dropout(0.2)
        self.last = (
            nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, num_classes)) if statistics else nn.Linear(12, num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.dropout(torch.relu(self.norm(self.first(x.flatten(1))))))


@pytest.mark.parametrize(
    ("algorithm", "sizes", "batch", "message"),
    [
        ("fedas align_batch=8", (33,), "full", r"algorithm: client 0 passes \(alignment\) .* change the option"),
        ("fedas align_lr=0 fisher=samples align_batch=40", (33,), "full", r"algorithm: client 0 passes \(fisher\)"),
        ("fedala share=0.25 layers=9", (36,), 8, r"training\.batch_size: client 0 .*9 of its 36 .* another size"),
        ("fedala share=0.1 layers=9", (10,), "full", r"algorithm: client 0 passes \(mix\) over 1 of its 10"),
        ("fedavg", (65,), 16, r"training\.batch_size: client 0 has 65 samples in batches of 16, and"),
        ("fedavg", (1, 30), 16, r"partition\.min_size: client 0 has 1 sample, and BatchNorm .*; choose 2 or more"),
        ("mimelite", (1, 30), 16, r"partition\.min_size: client 0 has 1 sample, and BatchNorm"),
    ],
)
def test_a_sample_alone_under_batchnorm_names_what_left_it_alone(
    algorithm: str, sizes: tuple[int, ...], batch: int | str, message: str
) -> None:
    """The cause is a batch, a client with a single sample, a pass of the method's own, or its share of the shard."""
    training = {"batch_size": batch, "last_batch": "drop" if batch == 8 else "keep"}
    built = problem(parse(algorithm), sizes, per_round=1, model=PARTLY, clients={"cohorts": [[0]] * 4}, **training)
    with pytest.raises(UserError, match=rf"^{message}"):
        run(built, InlineBackend())


MODEL: dict[str, Any] = {"name": "mlp", "hidden": [16, 12]}
ADAPTERS = 2 * (64 + 16) + 2 * (16 + 12)
BODY, HEAD = 65 * 16 + 17 * 12, 13 * 10
ALONE = {"local-only", "fedproto"}
"""Methods that send no parameters, so that x stays."""


def trained(name: str, **model: Any) -> Simulation:
    """Two rounds of three clients of six."""
    simulation = Simulation(problem(name, model=MODEL | model, rounds=2, lr=0.05), InlineBackend())
    start = simulation.state.theta
    while not simulation.done:
        simulation.step()
    assert torch.equal(simulation.state.theta, start) == (name in ALONE)
    assert simulation.state.frozen == simulation.problem.build_network("cpu").frozen_sha256 != ""
    return simulation


@pytest.mark.parametrize("name", METHODS)
def test_adapters(name: str) -> None:
    found = trained(name, lora={"rank": 2, "alpha": 2})
    assert len(found.state.theta) == ADAPTERS + HEAD
    assert {"test_accuracy", "test_loss"} <= found.state.history[-1].keys()


@pytest.mark.parametrize(
    ("name", "part", "line"),
    [
        ("fedrep", "body", "model: every trained parameter belongs to the head; fedrep needs a feature layer"),
        ("fedper", "body", "model: no parameter of body is trained; fedper needs some"),
        ("fedrep", "head", "model: no parameter of head is trained; fedrep needs some"),
        ("fedsol", "head", "model: no parameter of head is trained; fedsol needs some"),  # perturbs it by default
        ("fedavg", "body", ""),
        ("scaffold", "head", ""),
    ],
)
def test_the_head_or_the_body_alone(name: str, part: str, line: str) -> None:
    """Linear probing: the body is frozen. Methods that need the frozen part say so."""
    if not line:
        assert len(trained(name, freeze=[part]).state.theta) == {"body": HEAD, "head": BODY}[part]
        return
    with pytest.raises(UserError, match=f"^{line}$"):
        problem(name, model=MODEL | {"freeze": [part]}).build_network("cpu")


@pytest.mark.parametrize(("share", "kept"), [("A", 2 * 16 + 2 * 12), ("B", 2 * 64 + 2 * 16)])
def test_one_matrix_kept(share: str, kept: int) -> None:
    """Of methods that exchange parameters alone; the others, personalised ones too, have exchanges of their own."""
    found = trained("fedprox", lora={"rank": 2, "alpha": 2, "share": share})
    assert {len(load_state(state)["own"]) for state in found.state.clients.values()} == {kept}
    said = (
        rf"^model\.lora\.share: found {share}, which is for methods that exchange parameters alone; scaffold exchanges"
    )
    with pytest.raises(UserError, match=said):
        problem("scaffold", model=MODEL | {"lora": {"share": share}})
