"""The papers' sweeps: their cells counted against the papers and shared between tables, settings that a paper prints
and those that a D-number changes; their smoke versions run. In one file, so that one process expands each sweep once.
"""

import math
from typing import Any

import pytest

import fedray
from fedray.common.errors import Diverged
from fedray.config import RunConfig
from fedray.models import make_model_spec
from fedray.models.network import Network
from fedray.sweep.file.points import with_key
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.cells import make_label
from fedray.sweep.plan.draws import find_axes
from tests.shipped.papers import (
    CELLS,
    NO_TABLES,
    PAPER_FOLDERS,
    PAPERS,
    SEARCHES,
    SEEDS,
    SWEEPS,
    TRAININGS,
    cells,
    points,
    runs,
)


@pytest.mark.parametrize("name", ["fedsol/table2", "fedtoga/table1", "fedgela/table2"])
def test_labels_are_readable_and_tell_cells_apart(name: str) -> None:
    sweep = Sweep.load(SWEEPS / f"{name}.yaml")
    varied = [key for key, varies in find_axes(sweep).items() if varies]
    labels = [make_label(point, run, varied) for point, run in zip(points(name), runs(name), strict=True)]
    assert len(set(labels)) == len(labels)
    assert not any("{" in text or len(text) > 160 for text in labels)


def test_every_file_is_counted() -> None:
    found = {str(p.relative_to(SWEEPS).with_suffix("")) for p in SWEEPS.glob("fed*/*.yaml")}
    assert {name for name in found if name.startswith(PAPER_FOLDERS)} - NO_TABLES == set(CELLS)


@pytest.mark.parametrize("name", PAPERS)
def test_cells_are_the_papers(name: str) -> None:
    assert Sweep.load(SWEEPS / f"{name}.yaml").name == name
    assert len(cells(name)) == CELLS[name]
    assert len(set(cells(name))) == CELLS[name], "two points are the same run"


@pytest.mark.parametrize("paper", TRAININGS)
def test_tables_share_their_runs(paper: str) -> None:
    """The number of different trainings behind a paper's tables, as counted from the paper."""
    tables = [name for name in PAPERS if name.startswith(f"{paper}/table") and name not in SEARCHES]
    assert len(set().union(*(cells(name) for name in tables))) == TRAININGS[paper]


def smoke_points(name: str) -> list[dict[str, Any]]:
    return [with_key(point, "runtime.backend", "inline") for point in points(name, smoke=True)]


@pytest.mark.parametrize("name", [*PAPERS, *sorted(NO_TABLES)])
def test_smoke_cells(name: str) -> None:
    """Every one is a valid run on the CPU."""
    assert len(set(cells(name, smoke=True))) == len(points(name, smoke=True)), "two points are the same run"
    assert {run.runtime.torch_device for run in runs(name, smoke=True)} == {"cpu"}


@pytest.mark.parametrize("paper", PAPER_FOLDERS)
def test_a_smoke_cell_of_each_table(paper: str) -> None:
    """The first of each; `make test-slow` makes all, of figures and searches, too."""
    for name in [name for name in PAPERS if name.startswith(f"{paper}table") and name not in SEARCHES]:
        assert math.isfinite(fedray.simulate(smoke_points(name)[0]).history[-1]["test_loss"]), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAPERS, *sorted(NO_TABLES)])
def test_all_smoke_cells(name: str) -> None:
    """All of them, one after the other; with a radius or lr out of range one may diverge, which must be reported."""
    finished = 0
    for point in smoke_points(name):
        try:
            finished += math.isfinite(fedray.simulate(point).history[-1]["test_loss"])
        except Diverged as error:
            print(f"{name}: {point['algorithm']}: {error}")
    assert finished > 0.8 * len(smoke_points(name))


FEDTOGA_EXCEPTIONS = {"fedsmoo", "fedlesam", "fedlesam-s", "fedlesam-d"}


@pytest.mark.parametrize("name", [name for name in PAPERS if name.startswith("fedtoga/table") and name not in SEARCHES])
def test_fedtoga_learning_rates_decay_as_printed(name: str) -> None:
    """D-108: LeNet 0.997, ResNet-18 0.998, there 0.9995 for FedSMOO and FedLESAM's family; 0.9995 for 200 clients."""
    for run in runs(name):
        by_model = {"lenet": 0.997, "resnet18": 0.998}[run.model.name]
        exception = run.model.name == "resnet18" and run.algorithm.name in FEDTOGA_EXCEPTIONS
        assert run.training.lr_decay == (0.9995 if exception or run.clients.total == 200 else by_model)


def test_the_trained_column_is_table_2s_on_a_cpu() -> None:
    """Six methods with two seeds, on shards as the code cuts them; FedDyn and MOON have table 4's options.

    SCAFFOLD was trained with the code's divisor alone; table 2 also has its weights of the variates (D-32).
    """
    column = runs("fedsol/mnist_column")
    printed = [run for run in runs("fedsol/table2") if run.data.name == "mnist" and run.partition.name == "sharding"]
    apart = ("feddyn", "moon", "scaffold@forms")
    here = {run.hash_cell("") for run in column if run.algorithm.name not in apart}
    assert (len(column), len(here)) == (8 * 2, 5 * 2)
    trained, table = (
        next(run.algorithm.list_options() for run in of if run.algorithm.name == "scaffold@forms")
        for of in (column, printed)
    )
    assert trained | {"variates": "samples"} == table
    on_a_cpu = {"runtime": {}, "partition": {"name": "sharding", "shards": 2, "sizes": "by_class"}}
    assert here <= {RunConfig.parse(run.resolve() | on_a_cpu).hash_cell("") for run in printed}
    methods, others = ([run.algorithm for run in of] for of in (column, runs("fedsol/table4")))
    assert all(method in others for method in methods if method.name in ("feddyn", "moon"))


