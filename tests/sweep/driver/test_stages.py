"""Tune, then test: which cells each stage has, and that the choice follows held-out samples, not the test set; a
search's draws, which keep their values, and the best of them."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedray.cells.metric import DEFAULT
from fedray.cells.record import Record
from fedray.cells.status import Ending, Status
from fedray.common.errors import UserError
from fedray.config import RunConfig
from fedray.sweep import stages
from fedray.sweep.draws import draw, iter_points
from fedray.sweep.plan import Plan, make_plan
from fedray.sweep.session import describe_results
from fedray.sweep.space import Searcher, format_range, is_at_edge
from fedray.sweep.stages import choose, describe_choices, make_final_stage, make_studies, make_tune_stage, run_file
from fedray.sweep.sweep import Sweep
from tests import small
from tests.conftest import each

TRAINING = {"rounds": 3, "local_epochs": 1, "batch_size": 50}
FILE: dict[str, Any] = {
    "name": "tuned",
    "base": small.sections(clients=(5, 2), training=TRAINING, evaluation={"every": 1}, runtime={}),
    "grid": {"partition": ["iid", {"name": "dirichlet", "alpha": 0.5, "min_size": 0}]},
    "cases": [
        {"algorithm": "fedavg"},
        {"algorithm": "fedprox", "search": {"algorithm.mu": {"choice": [0.001, 0.01, 0.1]}}},
    ],
    "search": {"training.lr": {"loguniform": [0.01, 1]}},
    "samples": 4,
    "searcher": {"name": "sobol", "seed": 1},
    "tune": {"seeds": [10, 11], "validation": {"fraction": 0.2}},
    "final": {"seeds": [0, 1, 2]},
}
pytestmark = pytest.mark.usefixtures("nowhere")


def file(**changes: Any) -> Sweep:
    return Sweep.model_validate(FILE | changes)


def with_outcomes(planned: Plan, value: Any) -> Plan:
    """The plan with a finished run of every cell. value: cell -> the metrics it has, None for a diverged one."""
    known = {}
    for cell in planned.sheet.cells.values():
        metrics = value(cell.run)
        known[cell.hash] = Record(Ending(Status.FINISHED if metrics else Status.DIVERGED), totals=metrics or {})
    return replace(planned, sheet=replace(planned.sheet, records=known))


def quality(lr: float, best: float) -> float:
    return 90 - 10 * math.log10(lr / best) ** 2


def test_the_tune_stage_holds_out_and_stages_have_seeds_of_their_own() -> None:
    """2 methods x 2 partitions x 4 draws x 2 seeds."""
    stage = make_tune_stage(file())
    assert stage.name == "tuned/tune"
    planned = make_plan(stage)
    assert len(planned.sheet.cells) == 32
    runs = [cell.run for cell in planned.sheet.cells.values()]
    assert {one.seed for one in runs} == {10, 11}
    assert {one.data.validation.fraction for one in runs if one.data.validation} == {0.2}
    assert all(one.data.validation for one in runs)
    asked = file(grid={"partition": ["iid"]})
    assert {cell.run.seed for cell in make_plan(stages.preview_final_stage(asked)).sheet.cells.values()} == {0, 1, 2}


@pytest.mark.parametrize("searcher", ["random", "sobol"])
def test_the_final_stage_runs_the_best_draw_of_each_method_and_setting(searcher: str) -> None:
    """Simulated outcomes: fedavg is best near lr 0.5 on IID data, near 0.02 elsewhere; the largest μ is the worst."""

    def value(one: Any) -> dict[str, float]:
        best = 0.5 if one.partition.name == "iid" else 0.02
        found = quality(one.training.lr, best) - 100 * getattr(one.algorithm, "mu", 0.0) + 0.01 * one.seed
        return {"last10_validation_accuracy": found, "last10_test_accuracy": -found}

    asked = file(searcher={"name": searcher, "seed": 1})
    choices = choose(with_outcomes(make_plan(make_tune_stage(asked)), value))
    assert len(choices) == 4
    for one in choices:
        best = 0.5 if one.config["partition"] == "iid" else 0.02
        scores = [quality(d["training.lr"], best) - 100 * d.get("algorithm.mu", 0.0) for d in one.study.draws]
        assert one.values == one.study.draws[int(np.argmax(scores))]
        assert one.score == pytest.approx(max(scores) + 0.105), "the mean of seeds 10 and 11"
    second = make_final_stage(asked, [one.config for one in choices])
    runs = [cell.run for cell in make_plan(second).sheet.cells.values()]
    assert (len(runs), {one.seed for one in runs}) == (4 * 3, {0, 1, 2})
    assert all(one.data.validation is None for one in runs), "trained on all samples"
    kept = make_final_stage(file(final={"seeds": [0], "train_on": "training"}), [choices[0].config])
    (run_,) = [cell.run for cell in make_plan(kept).sheet.cells.values()]
    assert run_.data.validation is not None
    assert run_.data.validation.fraction == 0.2


@pytest.mark.parametrize(("select", "extreme"), [("last10_validation_loss", min), ("final_validation_accuracy", max)])
def test_the_lowest_loss_or_the_highest_accuracy_is_chosen(select: str, extreme: Any) -> None:
    """Simulated outcomes: loss and accuracy are both the learning rate."""
    asked = file(grid={"partition": ["iid"]}, cases=[{"algorithm": "fedavg"}], select=select)
    (choice,) = choose(with_outcomes(make_plan(make_tune_stage(asked)), lambda one: {select: one.training.lr}))
    assert choice.values == extreme(choice.study.draws, key=lambda one: one["training.lr"])
    assert len({one["training.lr"] for one in choice.study.draws}) == 4


def test_spaces_that_overlap_may_choose_one_cell() -> None:
    """Two cases of one method, each with the best μ in its space; a key is set, so that equal points count once."""
    spaces = [{"algorithm.mu": {"choice": [0.1, other]}} for other in (0.2, 0.3)]
    cases = [{"algorithm": "fedprox", "search": space} for space in spaces]
    asked = file(grid={"partition": ["iid"]}, cases=cases, search={}).with_overrides({"training.lr": 0.3})
    choices = choose(with_outcomes(make_plan(make_tune_stage(asked)), lambda one: {asked.select: -one.algorithm.mu}))
    second = make_plan(make_final_stage(asked, [one.config for one in choices]))
    assert (len(choices), len(second.sheet.cells)) == (2, 3)
    assert describe_choices(asked, choices, second).keys() == second.sheet.cells.keys()


def test_cells_of_both_stages_count(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two blocks of 4 draws of each method and 1 cell of each, so 20 cells, 10 are to go."""

    def drive(plan: Plan) -> int:
        plan.sheet.records.update(with_outcomes(plan, lambda run: {file().select: 50.0}).sheet.records)
        return 0

    clock = iter([0.0, 100.0, 100.0, 200.0])
    monkeypatch.setattr("fedray.sweep.stages.drive", drive)
    monkeypatch.setattr("fedray.sweep.stages.time.monotonic", lambda: next(clock))
    seeds = {"tune": {"seeds": [10, 11], "blocks": True}, "final": {"seeds": [0, 1]}}
    assert run_file(file(grid={"partition": ["iid"]}, **seeds), "own.yaml") == 0
    assert "tuned: 10 of 20 cells to go, about 1.7 min\n" in capsys.readouterr().out


