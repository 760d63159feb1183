"""The papers' sweeps: settings that a paper prints, and those that a D-number changes."""

import pytest

from fedray.config import RunConfig
from fedray.models import make_model_spec
from fedray.models.network import Network
from fedray.sweep.file.sweep import Sweep
from fedray.sweep.plan.draws import iter_points
from tests.shipped.papers import PAPERS, SEARCHES, SEEDS, SWEEPS, cells, runs

FEDTOGA_EXCEPTIONS = {"fedsmoo", "fedlesam", "fedlesam-s", "fedlesam-d"}


@pytest.mark.parametrize("name", [name for name in PAPERS if name.startswith("fedtoga/table") and name not in SEARCHES])
def test_fedtoga_learning_rates_decay_as_printed(name: str) -> None:
    """D-108: LeNet 0.997, ResNet-18 0.998, there 0.9995 for FedSMOO and FedLESAM's family; 0.9995 for 200 clients."""
    for run in runs(name):
        by_model = {"lenet": 0.997, "resnet18": 0.998}[run.model.name]
        exception = run.model.name == "resnet18" and run.algorithm.name in FEDTOGA_EXCEPTIONS
        assert run.training.lr_decay == (0.9995 if exception or run.clients.total == 200 else by_model)


def test_fedtoga_searched_decays_are_the_proxy_types() -> None:
    assert {run.training.lr_decay for run in runs("fedtoga/figure2")} == {0.997, 0.998, 0.9995}


def test_fedtoga_ablation_starts_from_table_1s_fedsam() -> None:
    """D-113: 48.08 on CIFAR-100 is in both tables."""
    assert {run.algorithm.rho for run in runs("fedtoga/table10") if run.algorithm.name == "fedsam"} == {0.01}


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


@pytest.mark.parametrize("name", PAPERS)
def test_headers_count_the_seeds(name: str) -> None:
    seeds = len({run.seed for run in runs(name)})
    header = (SWEEPS / f"{name}.yaml").read_text(encoding="utf-8").partition("\nname:")[0]
    assert seeds == SEEDS or "3 seeds" not in header


def test_searches_hold_what_was_chosen() -> None:
    """FedSOL's table 8: five of table 2 and MOON of table 4. FedTOGA's table 6: at least FedTOGA itself."""
    found = set(cells("fedsol/table8"))
    assert len(found & set(cells("fedsol/table2"))) == 5
    assert len(found & set(cells("fedsol/table2") + cells("fedsol/table4"))) == 6
    assert set(cells("fedtoga/table6")) & set(cells("fedtoga/table2"))


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


def test_fedsols_best_radius_is_inside_of_figure_4() -> None:
    """The best rho is between 0.5 and 2 in the paper."""
    radii = {run.algorithm.rho for run in runs("fedsol/figure4") if run.algorithm.name == "fedsol"}
    assert min(radii) < 0.5 < 2 < max(radii)


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


def test_v1_has_both_of_its_radii() -> None:
    """D-122: equation 4 is fixed, algorithm 1 adaptive, both on the whole model."""
    found = {
        (a.perturb, a.radius, a.rho) for a in (run.algorithm for run in runs("fedsol/v1_table1")) if a.name == "fedsol"
    }
    assert found == {("all", "fixed", 2), ("all", "adaptive", 2)}


def test_fedsam_clients_of_unequal_sizes() -> None:
    """D-119: log-normal sizes with both numbers of clients."""
    drawn = [run for run in runs("fedsam/clients") if run.partition.list_options().get("sigma")]
    assert {(run.clients.total, run.clients.per_round, run.partition.sigma) for run in drawn} == {
        (100, 20, 0.3),
        (50, 10, 0.3),
    }
    assert len(drawn) == 7 * 3 * 2 * SEEDS


def test_fedgelas_code_is_run_as_its_readme_says() -> None:
    """D-37, D-38, D-42, D-120: BatchNorm before the simplex, logits / 1e-5, averages by whole batches."""
    code = [run for run in runs("fedgela/printed") if getattr(run.algorithm, "feature_norm", "") == "model"]
    assert len(code) == 6 * SEEDS
    for run in code:
        assert run.model.feature_norm == "batch"
        assert run.algorithm.scale_w**0.5 == pytest.approx(1 / 1e-5)
        assert (run.training.aggregation, run.training.last_batch) == ("batches", "drop")


def test_sl_vit_is_resized_as_printed() -> None:
    assert {run.model.side for run in runs("fedsol/table3") if run.model.name == "sl_vit"} == {32}


def test_readings_that_a_paper_states_differently_name_their_option() -> None:
    """D-26, D-109, D-110, D-111: what is printed is one option away, and the header says which."""
    stated = {
        "fedsol/table": "`training.aggregation: uniform`",
        "fedtoga/table": "`clients.sampling: fixed`",
        "fedsam/table": "`training.local_steps: 10`",
    }
    for prefix, option in stated.items():
        for name in (name for name in PAPERS if name.startswith(prefix) and name not in SEARCHES):
            assert option in (SWEEPS / f"{name}.yaml").read_text(encoding="utf-8"), name


def test_loss_surfaces_take_runs_of_table_2() -> None:
    """One seed each. FedTOGA: Dirichlet 0.1 and 0.6, IID is new. FedSOL: all three."""
    assert len(set(cells("fedtoga/figure1")) & set(cells("fedtoga/table2"))) == 2
    assert len(set(cells("fedsol/figure8")) & set(cells("fedsol/table2"))) == 3


def test_the_small_bilateral_comparison_has_all_methods() -> None:
    """Table 2's 11, the two ablations, and FedSOL's table 9's other three."""
    points = list(iter_points(Sweep.load(SWEEPS / "fedgela/pcdd_smoke.yaml")))
    methods = {RunConfig.parse(point).algorithm.name for point in points}
    table = {RunConfig.parse(point).algorithm.name for point in iter_points(Sweep.load(SWEEPS / "fedgela/table2.yaml"))}
    assert methods == table | {"fedge", "fedavg-la", "perfedavg", "knnper", "local-only"}
    assert len(set(cells("fedgela/pcdd_smoke"))) == len(points) == 16 * SEEDS


@pytest.mark.parametrize("name", PAPERS)
def test_last_ten_rounds_are_averaged_on_a_gpu(name: str) -> None:
    """All of them are evaluated, so `last10_*` is also the mean of the last ten evaluations. Only of FedGELA's 20
    rounds (table 11) the last four count: a fifth.
    """
    for point in iter_points(Sweep.load(SWEEPS / f"{name}.yaml")):
        run = RunConfig.parse(point)
        rounds, count = run.training.rounds, 4 if name == "fedgela/table11" else 10
        assert run.evaluation.list_averaged(rounds) == tuple(range(rounds - count + 1, rounds + 1))
        assert run.runtime.torch_device == "cuda"
