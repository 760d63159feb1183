"""Claims on simulated results whose truth is known."""

import numpy as np
import pytest

from fedray.analysis.data.collect import collect
from fedray.common.errors import UserError
from fedray.papers.claims.decide import (
    HOLDS,
    LOST,
    NOT_RUN,
    OPEN,
    REFUTED,
    Verdict,
    decide,
    decide_most,
    decide_pairs,
)
from fedray.papers.claims.pairs import Pair
from fedray.papers.claims.read import Claims
from fedray.papers.commands.claims import make_page
from fedray.sweep.file.claims import Claim
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, write
from tests.analysis.statistics.test_intervals import tolerance

RUNS = 400


def claim(**more: object) -> Claim:
    return Claim.model_validate({"name": "one", "says": "it is", "method": "fedsam", **more})


def pairs(*gaps: object) -> list[Pair]:
    return [Pair("column", "fedsam", f"rival {k}", tuple(np.atleast_1d(one))) for k, one in enumerate(gaps)]


def statuses(about: Claim, truth: list[float], seeds: int, spread: float = 1.0) -> list[str]:
    """Decisions on RUNS simulated results: seeds and rivals whose true gaps are `truth`."""
    draws = np.random.default_rng(seeds).normal(np.array(truth)[:, None], spread, (RUNS, len(truth), seeds))
    return [decide_pairs(about, pairs(*one), len(truth)) for one in draws]


@pytest.mark.parametrize("truth", [[0.0], [2.0], [0.0, 0.0, 0.0, 0.0]])
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_claim_on_its_boundary_is_rarely_decided(truth: list[float], seeds: int) -> None:
    """The true lead is just `by`, so either decision is an error: each in at most 2.5 %, plus two standard errors.

    Four rivals that are all alike: it holds only where four intervals do, and is refuted at a corrected level.
    """
    found = statuses(claim(by=truth[0]), truth, seeds)
    for error in (HOLDS, REFUTED):
        assert found.count(error) / RUNS <= 0.025 + tolerance(0.025, RUNS)


@pytest.mark.parametrize("truth", [1.0, -1.0])
def test_alike_on_its_boundary_is_rarely_decided(truth: float) -> None:
    """Gaps of 1 where `within` allows 1: as above."""
    found = statuses(claim(relation="within", by=1), [truth], 5, spread=0.2)
    for error in (HOLDS, REFUTED):
        assert found.count(error) / RUNS <= 0.025 + tolerance(0.025, RUNS)


def test_what_is_true_is_found() -> None:
    """Leads of 4 and 5 spreads with five seeds hold, the opposite is refuted; alike within 1 with a spread of 0.2."""
    assert statuses(claim(), [4, 5], 5).count(HOLDS) > 0.9 * RUNS
    assert statuses(claim(), [-4, 5], 5).count(REFUTED) > 0.9 * RUNS
    assert statuses(claim(relation="within", by=1), [0.1, -0.1], 5, spread=0.2).count(HOLDS) > 0.9 * RUNS
    assert statuses(claim(relation="within", by=1), [0.1, 3.0], 5, spread=0.2).count(REFUTED) > 0.9 * RUNS


def test_one_seed_decides_nothing() -> None:
    assert decide_pairs(claim(), pairs([5.0]), 1) == OPEN
    assert decide_pairs(claim(), pairs([5.0, 5.1, 5.2], []), 2) == NOT_RUN
    assert decide_pairs(claim(), pairs([-5.0, -5.1, -5.2], []), 2) == REFUTED  # one contradiction is enough
    assert decide_pairs(claim(), pairs([], []), 2) == NOT_RUN
    exact = [Pair("column", "a", "b", (0.5, 0.5), exact=True)]
    assert decide_pairs(claim(), exact, 1) == HOLDS
    assert decide_pairs(claim(by=0.5), exact, 1) == OPEN, "not by more than that"


def test_what_speaks_most_against_a_claim() -> None:
    """The smallest of leads, the widest of gaps that should be small, among run and printed numbers."""
    found = [
        Pair("column", "fedsam", f"rival {k}", gaps, printed)
        for k, (gaps, printed) in enumerate([((2.0, 3.0), -3.0), ((-0.5,), 4.0), ((), None)])
    ]
    for leads, rival, printed in ((True, "rival 1", -3.0), (False, "rival 0", 4.0)):
        of = Verdict(OPEN, found, leads)
        assert of.closest is not None
        assert (of.closest.rival, of.printed, of.seeds) == (rival, printed, (0, 2))