def test_data_that_change_between_the_stages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values were chosen on other data; another call tunes on the new ones, since its cells are others."""

    def save(factor: float) -> None:
        x, y = factor * np.arange(200, dtype=np.float32).reshape(50, 4), np.arange(50) % 2
        np.savez("d.npz", x_train=x, y_train=y, x_test=x, y_test=y)

    def drive(plan: Plan) -> int:
        plan.sheet.records.update(with_outcomes(plan, lambda run: {file().select: 50.0}).sheet.records)
        save(2)
        return 0

    save(1)
    monkeypatch.setattr("fedray.sweep.stages.drive", drive)
    base = FILE["base"] | {"data": {"name": "npz", "path": "d.npz"}}
    with pytest.raises(UserError, match=r"^data: a file has changed since the tune stage; put it back and call again"):
        run_file(file(base=base, grid={"partition": ["iid"]}), "own.yaml")


def test_what_the_final_table_is_told() -> None:
    """4 draws of 2 values are 2 cells for each of 2 seeds, of 3 rounds: 12; fedprox, whose draws differ in μ, has twice
    as many, and one gradient a step as fedavg. Each of 2 clients has 1437 (1 - 0.2) / 5 = 230 samples to train on, in 5
    batches of 50: 12 x 2 x 5 gradients. The largest lr wins."""
    asked = file(grid={"partition": ["iid"]}, search={"training.lr": {"choice": [0.1, 1.0]}})
    first = make_plan(make_tune_stage(asked))
    choices = choose(with_outcomes(first, lambda one: {"last10_validation_accuracy": one.training.lr}))
    second = make_plan(make_final_stage(asked, [one.config for one in choices]))
    told = describe_choices(asked, choices, second)
    assert list(told) == list(second.sheet.cells), "seed by seed, method by method"
    first, other = told[next(iter(told))], told[list(told)[3]]
    assert (first["select"], first["train_on"]) == ("last10_validation_accuracy", "all")
    assert first["held_out"] == {"fraction": 0.2, "from": "clients"}
    assert (first["draws"], first["finished"], first["rounds"]) == (4, 4, 12)
    assert ((first["gradients"], other["gradients"]), first["ranges"]) == ((120, 240), {"training.lr": "{0.1, 1}"})
    assert first["edges"] == ["training.lr"]


def test_a_value_that_was_not_drawn_was_not_tried() -> None:
    """Two draws of four values: the better one is at the end of what was tried, inside of what was allowed."""
    allowed = [0.001, 0.01, 0.1, 1.0]
    asked = file(cases=[{"algorithm": "fedavg"}], search={"training.lr": {"choice": allowed}}, samples=2)
    first = make_plan(make_tune_stage(asked))
    drawn = sorted({cell.run.training.lr for cell in first.sheet.cells.values()})
    assert drawn == [0.01, 0.1]
    choices = choose(with_outcomes(first, lambda one: {"last10_validation_accuracy": -one.training.lr}))
    second = make_plan(make_final_stage(asked, [one.config for one in choices]))
    told = next(iter(describe_choices(asked, choices, second).values()))
    assert told["values"] == {"training.lr": 0.01}
    assert told["ranges"] == {"training.lr": "{0.01, 0.1}, drawn from {0.001, 0.01, 0.1, 1}"}
    assert told["edges"] == ["training.lr"]
    choices = choose(with_outcomes(first, lambda one: {"last10_validation_accuracy": 1.0}))
    second = make_plan(make_final_stage(asked, [one.config for one in choices]))
    told = next(iter(describe_choices(asked, choices, second).values()))
    assert (told["tied"], told["edges"]) == (2, []), "which of two draws with the same score is first says nothing"


def test_a_block_has_one_seed_of_each_stage_and_draws_of_its_own() -> None:
    """Block k has the k-th seeds and the searcher's seed plus k; methods of a block share its learning rates."""
    blocks = file(grid={"partition": ["iid"]}, tune={"seeds": [10, 11, 12], "blocks": True}).list_blocks()
    assert [one.name for one in blocks] == ["tuned/0", "tuned/1", "tuned/2"]
    rates = list[set[float]]()
    for k, one in enumerate(blocks):
        assert one.tune
        assert one.final
        assert not one.tune.blocks
        assert (one.tune.seeds, one.final.seeds, one.searcher.seed) == ((10 + k,), (k,), 1 + k)
        runs = [cell.run for cell in make_plan(make_tune_stage(one)).sheet.cells.values()]
        first, other = ({run.training.lr for run in runs if run.algorithm.name == of} for of in ("fedavg", "fedprox"))
        assert (first, {run.seed for run in runs}) == (other, {10 + k})
        rates.append(first)
    assert ([len(one) for one in rates], len(set.union(*rates))) == ([4, 4, 4], 12)
    assert file().list_blocks() == [file()]


