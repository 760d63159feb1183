"""The round loop resumes, saves when due, keeps finished rounds if stopped, and reports a full disk in one line. Runs
that train a part of a model: what is sent, kept and hashed, and that the numbers are those of a plain loop."""

import itertools
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

import fedray
from fedray.algorithms.base import Algorithm, Client, Server, Uploads
from fedray.common.errors import UserError
from fedray.common.process import treat_sigterm_as_interrupt
from fedray.common.vectors import Vectors
from fedray.datasets.base import load_data
from fedray.engine.disk.checkpoint import Checkpoints, Writer
from fedray.engine.disk.client_files import write_states
from fedray.engine.loop import make_rounds, run
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from fedray.engine.state import State, load_state
from tests import small
from tests.conftest import each

ROUNDS, REPOSITORY = 7, Path(__file__).parents[2]


def simulation(method: str = "scaffold") -> Simulation:
    training = {"rounds": ROUNDS, "local_epochs": 1}
    return small.simulation(method, (6, 2), evaluation={"every": 2, "last": 1}, training=training)


class Unpacks(Algorithm):
    """Takes the vectors of its states by their places, which no file sorts."""

    name = "unpacks"

    def server_state(self, theta: Tensor) -> Vectors:
        return Vectors(z=0 * theta, a=theta)

    def client_state(self, theta: Tensor) -> Vectors:
        return Vectors(newest=theta, before=theta)

    def message(self, server: Server) -> Vectors:
        return Vectors(server.state)

    def direction(self, c: Client) -> Tensor:
        (z, a), (newest, before) = c.message.values(), c.state.values()
        return c.grad(c.theta) + z + 0.01 * a + 0.1 * (c.theta - newest) - 0.05 * (c.theta - before)

    def upload(self, c: Client) -> Uploads:
        c.state.before, c.state.newest = c.state.newest, c.theta
        return {}


class Recorded(Checkpoints):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked: list[int] = []

    def save(self, state: State, writer: Writer = write_states) -> None:
        self.asked.append(state.round)
        super().save(state, writer)
        assert all(map(load_state, Checkpoints(self.directory).load().clients.values())), "no damaged file is named"


@pytest.mark.parametrize(("every", "seconds", "saved"), [(3, 1e9, [3, 6, 7]), (9, 1e9, [7]), (9, 0.0, [*range(1, 8)])])
def test_saves_by_rounds_by_time_and_at_the_end(every: int, seconds: float, saved: list[int], tmp_path: Path) -> None:
    store = Recorded(tmp_path)
    assert [state.round for state in make_rounds(simulation(), store, every, seconds)] == list(range(ROUNDS + 1))
    assert store.asked == saved


@pytest.mark.parametrize("method", ["scaffold", f"{__name__}:Unpacks"])
def test_a_run_goes_on_from_its_checkpoint_and_ends_where_an_unbroken_one_does(method: str, tmp_path: Path) -> None:
    whole = [state for state in make_rounds(simulation(method))][-1]
    for state in make_rounds(simulation(method), Checkpoints(tmp_path), every=3):
        if state.round == 4:
            break  # as in a killed process: round 4 is lost if nothing closes the generator
    left = list(make_rounds(simulation(method), Checkpoints(tmp_path), every=3))
    assert left[0].round in (3, 4)
    assert (left[-1].digest(), left[-1].history) == (whole.digest(), whole.history)
    again = list(make_rounds(simulation(method), Checkpoints(tmp_path), every=3))
    assert [state.round for state in again] == [ROUNDS], "a finished run makes no round"


def test_a_run_whose_only_checkpoint_is_damaged_begins_again(tmp_path: Path) -> None:
    """The states of its clients are zeros after round 3; that is found when one of them is drawn again."""
    whole = [state for state in make_rounds(simulation())][-1]
    states = make_rounds(simulation(), Checkpoints(tmp_path), every=100)
    assert [state.round for state in itertools.islice(states, 4)] == [0, 1, 2, 3]
    states.close()
    assert Checkpoints(tmp_path).list_rounds() == [3]
    for path in tmp_path.glob("client-*"):
        path.write_bytes(bytes(path.stat().st_size))
    store = Recorded(tmp_path)
    made = list(itertools.islice(make_rounds(simulation(), store, every=1), 20))
    assert 0 in [state.round for state in made[1:]]
    assert (made[-1].digest(), made[-1].history) == (whole.digest(), whole.history)
    assert store.asked[-ROUNDS:] == list(range(1, ROUNDS + 1)), "of those rounds, too, that it had saved before"


