"""The Ray backend gives the inline backend's numbers: for any number of actors, killed or resumed, for all methods."""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import RayError

import fedray
from fedray.algorithms import ALGORITHMS
from fedray.cluster.object_states import ObjectState, assign_to_actors
from fedray.cluster.ray_backend import RayBackend
from fedray.cluster.resources import list_nodes, refuse_infeasible
from fedray.cluster.timeouts import FIRST, FLOOR, CallTimeouts
from fedray.common.errors import Diverged, UserError
from fedray.common.vectors import Vectors
from fedray.config import RunConfig, Runtime
from fedray.engine.disk.checkpoint import Checkpoints
from fedray.engine.disk.client_files import Version
from fedray.engine.loop import make_rounds, run
from fedray.engine.messages import Broadcast, PersonalEval
from fedray.engine.problem import Problem
from fedray.engine.process.backend import InlineBackend
from fedray.engine.server.simulation import Simulation
from tests import small
from tests.conftest import each
from tests.engine.test_guard import ASSIGNS, PATHS, WRITES
from tests.engine.test_guard import problem as writing
from tests.methods import METHODS
from tests.models.test_own_models import HERE as OWN
from tests.models.test_own_models import config as own_config
from tests.models.test_own_models import finish
from tests.probes.probed import everything


@pytest.fixture(scope="module")
def backends(local_ray: None) -> Iterator[dict[int, RayBackend]]:
    """Long-lived actors: 1 and 3 of them."""
    made = {n: RayBackend(Runtime(actors=n, cpus_per_actor=1)) for n in (1, 3)}
    yield made
    for backend in made.values():
        backend.close()


def config(algorithm: object, rounds: int = 3, personal: bool = False, **training: object) -> RunConfig:
    base = {"local_epochs": 1, "batch_size": 32, "weight_decay": 1e-3, "lr_decay": 0.9, "aggregation": "samples"}
    training = {"rounds": rounds, **base, "momentum": small.momentum(algorithm), **training}
    evaluation = {"every": 1, "personal": {"epochs": 1} if personal else None}
    sections: dict[str, Any] = {"training": training, "evaluation": evaluation, "runtime": {"device": "cpu"}}
    return small.config(algorithm, (12, 5), 16, 0.5, **sections)


@pytest.mark.parametrize("name", [*WRITES, *ASSIGNS])
def test_a_change_that_a_hook_may_not_make_is_refused_in_actors(name: str, backends: dict[int, RayBackend]) -> None:
    with pytest.raises(UserError, match=rf"class {name} .* (changes|assigns) "):
        run(writing(PATHS[name]), backends[3])


@pytest.mark.parametrize("name", METHODS)
def test_same_numbers_inline_in_actors_and_resumed(name: str, backends: dict[int, RayBackend], tmp_path: Path) -> None:
    problem = Problem.build(config(name, personal=ALGORITHMS[name].personal != "tuned" or not ALGORITHMS[name].generic))
    expected = small.outcome(Simulation(problem, InlineBackend()))
    for backend in backends.values():
        assert small.outcome(Simulation(problem, backend)) == expected
    first = Simulation(problem, InlineBackend())
    first.step()
    Checkpoints(tmp_path).save(first.state)
    resumed = Simulation(problem, backends[3])
    state = Checkpoints(tmp_path).load()
    assert state is not None
    resumed.restore(state)
    assert small.outcome(resumed) == expected


def test_actors_map_the_same_frozen_weights(backends: dict[int, RayBackend]) -> None:
    """1.6 MB of them, and B with its clients: the inline backend's numbers; each actor reads the file of their hash."""
    model = {"name": "mlp", "hidden": [1024, 320], "lora": {"rank": 2, "share": "A"}}
    problem = Problem.build(RunConfig.parse(config("fedavg", rounds=2, lr=0.01).resolve() | {"model": model}))
    expected = small.outcome(Simulation(problem, InlineBackend()))
    name = f"fedray-frozen-{os.getuid()}/{problem.build_network('cpu').frozen_sha256}"
    for backend in backends.values():
        assert small.outcome(Simulation(problem, backend)) == expected
        for actor in backend._actors:
            maps = ray.get(actor.__ray_call__.remote(lambda actor: Path("/proc/self/maps").read_text()))
            assert name in maps