def results(store: Tracker, last: float | None = 49.9) -> None:
    """fedavg: 80, 60, 70; ρ=0.1: 1, 2, 3 above; ρ=0.5: 5, 5.1, 5.2 above. At α = 0.1 only fedavg and ρ=0.5 have run."""
    cells = [cell(a, alpha, seed) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL, LARGE) for seed in (0, 1, 2)]
    write(store, cells, (80, 60, 70, 81, 62, 73, 85, 65.1, 75.2, 50, 52, 51, None, None, None, 49, 51.1, last))


def test_decisions_of_a_sweep(store: Tracker) -> None:
    """ρ=0.5 over fedavg at α = 0.5: 5.1 ± 0.25 (test_compare) holds; over ρ=0.1 too 4, 3.1, 2.2: 3.1 ± 2.24.
    Against all in both columns: -1, -0.9, -1.1 at α = 0.1 is refuted though ρ=0.1 has not run there.
    """
    results(store)
    sweep = collect("sweep")
    one = decide(claim(method="fedsam ρ=0.5", columns=["α=0.5"]), sweep)
    assert one.whole.status == HOLDS
    assert one.whole.closest is not None
    assert (one.whole.closest.rival, one.whole.seeds) == ("fedsam ρ=0.1", (3, 3))
    assert one.whole.closest.mean == pytest.approx(3.1)
    assert len(one.cells) == 9
    both = decide(claim(method="fedsam ρ=0.5"), sweep)
    assert both.whole.status == REFUTED
    assert {name: found.status for name, found in both.columns.items()} == {
        "dirichlet α=0.5": HOLDS,
        "dirichlet α=0.1": REFUTED,
    }
    assert decide(claim(method="fedsam ρ=0.5", by=6, columns=["α=0.5"]), sweep).whole.status == REFUTED
    assert decide(claim(method="fedsam ρ=0.1", against=["fedavg"]), sweep).whole.status == NOT_RUN
    rho = decide(claim(method="fedsam", relation="insensitive", by=6, columns=["α=0.5"]), sweep)
    assert (rho.whole.status, len(rho.whole.pairs)) == (HOLDS, 1)
    percent = decide(claim(method="fedsam ρ=0.5", against=["fedavg"], unit="percent", columns=["α=0.5"]), sweep)
    assert percent.whole.pairs[0].gaps == pytest.approx((100 * 5 / 80, 100 * 5.1 / 60, 100 * 5.2 / 70))


def test_a_column_is_refuted_at_the_level_of_the_whole_claim(store: Tracker) -> None:
    """Gaps of -4/3, -1, -2/3: -1 ± 4.303/(3 √3) lies below 0 by itself, at 97.5 % for two comparisons -1 ± 1.19 does
    not.
    """
    cells = [cell(a, alpha, seed) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL) for seed in (0, 1, 2)]
    write(store, cells, (70, 70, 70, 70 - 4 / 3, 69, 70 - 2 / 3, 50, 50, 50, 60, 60.1, 60.2))
    found = decide(claim(), collect("sweep"))
    assert {name: of.status for name, of in found.columns.items()} == {
        "dirichlet α=0.5": OPEN,
        "dirichlet α=0.1": HOLDS,
    }
    alone = decide(claim(columns=["α=0.5"]), collect("sweep"))
    assert (alone.whole.status, found.whole.status) == (REFUTED, OPEN)


def test_averages_take_whole_seeds(store: Tracker) -> None:
    """ρ=0.5 minus fedavg, mean of both settings: (5 - 1)/2, (5.1 - 0.9)/2, (5.2 - 1.1)/2 = 2, 2.1, 2.05."""
    results(store)
    found = decide(claim(method="fedsam ρ=0.5", against=["fedavg"], average_over="partition"), collect("sweep"))
    assert found.whole.pairs[0].gaps == pytest.approx((2, 2.1, 2.05))
    assert found.whole.status == HOLDS


def test_a_seed_that_lacks_a_setting_has_no_average(store: Tracker) -> None:
    """As above, but ρ=0.5 has not run with seed 2 at α = 0.1; its 75.2 at α = 0.5 is no average of both."""
    results(store, last=None)
    found = decide(claim(method="fedsam ρ=0.5", against=["fedavg"], average_over="partition"), collect("sweep"))
    assert found.whole.pairs[0].gaps == pytest.approx((2, 2.1))