def test_a_method_that_diverges_in_every_draw_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    asked = file(grid={"partition": ["iid"]})
    known = {"fedavg": {"last10_validation_accuracy": 50.0}}
    (choice,) = choose(with_outcomes(make_plan(make_tune_stage(asked)), lambda one: known.get(one.algorithm.name)))
    assert choice.config["algorithm"] == "fedavg"
    line = capsys.readouterr().out
    assert line.startswith("tuned/tune: no draw of fedprox μ=0.01 iid")
    assert line.endswith("has finished with every seed; the final stage leaves it out\n")


def test_a_draw_that_diverged_with_a_seed_is_never_chosen_and_none_at_all_is_said() -> None:
    asked = file(grid={"partition": ["iid"]}, cases=[{"algorithm": "fedavg"}])
    best = max(value["training"]["lr"] for value in iter_points(make_tune_stage(asked)))

    def value(one: Any) -> dict[str, float] | None:
        return None if one.training.lr == best and one.seed == 11 else {"last10_validation_accuracy": one.training.lr}

    (choice,) = choose(with_outcomes(make_plan(make_tune_stage(asked)), value))
    assert choice.values["training.lr"] < best
    assert choice.finished == 3
    with pytest.raises(UserError, match=r"tuned/tune: no draw of fedavg iid .* has finished with every seed"):
        choose(with_outcomes(make_plan(make_tune_stage(asked)), lambda one: None))
    asked = file(grid={"partition": ["iid"]}, cases=[{"algorithm": "fedavg"}], scheduler={"name": "asha"})
    with pytest.raises(UserError, match=r"leave the scheduler out, or raise scheduler\.grace"):
        choose(with_outcomes(make_plan(make_tune_stage(asked)), lambda one: None))