@each(("fedavg", "pool"), ("fedrep", "clients"), ("fedproto", "clients"), ("every probe", ""))
def test_what_is_measured_is_the_same_with_actors(name: str, source: str, backends: dict[int, RayBackend]) -> None:
    """Tuned, kept and trained models. More than a chunk of 500 is held out, so that several actors share it."""
    changes = {
        "data": {"name": "digits", "validation": {"fraction": 0.5, "from": source}},
        "evaluation": {"every": 1, "train": name == "fedavg", "personal": {"epochs": [0, 1], "every": 1}},
    }
    asked = RunConfig.parse(config(name, rounds=2).resolve() | changes) if source else None
    problem = Problem.build(asked) if asked else everything()
    expected = small.outcome(Simulation(problem, InlineBackend()))
    assert ("validation_personal_accuracy" in expected[2][-1]) == (source == "clients")
    for backend in backends.values():
        assert small.outcome(Simulation(problem, backend)) == expected


KINDS_OF_STATE = ("fedcm", "moon", "fedtoga", "fedgen")
"""The server's; a client's; both and scratch vectors; uploads that are not summed. Actors of FedAvg, which has none,
and of SCAFFOLD, which has both, are replaced in the tests below. All others: make test-faults."""


@pytest.mark.parametrize(
    "name",
    [name if name in KINDS_OF_STATE else pytest.param(name, marks=pytest.mark.faults) for name in sorted(ALGORITHMS)],
)
def test_an_actor_killed_in_the_middle_of_a_round(name: str, backends: dict[int, RayBackend], tmp_path: Path) -> None:
    """A real SIGKILL. In round 2 the first client to finish its training takes its process along and the marker."""
    marker = tmp_path / "marker"
    problem = Problem.build(config({"name": f"tests.plugins:dying_{name}", "marker": str(marker)}))
    expected = small.outcome(Simulation(Problem.build(config(name)), InlineBackend()))
    simulation = Simulation(problem, backends[3])
    simulation.step()
    marker.touch()
    simulation.step()
    assert not marker.exists(), "nothing was killed"
    assert small.outcome(simulation) == expected