def of_seeds(store: Tracker, status: str, fedavg: list[object], small: list[object]) -> None:
    """A run of each method and seed; a value that is not a history has ended with `status`."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in range(len(small))]
    outcomes = [("finished", one) if isinstance(one, list) else (status, history(1)) for one in (*fedavg, *small)]
    write(store, cells, outcomes)


def runs(*accuracies: float | None) -> list[object]:
    return [None if accuracy is None else history(accuracy) for accuracy in accuracies]


@pytest.mark.parametrize("status", ["diverged", "stopped", "pruned"])
def test_seeds_that_ended_without_a_number_decide_nothing(store: Tracker, status: str) -> None:
    """The three seeds left lead by 5, 5.1, 5.2 (or trail by them), but with two others fedsam has no accuracy."""
    of_seeds(store, status, runs(80, 60, 70, 75, 65), runs(85, 65.1, 75.2, None, None))
    found = decide(claim(), collect("sweep")).whole
    assert (found.status, found.seeds, found.pairs[0].lost) == (LOST, (3, 3), 2)
    assert decide(claim(by=6), collect("sweep")).whole.status == LOST  # survivors do not refute either
    assert decide_pairs(claim(), [*pairs([-5.0, -5.1, -5.2]), *found.pairs], 2) == REFUTED  # another rival does


def test_failed_seeds_are_still_to_run(store: Tracker) -> None:
    of_seeds(store, "failed", runs(80, 60, 70, 75), runs(None, None, None, None))
    assert decide(claim(), collect("sweep")).whole.status == NOT_RUN


def targets(store: Tracker, fedavg: list[list[float]], fedsam: list[list[float]]) -> None:
    """Ten accuracies of each seed's run of FedAvg and of FedSAM."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in range(len(fedavg))]
    for one in cells:
        one["config"]["training"] = {"rounds": 10}
    write(store, cells, [history(*accuracies) for accuracies in (*fedavg, *fedsam)])


NOWHERE, SECOND, THIRD = [70.0] * 10, [70.0] + [95.0] * 9, [70.0] * 2 + [95.0] * 8
"""Accuracies of ten rounds that never get to 90 %, in the second round, in the third."""


def test_a_rival_that_never_reaches_the_target_is_slower(store: Tracker) -> None:
    """FedSAM gets to 90 % in rounds 2, 3, 2; FedAvg's 10 rounds do not: at least 8, 7, 8 of 10 are saved.

    Against it the same gaps speak with the other sign.
    """
    targets(store, [NOWHERE] * 3, [SECOND, THIRD, SECOND])
    found = decide(claim(metric="rounds_to:90", unit="percent"), collect("sweep")).whole
    assert (found.status, found.pairs[0].gaps, found.pairs[0].lost) == (HOLDS, pytest.approx((80, 70, 80)), 0)
    other = decide(claim(method="fedavg", metric="rounds_to:90"), collect("sweep")).whole
    assert (other.status, other.pairs[0].gaps) == (REFUTED, (-8, -7, -8))


def test_a_target_that_neither_side_reaches(store: Tracker) -> None:
    """With seed 1 neither reaches it, so there is nothing to compare."""
    targets(store, [NOWHERE] * 3, [SECOND, NOWHERE, SECOND])
    found = decide(claim(metric="rounds_to:90"), collect("sweep")).whole
    assert (found.status, found.seeds, found.pairs[0].lost) == (LOST, (2, 2), 1)


def test_averages_have_no_rounds_of_a_target_that_is_never_reached(store: Tracker) -> None:
    targets(store, [NOWHERE] * 3, [SECOND] * 3)
    found = decide(claim(metric="rounds_to:90", average_over="partition"), collect("sweep")).whole
    assert (found.status, found.seeds, found.pairs[0].lost) == (LOST, (0, 0), 3)


