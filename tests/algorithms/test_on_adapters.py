"""Every method on a model of which a part is frozen: it runs, or says by name what it lacks."""

from typing import Any

import pytest
import torch

from fedray.common.errors import UserError
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import load_state
from tests.algorithms.digits import problem
from tests.methods import METHODS

MODEL: dict[str, Any] = {"name": "mlp", "hidden": [16, 12]}
ADAPTERS = 2 * (64 + 16) + 2 * (16 + 12)
BODY, HEAD = 65 * 16 + 17 * 12, 13 * 10
ALONE = {"local-only", "fedproto"}
"""Methods that send no parameters, so that x stays."""
LEARN_FEATURES = [
    "moon",
    "fedgela",
    "fedge",
    "fedrod",
    "fedbabu",
    "fedrep",
    "fedproto",
    "knnper",
    "fedas",
    "feduv",
    "feddecorr",
]
NEED_BODY = ["fedper", "lg-fedavg"]
NEED_HEAD = [
    "fedala",
    "fedas",
    "fedavg-la",
    "fedge",
    "fedgela",
    "fedgen",
    "fedper",
    "fedrep",
    "fedrod",
    "fedrs",
    "lg-fedavg",
]
PLAIN = [
    "fedacg",
    "fedadagrad",
    "fedadam",
    "fedasam",
    "fedavg",
    "fedavg-kl",
    "fedavgm",
    "feddecorr",
    "feddisco",
    "fedlc",
    "fedntd",
    "fedprox",
    "fedrcl",
    "fedrs",
    "fedsam",
    "fedswa",
    "feduv",
    "fedyogi",
    "local-adamw",
    "local-muon",
    "perfedavg",
]


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
    """No method refuses them: they are a body to learn, exchange or keep."""
    found = trained(name, lora={"rank": 2, "alpha": 2})
    assert len(found.state.theta) == ADAPTERS + HEAD
    assert {"test_accuracy", "test_loss"} <= found.state.history[-1].keys()


@pytest.mark.parametrize("name", METHODS)
def test_the_head_alone(name: str) -> None:
    """Linear probing: the body is frozen, and methods that learn features or exchange the body say so."""
    if name in LEARN_FEATURES:
        refused(f"model: every trained parameter belongs to the head; {name} needs a feature layer", name, ["body"])
    elif name in NEED_BODY:
        refused(f"model: no parameter of body is trained; {name} needs some", name, ["body"])
    else:
        assert len(trained(name, freeze=["body"]).state.theta) == HEAD


@pytest.mark.parametrize("name", METHODS)
def test_the_body_alone(name: str) -> None:
    """FedSOL perturbs the head alone by default."""
    if name in ["fedsol", *NEED_HEAD]:
        refused(f"model: no parameter of head is trained; {name} needs some", name, ["head"])
    else:
        assert len(trained(name, freeze=["head"]).state.theta) == BODY


def refused(line: str, name: str, freeze: list[str]) -> None:
    with pytest.raises(UserError) as found:
        problem(name, model=MODEL | {"freeze": freeze}).build_network("cpu")
    assert str(found.value) == line


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("share", ["A", "B"])
def test_one_matrix_kept(share: str, name: str) -> None:
    """Methods that exchange parameters alone; the others, personalised ones too, have exchanges of their own."""
    if name not in PLAIN:
        with pytest.raises(UserError) as error:
            problem(name, model=MODEL | {"lora": {"share": share}})
        assert str(error.value) == (
            f"model.lora.share: found {share}, which is for methods that exchange parameters alone; {name} exchanges "
            "or keeps something of its own, so share: both is required"
        )
        return
    found = trained(name, lora={"rank": 2, "alpha": 2, "share": share})
    kept = {"A": 2 * 16 + 2 * 12, "B": 2 * 64 + 2 * 16}[share]
    assert {len(load_state(state)["own"]) for state in found.state.clients.values()} == {kept}