def test_the_page_of_a_sweep_names_the_best_of_each_split() -> None:
    """FedAvg is best on IID data, (90 + 80) / 2 = 85, FedProx with α = 0.5, where one cell diverged: 70 is one seed.
    The sample standard deviation of two numbers is their distance over √2: 10 / 1.414 = 7.07."""
    grid = FILE["grid"] | {"algorithm": ["fedavg", {"name": "fedprox", "mu": 0.1}], "seed": [0, 1]}
    asked = Sweep.model_validate({"name": "x", "description": "What it is", "base": FILE["base"], "grid": grid})
    known = {("iid", "fedavg", 0): 90, ("iid", "fedavg", 1): 80, ("iid", "fedprox", 0): 60, ("iid", "fedprox", 1): 50}
    known |= {("dirichlet", "fedavg", 0): 40, ("dirichlet", "fedavg", 1): 40, ("dirichlet", "fedprox", 0): 70}

    def value(run: RunConfig) -> dict[str, float] | None:
        found = known.get((run.partition.name, run.algorithm.name, run.seed))
        return None if found is None else {DEFAULT: found}

    page = describe_results(with_outcomes(make_plan(asked), value))
    assert page.partition("\n```yaml\n")[0].strip().split("\n\n") == [
        "What it is",
        "**Best: fedavg iid, test accuracy 85.00 %**",
        "**Best: fedprox μ=0.1 dirichlet(0.5), test accuracy 70.00 %**",
        "| method and setting | test accuracy %, round 3 | seeds |\n|---|---:|---:|\n"
        "| fedavg iid | 85.00 ± 7.07 | 2 |\n| fedprox μ=0.1 iid | 55.00 ± 7.07 | 2 |\n"
        "| fedprox μ=0.1 dirichlet(0.5) | 70.00 | 1 |\n| fedavg dirichlet(0.5) | 40.00 ± 0.00 | 2 |",
        "without a number: fedprox μ=0.1 dirichlet(0.5) (1 diverged)",
    ]
    assert describe_results(with_outcomes(make_plan(asked), lambda run: None)) == ""
    # Clients that are fewer, or a split of another option, are no method's merit.
    grid = {"clients.total": [5, 7], "partition": [{"name": "dirichlet_client", "alpha": 0.5, "sigma": [0, 0.5]}]}
    asked = Sweep.model_validate({"name": "x", "base": FILE["base"], "grid": grid})
    page = describe_results(with_outcomes(make_plan(asked), lambda run: {DEFAULT: float(run.clients.total)}))
    assert page.count("**Best: ") == 4


