"""The identity of a cell: what a configuration says beyond the defaults; and the learning rate of each round."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedray.algorithms import ALGORITHMS, Algorithm
from fedray.algorithms.feddyn import DynamicRegularisation, FedDyn
from fedray.algorithms.fedsol import FedSOL
from fedray.config import RunConfig, Training
from fedray.models import MODELS
from fedray.partitions import PARTITIONS
from fedray.probes import PROBES
from tests import small
from tests.conftest import each

LEAST = {"data": "digits", "partition": "iid", "model": "mlp", "algorithm": "fedavg"}
REQUIRED = {"alpha": 0.5, "classes": 2, "shards": 2, "path": __file__, "architecture": "test_resnet"}
"""Values of the options that have no default."""
MEASURED = {"lambda": "fedsol", "adaptation": "fedgela"}
"""Probes that not every method admits."""
MOON = {"name": "fedsol", "proximal": "moon"}
GOLDEN = [json.loads(line) for line in Path(__file__).with_name("identities.jsonl").read_text().splitlines()]


def identity(**sections: Any) -> dict[str, Any]:
    return RunConfig.parse(LEAST | sections).make_identity("d")


def test_what_is_beyond_the_defaults_and_contents_enter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedray.config.run.NUMERICS", 7)
    assert identity() == {
        "numerics": 7, "data": {"name": "digits", "digest": "d"}, "partition": {"name": "iid"},
        "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"},
    }  # fmt: skip
    found = identity(algorithm={"name": "fedprox", "mu": 0.5}, training={"lr": 0.2}, seed=3)
    assert found == identity() | {"algorithm": {"name": "fedprox", "mu": 0.5}, "training": {"lr": 0.2}, "seed": 3}
    assert RunConfig.parse(LEAST).hash_cell("d") != RunConfig.parse(LEAST).hash_cell("e")
    assert identity(data="digits") == identity(data={"name": "digits", "mean": [0.5], "std": [0.5]})
    held_out = identity(data={"name": "digits", "validation": {"fraction": 0.2}})["data"]
    assert held_out == {"name": "digits", "digest": "d", "validation": {"fraction": 0.2}}
    for name, content in {"one": b"a", "same": b"a", "other": b"b"}.items():
        (tmp_path / name).write_bytes(content)
    one, same, other = (identity(model={"name": "mlp", "init": str(tmp_path / k)}) for k in ("one", "same", "other"))
    assert one == same != other


SECTIONS = [
    *({"algorithm": name} for name in ALGORITHMS),
    *({"model": {"name": name} | {key: REQUIRED[key] for key in MODELS[name].list_required()}} for name in MODELS),
    *({"partition": {"name": n} | {key: REQUIRED[key] for key in PARTITIONS[n].list_required()}} for n in PARTITIONS),
    *({"evaluation": {"probes": [name]}, "algorithm": MEASURED.get(name, "fedavg")} for name in PROBES),
    {"evaluation": {"personal": {}}}, {"data": {"name": "digits", "validation": {}}}, {"training": {"local_steps": 3}},
    {"training": {"aggregation": "feddisco", "server_step": "fedexp"}}, {"runtime": {"gpus_per_actor": 0.5}},
]  # fmt: skip


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_a_written_default_is_the_same_cell_as_an_unwritten_one(section: dict[str, Any]) -> None:
    config = RunConfig.parse(LEAST | {"clients": {"total": 4, "per_round": 4}, "model": "lenet"} | section)
    assert RunConfig.parse(config.resolve()).hash_cell("d") == config.hash_cell("d")


@each(
    ({"algorithm": "fedavg"}, {"algorithm": {"name": "fedavg"}}, True),
    ({"training": {"local_epochs": 5}}, {"training": {"local_epochs": None}}, True),
    ({"training": {"local_steps": 5}}, {"training": {"local_steps": 5, "local_epochs": None}}, True),
    ({"model": {"name": "mlp", "hidden": [200]}}, {"model": {"name": "mlp", "hidden": (200,)}}, True),
    ({"algorithm": MOON}, {"algorithm": {"name": "fedsol", "proximal": {"name": "moon", "mu": 1}}}, True),
    ({"algorithm": MOON}, {"algorithm": MOON | {"perturb": "all"}}, True),
    ({"runtime": {"device": "cpu"}}, {"runtime": {"device": "auto", "deterministic": False}}, True),
    ({"runtime": {"gpus_per_actor": 1}}, {"runtime": {"gpus_per_actor": 0.5, "device": "cuda"}}, True),
    ({"runtime": {"actors": 4, "backend": "inline", "checkpoint_every": 3, "cpus_per_actor": 2}}, {}, True),
    ({"clients": {"per_round": 1}}, {"clients": {"per_round": 1.0}}, False),
    ({"evaluation": {"personal": {}}}, {}, False),
    ({"data": {"name": "digits", "validation": {}}}, {}, False),
    ({"algorithm": MOON}, {"algorithm": {"name": "fedsol", "perturb": "all"}}, False),
    ({"runtime": {"threads": 2}}, {}, False),
    ({"runtime": {"gpus_per_actor": 1}}, {}, False),
    ({"runtime": {"gpus_per_actor": 1, "deterministic": False}}, {"runtime": {"gpus_per_actor": 1}}, False),
    ({"training": {"channels_last": True}}, {}, False),
    ({"evaluation": {"probes": ["drift"]}}, {}, False),
)
def test_runs_are_one_cell_if_only_written_differently(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    assert not same or identity(**one) == identity(**other)
    assert (RunConfig.parse(LEAST | one).hash_cell("d") == RunConfig.parse(LEAST | other).hash_cell("d")) is same


def test_a_revision_enters_the_cells_of_a_class_and_of_what_is_built_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an option's value those that use it, that of a section also where all is default."""
    algorithms: list[Any] = ["fedavg", "feddyn", "fedtoga", {"name": "fedsol", "proximal": "feddyn"}, "fedsol"]
    assert not any("revisions" in identity(algorithm=one) for one in algorithms)
    monkeypatch.setattr(DynamicRegularisation, "revision", 1)
    monkeypatch.setattr(FedDyn, "revision", 2)
    found = [identity(algorithm=one).get("revisions") for one in algorithms]
    assert found == [None, {"feddyn": 3}, {"fedtoga": 1}, {"feddyn": 3}, None]
    monkeypatch.setattr(FedSOL, "count_revisions", lambda method: int(method.radius == "fixed"))
    assert identity(algorithm={"name": "fedsol", "radius": "fixed"})["revisions"] == {"fedsol": 1}
    assert "revisions" not in identity(algorithm="fedsol")
    for name in ("fedper", "fedrep", "lg-fedavg"):
        assert identity(algorithm={"name": name, "newcomer": "average"})["revisions"] == {name: 1}
        assert "revisions" not in identity(algorithm=name)
    for variate_lr, revisions in (("first", {"RunConfig": 1}), ("round", None)):
        form = {"name": "scaffold@forms", "variate_lr": variate_lr}
        for algorithm in (form, {"name": "fedsol", "proximal": form}):
            assert identity(algorithm=algorithm, training={"warmup": 1}).get("revisions") == revisions
            assert "revisions" not in identity(algorithm=algorithm)
    monkeypatch.setattr(Training, "revision", 2)
    assert identity()["revisions"] == {"Training": 2}