def test_an_interrupt_that_was_swallowed_ends_the_run_after_its_round(tmp_path: Path) -> None:
    """SIGTERM in round 4, whose KeyboardInterrupt is lost, as in a callback of a library."""
    states = make_rounds(simulation(), Checkpoints(tmp_path), every=100)
    assert [next(states).round for _ in range(5)] == [0, 1, 2, 3, 4]
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with treat_sigterm_as_interrupt():
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                next(states)
    finally:
        signal.signal(signal.SIGINT, before)
    assert Checkpoints(tmp_path).list_rounds() == [4]


def test_ctrl_c_in_a_test_leaves_no_round_without_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 4 is made and being tested: it is made again, and the history is that of an unbroken run."""
    running = simulation()
    evaluate = running.backend.evaluate

    def interrupted(*arguments: Any) -> Any:
        if running.state.round == 4:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(running.backend, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(make_rounds(running, Checkpoints(tmp_path), every=100))
    assert Checkpoints(tmp_path).list_rounds() == [3]
    last = list(make_rounds(simulation(), Checkpoints(tmp_path)))[-1]
    assert [row["round"] for row in last.history] == [2, 4, 6, 7]


def test_a_checkpoint_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = make_rounds(simulation(), Checkpoints(tmp_path), every=3)
    for state in states:
        if state.round == 3:
            monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
            break
    with pytest.raises(UserError) as caught:
        list(states)
    assert str(caught.value) == (
        f"{tmp_path}: the checkpoint of round 6 cannot be written: No space left on device; that of round 3 stays; "
        "make room and run the same command again to resume"
    )
    assert Checkpoints(tmp_path).list_rounds() == [3]


def test_a_callback_can_stop_a_run_whose_result_is_kept(tmp_path: Path) -> None:
    """Rounds 1 to 6 are evaluated; stopped in 3, it goes on to the undisturbed end; refused are other answers, and
    a second call with the same checkpoints meanwhile."""
    changed = {"training": {"rounds": 6, "local_steps": 1}, "evaluation": {"every": 1}}
    config = simulation().problem.config.resolve() | changed
    seen: list[float] = []

    def third(row: dict[str, float]) -> object:
        seen.append(row["round"])
        return fedray.STOP if row["round"] == 3 else None

    stopped = fedray.simulate(config, evaluated=third, checkpoints=tmp_path)
    assert (stopped.state.round, len(stopped.history), seen) == (3, 3, [1, 2, 3])
    assert "3 of 6 rounds" in repr(stopped)
    for answer, found in (("stop", "'stop'"), (True, "True")):
        with pytest.raises(UserError, match=rf"^evaluated: returned {found}; None or fedray.STOP is required$"):
            fedray.simulate(config, evaluated=lambda row, answer=answer: answer)
    folder = f"another call trains with {tmp_path}; wait for it, or name another one"
    with pytest.raises(UserError, match=f"^simulate: checkpoints: {folder}"):
        fedray.simulate(config, evaluated=lambda _: fedray.simulate(config, checkpoints=tmp_path), checkpoints=tmp_path)
    whole = fedray.simulate(config, checkpoints=tmp_path)
    assert whole.summary()["state_sha256"] == fedray.simulate(config).summary()["state_sha256"]


def test_checkpoints_of_another_configuration_are_refused(tmp_path: Path) -> None:
    config = simulation().problem.config
    first, data = fedray.simulate(config, checkpoints=tmp_path), load_data(config.data)
    assert fedray.simulate(config, checkpoints=tmp_path, data=data).state.digest() == first.state.digest()
    data.y_train[:9] = 0
    said = r"^checkpoints: .* holds checkpoints of another configuration, seed or data set"
    with pytest.raises(UserError, match=said):
        fedray.simulate(config, checkpoints=tmp_path, data=data)
    for change in ({"seed": 1}, {"algorithm": {"name": "fedavg"}}, {"training": {"rounds": ROUNDS + 1}}):
        with pytest.raises(UserError, match=said):
            fedray.simulate(config.resolve() | change, checkpoints=tmp_path)
    (tmp_path / f"checkpoint-{ROUNDS}.json").write_bytes(b"")  # damage is still passed over
    assert fedray.simulate(config, checkpoints=tmp_path).state.digest() == first.state.digest()


WIDE = {"name": "mlp", "hidden": [256]}
HEAD, WHOLE = 256 * 10 + 10, 64 * 256 + 256 + 256 * 10 + 10
RANK2, TRAINING = 2 * (64 + 256), {"rounds": 3, "local_steps": 2, "batch_size": 16, "lr": 0.05}


def problem(model: dict[str, Any], algorithm: Any = "fedavg", **more: Any) -> Problem:
    """Two of four clients in each round."""
    return small.problem(algorithm, **{"clients": (4, 2), "model": model, "training": TRAINING, **more})


@each(
    ({}, WHOLE), ({"freeze": ["body"]}, HEAD), ({"lora": {"rank": 2}}, RANK2 + HEAD),
    ({"lora": {"rank": 2, "train": "B"}}, 2 * 256 + HEAD), ({"lora": {"rank": 2}, "freeze": ["head"]}, RANK2),
)  # fmt: skip
def test_everything_is_as_long_as_what_is_trained(options: dict[str, Any], trained: int, tmp_path: Path) -> None:
    """SCAFFOLD: x and c down, u_i and the change of c_i up; c with the server, c_i with each client, on disk, too."""
    result = run(problem({**WIDE, **options}, "scaffold"), InlineBackend())
    assert (len(result.theta), result.state.sent) == (trained, (2 * 3 * 4 * 2 * trained,) * 2)
    assert [v.numel() for v in result.state.server.values()] == [trained]
    assert {sum(v.numel() for v in load_state(s).values()) for s in result.state.clients.values()} == {trained}
    Checkpoints(tmp_path).save(result.state)
    saved = {path.name.partition("-")[0]: load_file(path).values() for path in tmp_path.glob("*.safetensors")}
    sizes = {kind: sum(tensor.numel() for tensor in tensors) for kind, tensors in saved.items()}
    assert sizes == {"server": 2 * trained, "client": trained}


def test_one_matrix_stays_with_its_client(tmp_path: Path) -> None:
    """FedSA-LoRA: A and the head are sent, 128 + 2,570 numbers; each client keeps its 512 of B, and x has none."""
    result = run(problem({**WIDE, "lora": {"rank": 2, "share": "A"}}), InlineBackend())
    assert result.state.sent == (2 * 3 * 4 * (2 * 64 + HEAD),) * 2
    views, first = (result.layout.views(x) for x in (result.state.theta, result.problem.build_network("cpu").theta))
    assert not views["1.lora_B"].any()
    assert not torch.equal(views["1.lora_A"], first["1.lora_A"])
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


@each(
    ({"seed": 1}, "checkpoint: belongs to other frozen weights than the model has here"),
    ({"freeze": ["head"]}, "checkpoint: holds 2,570 trained parameters, the model has 16,640"),
)
def test_a_checkpoint_of_other_weights_is_refused(other: dict[str, Any], line: str, tmp_path: Path) -> None:
    """As another version of PyTorch would draw them, or an older fedray kept them in theta."""
    Checkpoints(tmp_path).save(run(problem({**WIDE, "freeze": ["body"]}), InlineBackend()).state)
    state, model = Checkpoints(tmp_path).load(), {**WIDE, "freeze": other.get("freeze", ["body"])}
    with pytest.raises(UserError, match=line):
        Simulation(problem(model, seed=other.get("seed", 0)), InlineBackend()).restore(state)


@pytest.mark.parametrize("options", [{"freeze": ["body"]}, {"lora": {"rank": 2}}])
def test_a_saved_model_is_whole(options: dict[str, Any], tmp_path: Path) -> None:
    """All weights, by the model's names, and their hashes; it answers as the run's model was tested."""
    result = run(problem({**WIDE, **options}), InlineBackend())
    saved, network = load_file(result.save(tmp_path / "m.safetensors")), result.problem.build_network("cpu")
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
    model = {"name": "mlp", "hidden": [12], "lora": {"rank": 3, "alpha": 6}}
    training = {**TRAINING, "batch_size": "full", "rounds": 4, "weight_decay": 0.01, "momentum": 0.5}
    built = problem(model, clients=(3, 3), training=training)
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