SPACE = {
    "training.lr": {"loguniform": [0.001, 1]}, "algorithm.rho": {"uniform": [0, 2]},
    "training.local_epochs": {"randint": [1, 5]}, "algorithm.perturb": {"choice": ["all", "body"]},
}  # fmt: skip


def sweep(searcher: Any, samples: int = 9, **more: Any) -> Sweep:
    base, cases = {"training": {}, "algorithm": "fedsol"}, [{"training.momentum": 0.0}, {"training.momentum": 0.9}]
    document = {"name": "s", "base": base, "cases": cases, "grid": {"seed": [0, 1]}, "search": SPACE}
    return Sweep.model_validate({**document, "samples": samples, "searcher": searcher, **more})


def studies(asked: Sweep) -> list[stages.Study]:
    """Its studies, with a number in place of each hash."""
    return make_studies(asked, map(str, range(len(list(iter_points(asked))))))


def test_what_diverged_ranks_below_all_that_finished_and_is_never_the_best() -> None:
    (study,) = studies(sweep("random", samples=3, cases={"one": [{"training.momentum": 0.0}]}))
    cells = [cell for of_draw in study.cells for cell in of_draw]
    known: dict[str, float | None] = dict(zip(cells, [None, 10.0, 50.0, 51.0, 60.0, None], strict=True))
    assert study.find_best(known, lower=False) == (1, 50.5, 1, [1]), "a draw of which a seed is missing has no mean"
    assert study.find_best(known, lower=True) == (1, 50.5, 1, [1])
    assert study.find_best({}, lower=False) is None
    known = dict(zip(cells, [1.0, 2.0, 2.0, 1.0, 2.0, 1.0], strict=True))
    best = [study.find_best(known, lower=lower) for lower in (False, True)]
    assert best == [(0, 1.5, 3, [0, 1, 2])] * 2, "the first of equal ones"


def test_draws_keep_their_values() -> None:
    """Other values would leave the finished cells of a search unfound."""
    drawn = [draw({"algorithm.rho": {"loguniform": [0.001, 0.1]}}, Searcher(), i)["algorithm.rho"] for i in range(3)]
    assert drawn == [0.0113742, 0.00143456, 0.0107693]
    assert draw({"algorithm.rho": {"loguniform": [0.001, 0.1]}}, Searcher(seed=1), 0)["algorithm.rho"] != drawn[0]
    space = {"training.lr": {"loguniform": [0.01, 1]}, "algorithm.rho": {"loguniform": [0.01, 1]}}
    drawn = [draw(space, Searcher(name="sobol"), index) for index in range(5)]
    assert [one["training.lr"] for one in drawn] == [0.0317391, 0.609891, 0.11225, 0.0126363, 0.288632]
    assert [one["algorithm.rho"] for one in drawn] == [0.617226, 0.0785078, 0.288985, 0.0195103, 0.160237]