def test_a_packed_run_is_the_same_and_cells_keep_their_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, point in GOLDEN:
        run = RunConfig.parse(point)
        assert RunConfig.unpack(run.pack()) == run
    # As 0.2 hashes them: cells of one section and kind of value each. Other hashes leave finished cells unfound.
    monkeypatch.setattr("fedray.config.run.NUMERICS", 1)
    assert {cell: RunConfig.parse(point).hash_cell("d") for cell, point in GOLDEN} == {cell: cell for cell, _ in GOLDEN}


class Own(Algorithm):
    """A user's own method, which exchanges parameters alone."""

    mu: float = 1.0


@pytest.mark.parametrize("algorithm", ["fedprox", {"name": f"{__name__}:Own", "mu": 0.5}])
@pytest.mark.parametrize(("share", "kept"), [("A", "lora_B"), ("B", "lora_A")])
def test_a_method_whose_clients_keep_a_matrix_is_sent_and_parsed_again(algorithm: Any, share: str, kept: str) -> None:
    """Actors get a packed run; a section of a run may be the component of another one."""
    raw = LEAST | {"algorithm": algorithm, "model": {"name": "mlp", "lora": {"share": share}}}
    run = RunConfig.parse(raw)
    for other in (RunConfig.unpack(run.pack()), RunConfig.parse(raw | {"algorithm": run.algorithm})):
        assert other == run
        assert (other.algorithm.shares, other.algorithm.keeps) == (f"not_{kept}", kept)
    assert type(run.algorithm).keeps == "none"