def test_a_lead_in_one_metric_against_that_in_another(store: Tracker) -> None:
    """FedSAM leads by 6, 8, 7 after 1 epoch and by 1, 2, 3 after 5: its lead is smaller by 5, 6, 4."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in (0, 1, 2)]
    after = [(50, 60), (51, 61), (52, 62), (56, 61), (59, 63), (59, 65)]
    names = "personal_accuracy_e1", "personal_accuracy_e5"
    write(store, cells, [[history(70)[0] | dict(zip(names, one, strict=True))] for one in after])
    found = decide(claim(metric=names[0], minus=names[1]), collect("sweep"))
    assert (found.whole.status, found.whole.pairs[0].gaps) == (HOLDS, (5, 6, 4))
    assert found.metric.count("after 1 epoch of") == 1
    assert ", minus personal accuracy in % of the last round, after 5 epochs of" in found.metric
    back = decide(claim(metric=names[1], minus=names[0]), collect("sweep")).whole
    assert (back.status, back.pairs[0].gaps) == (REFUTED, (-5, -6, -4))
    page = make_page(Claims(name="sweep", claims=(found.claim,)), [found], [""])
    assert "personal_accuracy_e1" in page
    assert "personal_accuracy_e5" in page


@pytest.mark.parametrize(("metric", "minus"), [("rounds_to:80", "test_loss"), ("test_loss", "rounds_to:80")])
def test_rounds_are_not_subtracted(metric: str, minus: str) -> None:
    with pytest.raises(UserError, match="found 'rounds_to:80'; a difference or mean of metrics is not one of rounds"):
        claim(metric=metric, minus=minus)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"minus": "test_loss", "mean_with": "train_loss"}, "claims.one.mean_with: minus is given too"),
        ({"to": 10, "against": ["fedavg"]}, "claims.one.to: expected no against"),
        ({"to": 10, "relation": "falls", "columns": ["a", "b"]}, "claims.one.to: expected no against, and better"),
        ({"against": "best", "relation": "steadier"}, "claims.one.against: best is for better, worse and within"),
    ],
)
def test_keys_that_exclude_each_other(more: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        claim(**more)


def in_two_columns(store: Tracker, *values: float) -> None:
    """FedAvg's and ρ=0.1's accuracies of three seeds at α = 0.5, then the same at α = 0.1."""
    cells = [cell(a, alpha, seed) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL) for seed in (0, 1, 2)]
    write(store, cells, values)


DOWN = ["α=0.5", "α=0.1"]


def test_a_smaller_drop_is_a_lead_that_grows(store: Tracker) -> None:
    """From α = 0.5 to 0.1 FedAvg loses 10, 11, 12 and ρ=0.1 only 5, 5, 5: gaps of 5, 6, 7. Its lead grows as much."""
    in_two_columns(store, 70, 71, 72, 75, 76, 77, 60, 60, 60, 70, 71, 72)
    found = decide(claim(relation="smaller_drop", columns=DOWN), collect("sweep"))
    assert (found.whole.status, found.whole.pairs[0].gaps) == (HOLDS, (5, 6, 7))
    assert list(found.columns) == ["dirichlet α=0.5 to dirichlet α=0.1"]
    assert len(found.cells) == 12
    back = decide(claim(relation="smaller_drop", columns=DOWN[::-1]), collect("sweep")).whole
    assert (back.status, back.pairs[0].gaps) == (REFUTED, (-5, -6, -7))
    loss = decide(claim(relation="smaller_drop", columns=DOWN, metric="test_loss"), collect("sweep")).whole
    assert loss.pairs[0].gaps == pytest.approx((0.05, 0.06, 0.07))  # losses are 1 - accuracy / 100


def test_what_falls_is_better_in_the_first_columns(store: Tracker) -> None:
    """FedAvg loses 10, 11, 12 to α = 0.1, ρ=0.1 gains about 1: of both it does not hold, of FedAvg alone it does."""
    in_two_columns(store, 70, 71, 72, 75, 76, 77, 60, 60, 60, 76, 77.1, 77.9)
    alone = decide(claim(method="fedavg", relation="falls", columns=DOWN), collect("sweep")).whole
    assert (alone.status, alone.pairs[0].gaps) == (HOLDS, (10, 11, 12))
    every = decide(claim(method="all", relation="falls", columns=DOWN), collect("sweep")).whole
    assert (every.status, len(every.pairs), every.closest) == (REFUTED, 2, every.pairs[1])


def test_steadier_rows_have_a_smaller_range(store: Tracker) -> None:
    """FedSAM's two rows are 4, 5, 6 apart, MoFedSAM's 1, 1, 1: the latter's range is 3, 4, 5 smaller."""
    rows = [{"name": name, "rho": rho} for name in ("fedsam", "mofedsam") for rho in (0.1, 0.5)]
    cells = [cell(a, 0.5, seed) for a in rows for seed in (0, 1, 2)]
    write(store, cells, (70, 71, 72, 74, 76, 78, 80, 81, 82, 81, 80, 83))
    found = decide(claim(method="mofedsam", relation="steadier", against=["fedsam"]), collect("sweep")).whole
    assert (found.status, found.pairs[0].gaps) == (HOLDS, (3, 4, 5))
    other = decide(claim(method="fedsam", relation="steadier", against=["mofedsam"]), collect("sweep")).whole
    assert other.status == REFUTED


