"""Cells keep their hashes: `golden_cells.jsonl` holds points as commit 2f53a38 hashed them, one of every sweep and of
every algorithm, model, partition and section with its options."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedray.algorithms.feddyn import FedDyn
from fedray.config import RunConfig
from fedray.sweep.grid import Sweep

MNIST_COLUMN = {
    "1f16cb5790f64ec1",
    "b5742904b8d5f09d",
    "3337bb59e2ee8065",
    "21aa1145b40a9113",
    "7a1c41f12c302042",
    "3150303c0e214dc3",
    "4e6007dc056aefce",
    "3d3399fcde06a3b6",
    "fe384c4a34127809",
    "55eaea5548804279",
    "625daa6307a82932",
    "802352ecf8249401",
    "a62a26a5dd00f501",
    "71874a480ed1056a",
    "5aa29cf0644039fd",
    "e619954185fb29b8",
}
GOLDEN = [json.loads(line) for line in Path(__file__).with_name("golden_cells.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def _no_init_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedray.config._file_digest", lambda key, path: "filedigest")


def test_cells_hashed_by_commit_2f53a38_are_found() -> None:
    assert len(GOLDEN) == 129
    changed = [(old, point) for old, point in GOLDEN if RunConfig.parse(point).cell("d") != old]
    assert not changed, f"{len(changed)} cells have new hashes; first: {changed[:1]}"


def test_a_corrected_method_gets_new_hashes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedDyn, "revision", 1)
    changed = [point["algorithm"] for old, point in GOLDEN if RunConfig.parse(point).cell("d") != old]
    names = {name if isinstance(name, str) else name["name"] for name in changed}
    assert names == {"feddyn", "fedsol"}, "and what is built on it"
    assert all("feddyn" in str(algorithm) for algorithm in changed)


@pytest.mark.parametrize(
    ("algorithm", "revised"),
    [
        ("scaffold", False),
        ({"name": "scaffold", "variates": "samples"}, True),
        ({"name": "fedgamma", "variates": "samples"}, True),
        ({"name": "fedlesam-s", "variates": "samples"}, True),
        ({"name": "fedsol", "proximal": {"name": "scaffold", "variates": "samples"}}, True),
        ({"name": "fedsol", "proximal": "scaffold"}, False),
        ("fedas", True),
        ({"name": "fedrep", "newcomer": "average"}, True),
        ("fedrep", False),
        ({"name": "fedala", "layers": 3}, False),
        ({"name": "fedala", "layers": 4}, True),
        ({"name": "fedgloss", "rho": 0, "warmup": 2}, True),
        ({"name": "fedgloss", "rho": 0, "warmup": 1}, False),
        ({"name": "fedgloss", "rho": 0, "warmup": 2, "start_rho": 0}, False),
        ({"name": "fedgloss", "rho_l": 0, "warmup": 2}, False),
    ],
)
def test_only_cells_whose_numbers_were_wrong_have_new_hashes(algorithm: Any, revised: bool) -> None:
    assert is_revised(algorithm) == revised


def is_revised(algorithm: Any, model: Any = "lenet", **sections: Any) -> bool:
    point = {"data": "digits", "partition": "iid", "model": model, "algorithm": algorithm, **sections}
    return '"revision": 1' in json.dumps(RunConfig.parse(point).identity("d"))


BATCHED = {"name": "resnet18", "norm": "batch"}


@pytest.mark.parametrize(
    ("algorithm", "model", "revised"),
    [
        *((algorithm, BATCHED, True) for algorithm in ("fedntd", "fedavg-kl", "moon", "fedsol", "projection")),
        *((algorithm, BATCHED, False) for algorithm in ("fedavg", "fedrcl", "feddyn", "ditto")),
        ({"name": "fedsol", "proximal": "moon"}, BATCHED, True),
        ({"name": "fedsol", "proximal": "fedprox"}, BATCHED, False),
        ({"name": "projection", "proximal": "fedprox"}, BATCHED, False),
        ({"name": "fedsol", "strategy": "A0"}, BATCHED, False),
        ("fedntd", "lenet", False),
        ("fedntd", {"name": "resnet18", "norm": "batch_untracked"}, False),
        ("fedntd", {"name": "mlp", "feature_norm": "batch"}, True),
        ("fedntd", "efficientnet_b0", True),
        ("fedntd", "tests.algorithms.test_contract:Normalised", True),
    ],
)
def test_outputs_of_the_received_model_were_wrong_under_running_statistics(
    algorithm: Any, model: Any, revised: bool
) -> None:
    assert is_revised(algorithm, model) == revised


@pytest.mark.parametrize(
    ("algorithm", "revised"),
    [
        ("ditto", True),
        ({"name": "ditto", "personal_epochs": 1}, False),
        ("apfl", True),
        ("fedrod", True),
        ("fedavg", False),
        ("scaffold", False),
    ],
)
def test_second_models_had_the_first_ones_rate_where_that_decays_within_a_round(algorithm: Any, revised: bool) -> None:
    assert is_revised(algorithm, training={"lr_decay_within": 0.9}) == revised
    assert not is_revised(algorithm)


@pytest.mark.parametrize(
    ("probe", "model", "revised"),
    [("proximal", BATCHED, True), ("step", BATCHED, True), ("drift", BATCHED, False), ("step", "lenet", False)],
)
def test_so_were_those_of_probes(probe: str, model: Any, revised: bool) -> None:
    assert is_revised("fedavg", model, evaluation={"probes": [probe]}) == revised


@pytest.mark.parametrize(
    ("options", "training", "personal", "revised"),
    [
        ({}, {"momentum": 0.9}, {}, True),
        ({}, {"weight_decay": 1e-5}, {}, True),
        ({}, {"clip_norm": 10}, {"epochs": [0, 1]}, True),
        ({"inner_lr": 0.01}, {}, {}, True),
        ({}, {}, {}, False),
        ({}, {"momentum": 0.9}, {"epochs": 0}, False),
        ({"inner_lr": 0.01}, {"momentum": 0.9}, None, False),
    ],
)
def test_perfedavg_is_revised_where_its_fine_tuning_was_not_plain(
    options: dict[str, Any], training: dict[str, Any], personal: dict[str, Any] | None, revised: bool
) -> None:
    found = is_revised({"name": "perfedavg", **options}, training=training, evaluation={"personal": personal})
    assert found == revised
    assert not is_revised("fedavg", training=training, evaluation={"personal": personal})


def test_the_trained_cells_of_fedsols_mnist_column_are_found() -> None:
    """As commit f4f0a49 hashed them, for data with the digest `d`; cells of this sweep have been trained."""
    sweep = Sweep.load(Path(__file__).parents[1] / "sweeps" / "fedsol" / "mnist_column.yaml")
    assert MNIST_COLUMN - {RunConfig.parse(point).cell("d") for point in sweep.points()} == set()