def test_fedexp_scales_epsilon_by_the_rate_after_the_warm_up() -> None:
    """In the warm-up's first round the rate is half of 0.4, so ε counts a quarter. Such cells have another hash."""
    found = []
    for epsilon, training in ((0.8, {"lr": 0.4, "warmup": 1}), (0.2, {"lr": 0.2})):
        method, steps = {"name": "fedexp", "epsilon": epsilon}, {"rounds": 2, "local_epochs": 1, **training}
        running = small.simulation(method, training=steps)
        running.step()
        found.append((running.state.theta.tolist(), running.problem.config.count_revisions()))
    assert (found[0][0], found[0][1] - found[1][1]) == (found[1][0], 1)


def rates(rounds: int, **options: Any) -> list[float]:
    """η_t of every round, η = 1."""
    training = Training(lr=1.0, rounds=rounds, **options)
    return [training.compute_lr(t) for t in range(rounds)]


def test_schedules_begin_after_the_warm_up_change_from_round_to_round_and_are_shown() -> None:
    """Cosine, T = 4: (1 + cos(π t/4))/2 at 0, 45, 90 and 135 degrees; the last is (1 - √½)/2, above 0."""
    assert rates(4, lr_schedule="cosine") == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2], rel=1e-12)
    assert rates(6, lr_schedule="step", lr_step={"every": 2, "factor": 0.5}) == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert rates(3, lr_decay=0.5) == [1, 0.5, 0.25]
    # W = 3: quarters of η, then the schedule of the other rounds: cosine over 4 rounds, drops counted from round 3.
    start = [0.25, 0.5, 0.75]
    assert rates(7, lr_schedule="cosine", warmup=3) == [*start, *rates(4, lr_schedule="cosine")]
    assert rates(6, lr_decay=0.5, warmup=3) == [*start, 1, 0.5, 0.25]
    assert rates(6, lr_schedule="step", lr_step={"every": 1}, warmup=3) == pytest.approx([*start, 1, 0.1, 0.01])
    # `lr_decay` itself, not a quotient of two roundings; 0.5/0.25 in the warm-up; (1 + √½)/2 after cosine's first.
    assert [Training(lr=0.3, lr_decay=0.9).compute_lr_change(t) for t in (0, 50)] == [0.9, 0.9]
    assert Training(rounds=9, warmup=3, lr_decay=0.9).compute_lr_change(0) == 2
    vanishing = Training(rounds=200, lr_schedule="step", lr_step={"every": 1, "factor": 0.001})
    assert (vanishing.compute_lr(150), vanishing.compute_lr_change(150)) == (0, 1)
    assert Training(rounds=4, lr_schedule="cosine").compute_lr_change(0) == pytest.approx((1 + 0.5**0.5) / 2)
    training = {"rounds": 3, "lr": 0.2, "lr_schedule": "cosine", "warmup": 1, "local_epochs": 1}
    _, _, rows = small.outcome(small.simulation(training=training, evaluation={"every": 1}))
    assert [row["lr"] for row in rows] == pytest.approx([0.1, 0.2, 0.1])