def of_columns(*gaps: tuple[float, ...]) -> dict[str, Verdict]:
    """The verdicts of columns with one comparison each."""
    each = {f"column {k}": pairs(one) for k, one in enumerate(gaps)}
    return {name: Verdict(decide_pairs(claim(), found, len(gaps)), found, True) for name, found in each.items()}


def test_most_columns() -> None:
    """Out of four columns, two that do not hold refute "most"; two that hold do not support it yet."""
    good, bad, unclear = (5.0, 5.01, 5.02), (-5.0, -5.01, -5.02), (-1.0, 0.0, 1.0)
    most = claim(holds_in="most")
    assert decide_most(most, of_columns(good, good, bad)) == HOLDS
    assert decide_most(most, of_columns(good, good, ())) == HOLDS  # the third cannot change it
    assert decide_most(most, of_columns(good, bad, bad)) == REFUTED
    assert decide_most(most, of_columns(good, good, bad, bad)) == REFUTED
    assert decide_most(most, of_columns(good, good, bad, unclear)) == OPEN
    assert decide_most(most, of_columns(good, good, bad, ())) == NOT_RUN


def test_most_columns_on_the_boundary_are_rarely_decided() -> None:
    """Two of five columns lead by far and three not at all, so "most" is wrong. It is claimed in at most 5 % of cases,
    plus two standard errors: that takes one of the three, each of which is tested at the corrected level.
    """
    draws = np.random.default_rng(0).normal([[50.0], [50.0], [0.0], [0.0], [0.0]], 1.0, (RUNS, 5, 3))
    most = claim(holds_in="most")
    wrong = sum(decide_most(most, of_columns(*map(tuple, one.tolist()))) == HOLDS for one in draws)
    assert wrong / RUNS <= 0.05 + tolerance(0.05, RUNS)


def test_a_target_whose_own_run_diverged(store: Tracker) -> None:
    """With seed 1 fedavg diverged, so no method has a number of rounds to its best accuracy there."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL, LARGE) for seed in (0, 1, 2)]
    write(store, cells, [("diverged", []) if k == 1 else history(70, 80, 90) for k in range(9)])
    about = claim(method="fedsam ρ=0.5", against=["fedsam ρ=0.1"], metric="rounds_to:fedavg")
    found = decide(about, collect("sweep")).whole
    assert (found.status, found.seeds, found.pairs[0].lost) == (LOST, (2, 2), 1)


def test_a_percentage_of_nothing(store: Tracker) -> None:
    of_seeds(store, "failed", runs(0, 50, 50), runs(10, 55, 56))
    found = decide(claim(unit="percent"), collect("sweep")).whole.pairs[0]
    assert (found.gaps, found.lost) == (pytest.approx((10, 12)), 1)


def test_bytes_are_counted(store: Tracker) -> None:
    """4 MB against 6 with both seeds: no seed can change that. One seed alone shows nothing."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, cells, [[row | {"megabytes_up": 6.0 if k < 2 else 4.0} for row in history(1)] for k in range(4)])
    assert decide(claim(metric="megabytes_up"), collect("sweep")).whole.status == HOLDS
    write(store, [cells[0], cells[2]], [], "one seed")
    assert decide(claim(metric="megabytes_up"), collect("one seed")).whole.status == OPEN


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "claims.one.method: 'fedsam' may be fedsam ρ=0.1 or fedsam ρ=0.5; name one"),
        ({"method": "fedsm"}, "claims.one.method: 'fedsm' is none of fedavg, fedsam ρ=0.1"),
        ({"method": "fedavg", "columns": ["iid"]}, "claims.one.columns: 'iid' is none of dirichlet α=0.5"),
        ({"method": "fedavg", "relation": "insensitive", "by": 1}, "is one row; insensitive compares several"),
        (
            {"method": "fedavg", "relation": "steadier", "against": ["fedsam"]},
            "claims.one.method: 'fedavg' is one row; steadier compares several",
        ),
        (
            {"method": "fedavg", "relation": "smaller_drop", "columns": ["dirichlet", "α=0.1"]},
            "claims.one.columns: 'dirichlet' may be dirichlet α=0.5 or dirichlet α=0.1; name one",
        ),
    ],
)
def test_refusals(store: Tracker, more: dict[str, object], message: str) -> None:
    results(store)
    with pytest.raises(UserError) as error:
        decide(claim(**more), collect("sweep"))
    assert message in str(error.value)