def test_sobol_covers_every_range_evenly_and_keys_do_not_move_together() -> None:
    """16 points of a scrambled Sobol sequence have one in each sixteenth of every range (Owen 1995)."""
    searcher = Searcher(name="sobol", seed=5)
    drawn = [draw(SPACE, searcher, i) for i in range(16)]
    u = [math.log(one["training.lr"] / 0.001) / math.log(1000) for one in drawn]
    assert sorted(int(16 * value) for value in u) == list(range(16))
    assert sorted(int(8 * one["algorithm.rho"]) for one in drawn) == list(range(16))
    assert sorted(one["training.local_epochs"] for one in drawn) == sorted([1, 2, 3, 4] * 4)
    assert sum(one["algorithm.perturb"] == "all" for one in drawn) == 8
    assert [draw(SPACE, searcher, i) for i in range(50)][:16] == drawn
    # Of two keys, 8 draws are in two of the four quadrants, on a diagonal, for one pair of keys in 12 on average.
    #
    # Draws 1 and 2 are in opposite halves (2 ways), so are 3 and 4 (2), and of the last four two are in either half
    # (6): 24 ways, and a pair of keys has the same or the opposite one in 2 of 24. With Sobol's own order it is every
    # pair, with independent permutations 2 of 70. The mean square of the correlation is 1/7 for those; halves that are
    # balanced early raise it a little: 0.18 in a simulation of 4,000 pairs. For draws in Sobol's order it is 0.59.
    pairs = list(itertools.combinations([quantiles(f"algorithm.option{k}", 8) for k in range(100)], 2))
    together = [len({(int(2 * u), int(2 * v)) for u, v in zip(x, y, strict=True)}) == 2 for x, y in pairs]
    assert 0.05 < np.mean(together) < 0.12
    assert np.mean([np.corrcoef(x, y)[0, 1] ** 2 for x, y in pairs]) == pytest.approx(0.18, abs=0.03)


@pytest.mark.parametrize("searcher", ["random", "sobol"])
def test_a_value_does_not_depend_on_what_else_is_searched(searcher: str) -> None:
    """Nor on the order of the keys."""
    chosen = Searcher(name=searcher, seed=3)
    alone = [draw({"training.lr": SPACE["training.lr"]}, chosen, index) for index in range(8)]
    for space in (SPACE, dict(reversed(SPACE.items()))):
        asked = sweep(chosen.model_dump(), search=space, samples=8)
        assert [{"training.lr": values["training.lr"]} for values in studies(asked)[0].draws] == alone


def test_a_seed_is_no_setting() -> None:
    """Two cases and two seeds are two studies of two cells a draw, wherever the seed stands."""
    for grid in ({"seed": [0, 1], "training.lr_decay": [1.0, 0.9]}, {"training.lr_decay": [1.0, 0.9], "seed": [0, 1]}):
        asked = sweep("sobol", samples=2, grid=grid, cases={"one": [{"training.momentum": 0.0}]})
        seeds, found = [point["seed"] for point in iter_points(asked)], studies(asked)
        assert len(found) == 2
        for study in found:
            assert [[seeds[int(cell)] for cell in cells] for cells in study.cells] == [[0, 1], [0, 1]]


@each(
    ("choice", [0.3, 0.1, 0.2], 0.1, 0.2), ("choice", ["all", "body"], None, "all"), ("randint", [1, 5], 4, 3),
    ("uniform", [0, 2], 0.09, 0.11), ("uniform", [1, 1], None, 1.0), ("loguniform", [0.01, 1], 0.012, 0.02),
)  # fmt: skip
def test_the_edge_is_where_the_range_ends(kind: str, bounds: list[Any], at_edge: Any, inside: Any) -> None:
    """log 1.2 / log 100 = 0.04 of the range of two decades, log 2 / log 100 = 0.15."""
    assert at_edge is None or is_at_edge(at_edge, {kind: bounds}, bounds)
    assert not is_at_edge(inside, {kind: bounds}, bounds)


def test_ranges_as_a_reader_wants_them() -> None:
    found = [format_range(SPACE[key], ["all", "body"]) for key in SPACE]
    assert found == ["[0.001, 1], log", "[0, 2]", "[1, 5)", "{all, body}"]


def quantiles(key: str, count: int, seed: int = 0) -> np.ndarray:
    """The first draws of a key by `sobol`, as parts of its range."""
    searcher = Searcher(name="sobol", seed=seed)
    return np.array([draw({key: {"uniform": [0, 1]}}, searcher, index)[key] for index in range(count)])