def test_an_actor_that_hangs_is_replaced_and_changes_nothing(
    backends: dict[int, RayBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A real SIGSTOP in round 2. The stopped process does not stay behind, holding memory or a GPU."""
    monkeypatch.setattr("fedray.cluster.timeouts.FLOOR", 5.0)
    marker = tmp_path / "marker"
    simulation = Simulation(Problem.build(config({"name": "tests.plugins:Hangs", "marker": str(marker)})), backends[3])
    simulation.step()
    marker.touch()
    simulation.step()
    assert "hangs; respawning it" in caplog.text
    assert small.outcome(simulation) == small.outcome(Simulation(Problem.build(config("fedavg")), InlineBackend()))
    stopped = int((tmp_path / "marker.pid").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{stopped}").exists():
        assert time.monotonic() < deadline, f"process {stopped} is still there"


@pytest.mark.faults
def test_an_actor_that_always_dies_is_given_up_with_a_word_about_memory(backends: dict[int, RayBackend]) -> None:
    simulation = Simulation(Problem.build(config("tests.plugins:Dies")), backends[1])
    with pytest.raises(RayError, match=r"actor 0 died \(ActorDiedError\), 5 times in one call of train; if mem"):
        simulation.step()


def test_divergence_names_the_same_client_for_any_number_of_actors(backends: dict[int, RayBackend]) -> None:
    problem = Problem.build(config("tests.plugins:NotANumber", rounds=6))
    found = []
    for backend in (InlineBackend(), *backends.values()):
        simulation = Simulation(problem, backend)
        with pytest.raises(Diverged) as caught:
            small.outcome(simulation)
        assert simulation.state.round == caught.value.round - 1, "the state is that of the round before"
        found.append(str(caught.value))
    assert len(set(found)) == 1
    assert "diverged in round 3, client" in found[0]


def keeping(algorithm: str) -> Problem:
    """A problem whose clients keep states."""
    training = {"rounds": 5, "local_epochs": 1, "batch_size": 32}
    evaluation = {"every": 2, "personal": {"epochs": 1, "every": 2}}
    return small.problem(algorithm, (10, 4), 12, 0.5, training=training, evaluation=evaluation)


@pytest.fixture
def staying(backends: dict[int, RayBackend], monkeypatch: pytest.MonkeyPatch) -> dict[int, RayBackend]:
    """Actors that leave every state in the object store, however small."""
    for backend in backends.values():
        monkeypatch.setattr(backend, "stays_from", 1)
    return backends


@pytest.mark.parametrize("method", ["scaffold", "fedrep", "local-only"])
def test_the_same_numbers_where_states_stay(method: str, staying: dict[int, RayBackend], tmp_path: Path) -> None:
    """Inline, with 1 and 3 actors, and from a checkpoint that the actors wrote, on other numbers of actors."""
    built = keeping(method)
    expected = small.outcome(Simulation(built, InlineBackend()))
    for actors, backend in staying.items():
        running = Simulation(built, backend)
        assert small.outcome(running) == expected
        assert running.state.clients
        assert all(isinstance(kept, ObjectState) for kept in running.state.clients.values()), actors
    half = make_rounds(Simulation(built, staying[3]), Checkpoints(tmp_path), every=2)
    assert [next(half).round for _ in range(4)] == [0, 1, 2, 3]
    half.close()
    for backend in (InlineBackend(), staying[1]):
        resumed = Simulation(built, backend)
        found = Checkpoints(tmp_path).load()
        assert found is not None
        assert found.round == 3
        resumed.restore(found)
        assert small.outcome(resumed) == expected


def test_states_survive_the_actors_that_computed_them(staying: dict[int, RayBackend]) -> None:
    """SIGKILL of the only actor between two rounds: references are the trial's, the bytes the node's."""
    built, backend = keeping("scaffold"), staying[1]
    running = Simulation(built, backend)
    for _ in range(2):
        running.step()
    (actor,) = backend._actors
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    assert small.outcome(running) == small.outcome(Simulation(built, InlineBackend()))


def test_a_full_disk_is_the_same_error_from_an_actor(staying: dict[int, RayBackend], tmp_path: Path) -> None:
    running = Simulation(keeping("scaffold"), staying[3])
    running.step()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(OSError, match="Not a directory"):
        staying[3].write_states(str(tmp_path / "file"), [Version(i, 1, s) for i, s in running.state.clients.items()])


MODELS = {"Normalised": f"{OWN}:CastingMethod", "Counting": "fedsam"}
"""Model -> its method; the others' is FedAvg."""


@pytest.mark.parametrize("model", ["Cast", "Everything", "Masked", *MODELS])
def test_one_theta_through_all_doors(model: str, backends: dict[int, RayBackend]) -> None:
    given = own_config(model, MODELS.get(model, "fedavg"))
    expected = finish(InlineBackend(), given)
    np.random.seed(7)
    random.seed(7)
    assert finish(InlineBackend(), given) == expected
    for open_block in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=open_block):
            result = fedray.simulate(given)
        assert result.summary()["theta_sha256"] == expected[0]
    for count in backends:
        assert finish(backends[count], given) == expected
    assert expected[1][-1] > 20


@pytest.mark.parametrize("kind", ["layer", "buffer", "attribute"])
def test_weights_that_differ_between_processes_are_refused(kind: str, backends: dict[int, RayBackend]) -> None:
    for backend in (InlineBackend(), *backends.values()):
        with pytest.raises(UserError, match=rf"^model\.name: {OWN}:Unkeyed begins with other weights in each process"):
            finish(backend, own_config("Unkeyed", kind=kind))


def test_why_a_new_actor_cannot_be_opened_is_said(backends: dict[int, RayBackend]) -> None:
    """Its GPU may have no memory left, say; here it is sent a device that it does not have. The last test of these
    actors: it leaves the first one without a process."""
    simulation = Simulation(Problem.build(config("fedavg")), backends[1])
    simulation.step()
    packed, *rest = backends[1]._setup
    run = RunConfig.unpack(packed)
    run = run.model_copy(update={"runtime": run.runtime.model_copy(update={"device": "cuda"})})
    backends[1]._setup = run.pack(), *rest  # type: ignore[assignment]
    ray.kill(backends[1]._actors[0])
    with pytest.raises(UserError, match=r"^runtime\.device: no CUDA device is visible"):
        simulation.step()


def test_two_actors_share_a_gpu_and_a_third_is_refused(local_ray: None) -> None:
    """The GPU is logical: placement is Ray's, the numbers are made on the CPU (`device: cpu`)."""
    shared = {"actors": 2, "cpus_per_actor": 0.5, "gpus_per_actor": 0.5, "device": "cpu"}
    settings = config("fedavg").resolve() | {"runtime": shared}
    backend = RayBackend(Runtime(**shared))
    try:
        there = run(Problem.build(RunConfig.parse(settings)), backend).summary()
        free = ray.available_resources().get("GPU", 0.0)
    finally:
        backend.close()
    here = run(Problem.build(config("fedavg")), InlineBackend()).summary()
    assert there["state_sha256"] == here["state_sha256"]
    assert free == pytest.approx(0.0)
    with pytest.raises(UserError, match=r"runtime\.actors: 3 actors of 0.5 CPU and 0.5 GPU each are asked for, 2 fit"):
        refuse_infeasible(Runtime(**(shared | {"actors": 3})), list_nodes())
    assert len(list_nodes()) == 1


def test_fractions_never_span_two_gpus_and_limits_follow_the_slowest_pace() -> None:
    """Two GPUs hold one actor of 0.6 each: 1.2 of 2.0 are used, yet a third does not fit on either."""
    refuse_infeasible(Runtime(actors=2, gpus_per_actor=0.6), [{"CPU": 8, "GPU": 2}])
    with pytest.raises(UserError, match="2 fit"):
        refuse_infeasible(Runtime(actors=3, gpus_per_actor=0.6), [{"CPU": 8, "GPU": 2}])
    # Times of 3/10 and 40/20 s per step: 20 x 2.0 x 30 = 1200 s for 30 steps, twice that in the second attempt.
    pace = CallTimeouts()
    assert pace.get_limit("train", 30, 0) == FIRST
    pace.note("train", 10, 3.0)
    assert pace.get_limit("train", 10, 0) == FLOOR, "20 x 0.3 x 10 = 60 s are below it"
    pace.note("train", 20, 40.0)
    pace.note("train", 20, 20.0)
    assert pace.get_limit("train", 30, 0) == 1200
    assert pace.get_limit("train", 30, 1) == 2400
    # Calls that take many times as long have a pace of their own: with probes, fine-tuned, of newcomers.
    kinds = {PersonalEval((n,), True, False, newcomers=new).kind for n in (0, 5) for new in (False, True)}
    one = Broadcast(round=0, lr=1.0, theta=torch.zeros(1), buffers=torch.zeros(0), message=Vectors(), cohort=1)
    assert len(kinds | {one.kind, replace(one, measured=True).kind}) == 6
    assert pace.get_limit("evaluate", 30, 0) == FIRST


def test_clients_stay_at_home_only_where_that_is_balanced() -> None:
    """3, 3, 2, 2, 2, 2 steps, longest first: 3 + 2 + 2 on either actor, of 14. With the second of 3 beside the first,
    of 7.7 at most: 3 + 3, then 2, 2, 2 to the other one and the last 2 to one of two with 6, which is 8."""
    loads = (2, 2, 2, 2, 3, 3)
    balanced = [[4, 0, 2], [5, 1, 3]]
    assert assign_to_actors(loads, [None] * 6, 2) == assign_to_actors(loads, [*[None] * 5, 0], 2) == balanced
    assert assign_to_actors(loads, [0, 0, 1, 1, 1, 0], 2) == [[5, 0, 1], [4, 2, 3]], "7 and 7, and all are at home"


def test_what_is_read_lies_in_the_store_and_not_in_the_reader(local_ray: None) -> None:
    """No copy: the tensor's memory is that of the store's array."""
    state = ObjectState(ray.put({"h": np.arange(1 << 18, dtype=np.float32)}))
    first, second = state.load(), state.load()
    assert isinstance(first, Vectors)
    assert first.h.data_ptr() == second.h.data_ptr()
    assert torch.equal(first.h, torch.arange(1 << 18, dtype=torch.float32))