def test_fedtoga_searches_the_global_learning_rate_of_every_type() -> None:
    """Table 6: 0.01, 0.1 and 1 for the SGD type and the proxy type; the adaptive type has it as its own `lr`."""
    found: dict[str, set[float]] = {}
    for run in runs("fedtoga/table6"):
        lr = run.algorithm.lr if run.algorithm.name in ("fedadam", "fedyogi") else run.training.server_lr
        found.setdefault(run.algorithm.name, set()).add(lr)
    assert {name for name, rates in found.items() if rates == {0.01, 0.1, 1}} == {
        "fedavg",
        "fedadam",
        "fedyogi",
        "fedtoga",
    }


def test_fedsam_searches_the_printed_sets() -> None:
    """E.2: lr 10^-0.5 to 10^-2; MimeLite's own lr is the printed one times its weight of the fresh gradient."""
    by_method: dict[str, set[float]] = {}
    for run in runs("fedsam/search_e2"):
        fresh = 1 - run.algorithm.beta if run.algorithm.name == "mimelite" else 1.0
        by_method.setdefault(run.algorithm.name, set()).add(float(f"{run.training.lr / fresh:.2g}"))
        assert run.training.weight_decay * fresh == pytest.approx(1e-3)
        assert run.training.clip_norm * fresh == pytest.approx(10)
    assert len(by_method) == 7
    assert set(map(frozenset, by_method.values())) == {frozenset({0.32, 0.1, 0.032, 0.01})}


@pytest.mark.parametrize("name", [name for name in PAPERS if name.startswith("fedgela/")])
def test_fedgela_clients_have_a_whole_batch(name: str) -> None:
    """The paper takes Dirichlet 0.2 for 50 clients so that each has one. At 10000 all have the same anyway."""
    for run in runs(name):
        if run.partition.name == "dirichlet" and run.partition.alpha < 1:
            assert run.partition.min_size >= run.training.batch_size


@pytest.mark.parametrize("name", [name for name in PAPERS if name.startswith("fedsam/table")])
def test_fedsam_tests_the_global_model_on_every_clients_own_samples(name: str) -> None:
    """Training and validation accuracy with their deviation over clients are 84 of the printed values."""
    for run in runs(name):
        personal = run.evaluation.personal
        assert personal is not None
        assert personal.train
        assert personal.tuned == (0,)


@pytest.mark.parametrize("name", [name for name in PAPERS if name.startswith("fedgela/table")])
def test_fedgela_measures_ga_whenever_a_global_model_gives_it(name: str) -> None:
    """The paper takes the best during training; stored models every 5 rounds, fine-tuned ones with PA."""
    for run in runs(name):
        if run.evaluation.personal is not None:
            assert run.evaluation.every <= {"fedproto": 5, "fedrep": 10, "fedbabu": 10}.get(run.algorithm.name, 1)


def test_fixed_radii_of_the_propositions_are_those_of_appendix_g() -> None:
    """A fixed ρ corresponds to an adaptive ρ √P times as large: 0.5 to 2 on the head, 2 on the whole model."""
    spec = make_model_spec("mcmahan_cnn")
    layout = Network(spec.build((3, 32, 32), 10)).layout
    parameters = {"head": int(layout.head.sum()), "all": len(layout.head)}
    assert parameters == {"head": 5130, "all": 2156490}
    adaptive: dict[str, list[float]] = {"head": [], "all": []}
    for run in runs("fedsol/propositions"):
        if getattr(run.algorithm, "radius", "") == "fixed" and run.seed == 0:
            of = run.algorithm.perturb
            adaptive[of].append(round(run.algorithm.rho * parameters[of] ** 0.5, 3))
    assert adaptive == {"head": [0.5, 1, 1.5, 2], "all": [2]}


def test_fedgelas_code_is_run_as_its_readme_says() -> None:
    """D-37, D-38, D-42, D-120: BatchNorm before the simplex, logits / 1e-5, averages by whole batches."""
    code = [run for run in runs("fedgela/printed") if getattr(run.algorithm, "feature_norm", "") == "model"]
    assert len(code) == 6 * SEEDS
    for run in code:
        assert run.model.feature_norm == "batch"
        assert run.algorithm.scale_w**0.5 == pytest.approx(1 / 1e-5)
        assert (run.training.aggregation, run.training.last_batch) == ("batches", "drop")


@pytest.mark.parametrize("name", PAPERS)
def test_last_ten_rounds_are_averaged_on_a_gpu(name: str) -> None:
    """All of them are evaluated, so `last10_*` is also the mean of the last ten evaluations. Only of FedGELA's 20
    rounds (table 11) the last four count: a fifth.
    """
    for run in runs(name):
        rounds, count = run.training.rounds, 4 if name == "fedgela/table11" else 10
        assert run.evaluation.list_averaged(rounds) == tuple(range(rounds - count + 1, rounds + 1))
        assert run.runtime.torch_device == "cuda"
