"""Runs that train a part of a model: what is sent, kept and hashed, and that the numbers are those of a plain loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedray.common.errors import UserError
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.loop import run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import load_state
from tests import small

WIDE = {"name": "mlp", "hidden": [256]}
HEAD, WHOLE = 256 * 10 + 10, 64 * 256 + 256 + 256 * 10 + 10
RANK2 = 2 * (64 + 256)
TRAINING = {"rounds": 3, "local_steps": 2, "batch_size": 16, "lr": 0.05}


def problem(model: dict[str, Any], algorithm: Any = "fedavg", **more: Any) -> Problem:
    """Two of four clients in each round."""
    return small.problem(algorithm, **{"clients": (4, 2), "model": model, "training": TRAINING, **more})


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({}, WHOLE),
        ({"freeze": ["body"]}, HEAD),
        ({"lora": {"rank": 2}}, RANK2 + HEAD),
        ({"lora": {"rank": 2, "train": "B"}}, 2 * 256 + HEAD),
        ({"lora": {"rank": 2}, "freeze": ["head"]}, RANK2),
    ],
)
def test_everything_is_as_long_as_what_is_trained(options: dict[str, Any], trained: int, tmp_path: Path) -> None:
    """SCAFFOLD: x and c down, u_i and the change of c_i up; c with the server, c_i with each client, on disk, too."""
    result = run(problem({**WIDE, **options}, "scaffold"), InlineBackend())
    assert len(result.theta) == trained
    assert result.state.sent == (2 * 3 * 4 * 2 * trained,) * 2
    assert [v.numel() for v in result.state.server.values()] == [trained]
    assert {sum(v.numel() for v in load_state(s).values()) for s in result.state.clients.values()} == {trained}
    Checkpoints(tmp_path).save(result.state)
    sizes = {path.name.partition("-")[0]: _count(path) for path in tmp_path.glob("*.safetensors")}
    assert sizes == {"server": 2 * trained, "client": trained}


def _count(path: Path) -> int:
    return sum(tensor.numel() for tensor in load_file(path).values())


def test_one_matrix_stays_with_its_client(tmp_path: Path) -> None:
    """FedSA-LoRA: A and the head are sent, 128 + 2,570 numbers; each client keeps its 512 of B, and x has none."""
    result = run(problem({**WIDE, "lora": {"rank": 2, "share": "A"}}), InlineBackend())
    assert result.state.sent == (2 * 3 * 4 * (2 * 64 + HEAD),) * 2
    views = result.layout.views(result.state.theta)
    assert not views["1.lora_B"].any()
    assert not torch.equal(
        views["1.lora_A"], result.layout.views(result.problem.build_network("cpu").theta)["1.lora_A"]
    )
    kept = [load_state(state)["own"] for state in result.state.clients.values()]
    assert {len(own) for own in kept} == {2 * 256}
    assert len({tuple(own.tolist()) for own in kept}) == len(kept) > 1
    with pytest.raises(UserError, match="has no global model"):
        result.model()
    own = dict(result.personal_model(next(iter(result.state.clients))).named_parameters())
    assert own["model.1.lora_B" if "model.1.lora_B" in own else "1.lora_B"].any()


def test_the_hash_of_the_frozen_weights() -> None:
    """The seed draws them; what is trained does not change it. Nothing frozen, no hash."""
    frozen = {**WIDE, "freeze": ["body"]}
    first, other = run(problem(frozen), InlineBackend()), run(problem(frozen, seed=1), InlineBackend())
    assert first.summary()["frozen_sha256"] != other.summary()["frozen_sha256"]
    assert first.problem.build_network("cpu").frozen_sha256 == first.state.frozen
    assert "frozen_sha256" not in run(problem(WIDE), InlineBackend()).summary()


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"seed": 1}, "checkpoint: belongs to other frozen weights than the model has here"),
        ({"freeze": ["head"]}, "checkpoint: holds 2,570 trained parameters, the model has 16,640"),
    ],
)
def test_a_checkpoint_of_other_weights_is_refused(other: dict[str, Any], line: str, tmp_path: Path) -> None:
    """As another version of PyTorch would draw them, or an older fedray kept them in theta."""
    Checkpoints(tmp_path).save(run(problem({**WIDE, "freeze": ["body"]}), InlineBackend()).state)
    state = Checkpoints(tmp_path).load()
    model = {**WIDE, "freeze": other.get("freeze", ["body"])}
    with pytest.raises(UserError, match=line):
        Simulation(problem(model, seed=other.get("seed", 0)), InlineBackend()).restore(state)


@pytest.mark.parametrize("options", [{"freeze": ["body"]}, {"lora": {"rank": 2}}])
def test_a_saved_model_is_whole(options: dict[str, Any], tmp_path: Path) -> None:
    """All weights, by the model's names, and their hashes; it answers as the run's model was tested."""
    result = run(problem({**WIDE, **options}), InlineBackend())
    saved = load_file(result.save(tmp_path / "m.safetensors"))
    network = result.problem.build_network("cpu")
    assert all(torch.equal(saved[name], tensor) for name, tensor in network.frozen.items())
    assert all(torch.equal(saved[name], view) for name, view in result.layout.views(result.theta).items())
    assert saved.keys() == network.frozen.keys() | set(network.layout.names)
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata()["frozen_sha256"] == result.state.frozen
    x, y = (torch.from_numpy(np.asarray(part)) for part in (result.problem.data.x_test, result.problem.data.y_test))
    with torch.no_grad():
        right = result.model()(x).argmax(1) == y
    assert 100 * float(right.double().mean()) == pytest.approx(result.summary()["test_accuracy"])


def test_averaging_both_matrices_is_a_plain_loop() -> None:
    """FedAvg in float64: each client's step on A, B and the head by autograd, then the mean of each matrix alone."""
    built = problem(
        {"name": "mlp", "hidden": [12], "lora": {"rank": 3, "alpha": 6}},
        clients=(3, 3),
        training={**TRAINING, "batch_size": "full", "rounds": 4, "weight_decay": 0.01, "momentum": 0.5},
    )
    network = built.build_network("cpu")
    frozen = {name: tensor.double() for name, tensor in network.frozen.items()}
    x = {name: view.double() for name, view in network.layout.views(network.theta.clone()).items()}
    data = built.data
    inputs = torch.from_numpy(np.asarray(data.x_train)).double().flatten(1)

    def loss(p: dict[str, Tensor], shard: np.ndarray) -> Tensor:
        z = inputs[shard]
        hidden = z @ frozen["1.weight"].T + frozen["1.bias"] + 2 * (z @ p["1.lora_A"].T) @ p["1.lora_B"].T
        return cross_entropy(hidden.relu() @ p["3.weight"].T + p["3.bias"], torch.from_numpy(data.y_train[shard]))

    if data.x_train.dtype == np.uint8:
        inputs = (inputs / 255 - data.mean[0]) / data.std[0]
    for _ in range(4):
        ends = []
        for i in range(3):
            p, m = dict(x), {name: torch.zeros_like(v) for name, v in x.items()}
            for _ in range(2):
                p = {name: v.detach().requires_grad_() for name, v in p.items()}
                g = torch.autograd.grad(loss(p, built.split.train[i]), list(p.values()))
                m = {n: 0.5 * m[n] + d + 0.01 * p[n].detach() for n, d in zip(p, g, strict=True)}
                p = {n: p[n].detach() - 0.05 * m[n] for n in p}
            ends.append(p)
        x = {name: sum(end[name] for end in ends) / 3 for name in x}
    found = run(built, InlineBackend())
    for name, view in found.layout.views(found.theta).items():
        torch.testing.assert_close(view.double(), x[name], rtol=0, atol=2e-6)
