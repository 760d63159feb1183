"""Paired differences, their intervals, tests and Holm's correction, by hand and by a t table; their rates in simulated
results."""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from fedray.analysis import statistics
from fedray.analysis.comparison import Difference, _describe_wins, adjust_p_values, compare, format_report
from fedray.analysis.data.collect import collect
from fedray.analysis.plots.bars import draw_methods
from fedray.analysis.statistics import (
    POWER,
    apply_holm,
    bound_mean,
    compute_p,
    compute_power,
    count_seeds,
    find_effect,
    flip_signs,
)
from fedray.analysis.tables.build import build
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, write
from tests.conftest import Call


def test_interval_of_paired_seeds(store: Tracker) -> None:
    """Seeds 0, 1, 2: fedavg 80, 60, 70. ρ=0.1 81, 62, 73: differences 1, 2, 3, mean 2, s = 1, and t(0.975, 2) = 4.303,
    so 2 ± 4.303/sqrt(3) = 2 ± 2.484: not told apart, though unpaired noise is tenfold. ρ=0.5 is 5, 5.1, 5.2 above: 5.1
    ± 4.303 * 0.1/sqrt(3) = 5.1 ± 0.248. Their p by t: 1 - sqrt(12/14) = 0.0742 and, t = 51 sqrt(3) = 88.33, 1 - t /
    sqrt(t^2 + 2) = 0.000128; Holm doubles the smaller: 0.000256: better. At α = 0.1 fedavg lacks seed 1: one pair, and
    no interval. All 7 pairs: ρ=0.1 wins 3 of 4, ρ=0.5 3 of 3."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL, LARGE) for seed in (0, 1, 2)]
    cells += [cell(a, 0.1, seed) for a in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, cells, (80, 60, 70, 81, 62, 73, 85, 65.1, 75.2, 50, None, 40, 41))
    found = compare(collect("sweep"), "fedavg")
    small, large, lone = found.differences
    assert (small.row, small.column, small.n, small.unpaired) == ("fedsam ρ=0.1", "dirichlet α=0.5", 3, 0)
    half = 4.302653 / math.sqrt(3)
    assert small.interval is not None
    assert (small.mean, small.interval.low, small.interval.high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-5)
    assert large.interval is not None
    assert (large.interval.low, large.interval.high) == pytest.approx((5.1 - half / 10, 5.1 + half / 10), abs=1e-5)
    needed = small.count_needed_seeds()
    assert needed == count_seeds(2, 1, 0.05 / 2) != count_seeds(2, 1, 0.05), "Holm has two methods here"
    assert (small.adjusted, large.adjusted) == pytest.approx((0.074180, 2 * 0.000128), abs=1e-6)
    assert [one.judge(lower=False) for one in found.differences] == ["not told apart", "better", "too few seeds"]
    assert [one.judge(lower=True) for one in found.differences] == ["not told apart", "worse", "too few seeds"]
    assert (lone.n, lone.mean, lone.interval, lone.unpaired) == (1, -10, None, 1)
    (wins,) = _describe_wins(found)
    found_wins = re.findall(r"(\d of \d): .*? by (fedsam [^\s;]+)", wins)
    assert found_wins == [("3 of 4", "fedsam ρ=0.1"), ("3 of 3", "fedsam ρ=0.5")]
    text = format_report(found)
    assert re.search(r"fedavg +\| dirichlet α=0.5 +\| +\| 70.00 +\| +\| reference +\|", text)
    row = r"fedsam ρ=0.5 \| dirichlet α=0.5 +\| 3 +\| 75.10 +\| \+5.10 +\| better +\| \+4.85 .. \+5.35 +\| < 0.001 "
    assert re.search(row, text)
    assert re.search(r"fedsam ρ=0.5 \| dirichlet α=0.5 +\| [\d.]+ +\| \d+ +\|", text), "the second table"
    assert "sign-flip p |" not in text, "0.25 for three seeds and 1 for one, the least that they can give"
    assert "- sign-flip p, each the least possible: exact, without assuming normality, at least 2^(1 - n): 5" in text
    assert max(map(len, (line for line in text.splitlines() if line.startswith("|")))) <= 120
    assert re.search(r"\| 1 \(unpaired: 1\) +\| 40.50 +\| -10.00 +\| too few seeds ", text)
    assert "bootstrap interval" not in text, "nor what the runs sent: columns that say nothing are left out"
    assert "megabytes" not in text
    assert small.find_detectable() == find_effect(3, 0.05 / 2), "for a spread of 1"
    assert lone.find_detectable() is None
    won = "3 of 4: 0.75 (0.19 .. 0.99) by fedsam ρ=0.1; 3 of 3: 1.00 (0.29 .. 1.00) by fedsam ρ=0.5"
    assert f"- pairs with the same setting and seed that beat fedavg (Clopper and Pearson's interval): {won}\n" in text
    narrow = compare(collect("sweep"), "fedavg", confidence=0.5).differences[0].interval
    assert narrow is not None
    assert narrow.high == pytest.approx(2 + 0.816497 / math.sqrt(3), abs=1e-5)  # t(0.75, 2) = 0.8165


def test_what_is_alike_is_said_once(store: Tracker) -> None:
    """Gaps 1, 2, 3 twice, and 1, 2, -3: their sum is 0, so all sign flips reach it, and p is 1; 0 ties."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL, LARGE, {"name": "fedprox", "mu": 1}) for seed in (0, 1, 2)]
    write(store, cells, (80, 60, 70, 81, 62, 73, 81, 62, 73, 81, 62, 67))
    text = format_report(compare(collect("sweep")))
    assert text.count("Clopper") == text.count("beat fedavg") == 1
    assert "3 of 3: 1.00 (0.29 .. 1.00) by fedsam ρ=0.1, fedsam ρ=0.5; 2 of 3: 0.67 (0.09 .. 0.99) by fedprox" in text
    assert "sign-flip p" in text
    assert "- sign-flip p: exact" in text


def test_a_tie_is_one_whatever_the_last_bit(store: Tracker) -> None:
    """Means of tests with the same sum of correct answers differ in the last bit."""
    same = [90.1, 90.2, 90.3, 90.4, 90.5]
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in range(5)]
    write(store, cells, [*same, *(math.nextafter(value, 100) for value in same)])
    (one,) = compare(collect("sweep")).differences
    assert (one.gaps, one.adjusted, one.judge(lower=False)) == ((0.0,) * 5, 1.0, "not told apart")


def test_refusals(store: Tracker) -> None:
    cells = [cell(FEDAVG, alpha, 0) for alpha in (0.1, 0.5)]
    write(store, cells, [70] * len(cells))
    with pytest.raises(UserError, match="--cols: with 'algorithm' several runs share method, setting and seed"):
        compare(collect("sweep"), "fedavg", columns="algorithm")


def test_a_seed_that_both_lack_is_no_seed_without_a_partner(store: Tracker, call: Call) -> None:
    """fedavg has seeds 0 and 1, fedsam 0 and 2: one pair, two without a partner. One row has nothing to compare."""
    write(store, [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in range(4)], (1, 2, None, None, 3, None, 4))
    (one,) = compare(collect("sweep")).differences
    assert (one.pairs, one.unpaired) == ((2,), 2)
    write(store, [cell(FEDAVG, 0.9, 0)], [1], name="lone")
    said = "lone: fedavg is the only row; another one is required to compare\n"
    assert call("compare", "lone") == (0, said, "")


def test_runs_that_diverged_are_told(store: Tracker, call: Call) -> None:
    """At α=0.5 one of three runs of fedsam; at α=0.1 all of the reference; α=0.9 has the reference alone."""
    bad = ("diverged", [])
    cells = [cell(a, alpha, seed) for alpha in (0.5, 0.1) for a in (FEDAVG, SMALL) for seed in range(3)]
    outcomes = [60, 61, 62, 70, bad, 72, bad, bad, bad, 50, 51, 52]
    write(store, [*cells, *(cell(FEDAVG, 0.9, seed) for seed in range(2))], [*outcomes, bad, 40])
    each = "fedsam (dirichlet α=0.5) (1 diverged)", "fedavg (dirichlet α=0.1) (3 diverged)"
    last = "fedavg (dirichlet α=0.9) (1 diverged)"
    note = f"runs that diverged are in no mean and no pair: {each[0]}, {each[1]}, {last}"
    assert f"- {note}\n" in call("compare", "sweep").out
    means = json.loads(call("compare", "sweep", "--json").out)["means"]
    assert [one["diverged"] for one in means] == [0, 1, 3, 0, 1]
    write(store, cells[6:], outcomes[6:], name="none")
    assert call("compare", "none").err == f"fedray: {NO_PAIR} of fedavg; {note.partition(':')[0]}: {each[1]}\n"


def test_a_sweep_without_a_finished_run_is_one_line(store: Tracker, call: Call) -> None:
    """Not a table without numbers, under which 0 seeds are too few."""
    write(store, [cell(FEDAVG, 0.5, 0), cell(SMALL, 0.5, 0)], (None, None))
    code, out, err = call("compare", "sweep")
    assert (code, out, err.partition(";")[0]) == (2, "", f"fedray: {NO_PAIR} of fedavg")
    write(store, [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)], [("stopped", history(70, 80)), ("stopped", history(80))])
    assert call("compare", "sweep").err.startswith(f"fedray: {NO_PAIR}"), "stopped, they have no mean of last rounds"
    assert "| -1.0 " in call("compare", "sweep", "--metric", "rounds_to:80").out


def test_the_reference_is_fedavg_if_it_is_a_row(store: Tracker, call: Call) -> None:
    """Also by its display name, and for figures; without such a row it must be named: 73 - 71 = 2 to ρ=0.1."""
    one = [cell(a, 0.5, 0) for a in (FEDAVG, SMALL)]
    write(store, one, [70, 71])
    assert call("compare", "sweep").out == call("compare", "sweep", "--reference", "fedavg").out
    write(store, [each | {"names": {"fedavg": "FedAvg"}} for each in one], [70, 71], name="named")
    assert compare(collect("named")).to == "FedAvg"
    write(store, [cell(a, 0.5, 0) for a in (SMALL, LARGE)], [71, 73], name="without")
    required = "fedray: --reference: fedavg is not a row; one of these is required: fedsam ρ=0.1, fedsam ρ=0.5\n"
    for command in (("compare", "without"), ("figures", "without", "--kind", "differences")):
        assert call(*command).err == required
    named = call("compare", "without", "--reference", "FedSAM").err
    assert "unknown name 'FedSAM'; did you mean 'fedsam ρ=0.1' or 'fedsam ρ=0.5'? valid" in named
    (difference,) = compare(collect("without"), "fedsam ρ=0.1").differences
    assert difference.mean == 2


NO_PAIR = "compare: no finished run has the setting and seed of one"


def in_setting(algorithm: dict[str, Any], seed: int, rounds: int = 4) -> dict[str, Any]:
    one = cell(algorithm, 0.5, seed)
    return one | {"hash": f"{one['hash']}-{rounds}", "config": one["config"] | {"training": {"rounds": rounds}}}


def test_blocks_of_several_sweeps_share_a_table(store: Tracker, call: Call) -> None:
    """Pairs are those of equal seeds: 71 - 70, 82 - 80, and of `mine`, which lacks block 1, 75 - 70 and 96 - 90."""
    for k, values in enumerate(((70, 71), (80, 82), (90, 93))):
        write(store, [in_setting(one, k) for one in (FEDAVG, SMALL)], values, name=f"methods/{k}")
    for k, value in ((0, 75), (2, 96)):
        write(store, [in_setting(LARGE, k)], [value], name=f"mine/{k}")
    write(store, [in_setting(LARGE, 0)], [75], name="mine/0/tune")
    pairs = [(one.row, one.gaps, one.unpaired) for one in compare(collect("methods", "mine")).differences]
    assert pairs == [("fedsam ρ=0.1", (1, 2, 3), 0), ("fedsam ρ=0.5", (5, 6), 1)]
    out = call("compare", "methods", "mine").out
    assert out.startswith("**methods and mine: difference to fedavg: test accuracy in %, round 4**\n")
    assert "- mine/1 is not in this store\n" in out
    assert "| <u>80.00 ± 10.00</u> " in call("tables", "methods", "mine").out
    assert call("tables", "methods/1").out.startswith("**methods/1: ")
    assert "mine/1" not in call("compare", "methods").out
    told = json.loads(call("compare", "methods", "mine", "--json").out)
    assert [one["mean"] for one in told["means"]] == [80, 82, 85.5]
    write(store, [in_setting(LARGE, 0, rounds=9)], [75], name="longer")
    pairs = [(one.column, one.gaps) for one in compare(collect("methods/0", "longer")).differences]
    assert pairs == [("dirichlet α=0.5 rounds=4", (1,)), ("dirichlet α=0.5 rounds=9", ())]


def test_the_page_makes_latex_of_differences(project: Path, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    """Differences 1, 2, 3: mean 2, and the t interval is 2 ± 4.303 · 1 / √3 = 2 ± 2.484; Holm's p that of t = 2 √3.
    Beside it a row of two seeds, which has neither."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL, LARGE) for seed in range(3)]
    write(Tracker(), cells, [70, 70, 70, 71, 72, 73, 75, 76])
    (project / "compare.json").write_text(call("compare", "sweep", "--json").out, encoding="utf-8")
    page = (Path(__file__).parents[2] / "docs/analysis.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(# differences\.py\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    exec(code, {})  # noqa: S102
    latex = capsys.readouterr().out
    for row in (r"0.1 & 3 & 2.00 & [$-$0.48, 4.48] & 0.074 & not told apart \\", r"0.5 & 2 & 5.50 & -- & -- & too few"):
        assert rf"dirichlet $\alpha$=0.5 & fedsam $\rho$={row}" in latex
    write(Tracker(), [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in range(2)], [70, 70, 71, 72], name="few")
    (one,) = json.loads(call("compare", "few", "--json").out)["differences"]
    assert (one["mean"], one["low"], one["adjusted"], one["verdict"]) == (1.5, None, None, "too few seeds")


def test_a_method_with_too_few_seeds_beside_others_has_no_verdict(store: Tracker, call: Call) -> None:
    """At ρ = 0.5 two of three seeds: 10 and 10.1 would be p = 0.003. It is no test of Holm's for ρ = 0.1 either."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL, LARGE) for seed in range(3)]
    write(store, cells, [60, 60, 60, 61, 62, 64, 70, 70.1, None])
    small, large = json.loads(call("compare", "sweep", "--json").out)["differences"]
    assert (large["n"], large["verdict"]) == (2, "too few seeds")
    assert large["p"] is large["adjusted"] is large["low"] is None
    assert small["adjusted"] == small["p"] > 0.05
    line = next(line for line in call("compare", "sweep").out.splitlines() if line.startswith("| fedsam ρ=0.5"))
    assert "too few seeds" in line
    assert "better" not in line
    out = call("compare", "sweep").out
    assert "- n: pairs with two numbers; the difference is of these, a mean of all runs with one\n" in out
    assert "equal differences" not in out, "none of those that are tested are"


def test_runs_that_never_reach_the_target_are_told(store: Tracker, call: Call) -> None:
    """Their seeds have no difference: the mean is of those that do, which a note says, as below tables."""
    write(store, [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in range(3)], [80, 80, 80, 80, 10, 10])
    out = call("compare", "sweep", "--metric", "rounds_to:70").out
    assert "in no mean" not in out, "the entry says it"
    assert re.search(r"\| fedsam .*\| 1 \(never: 2\) \| 1.0 \(2 never\) +\| \+0.0 +\| no test; wins 0.5 of 3 \|", out)
    said = "a tie counts half; who never arrives loses, neither is left out): 0.5 of 3: 0.17 ("
    assert said in out, "a tie and two that never arrive"
    write(store, [cell(a, 0.1, seed) for a in (FEDAVG, SMALL) for seed in range(4)], [80] * 7 + [10], name="four")
    (one,) = json.loads(call("compare", "four", "--metric", "rounds_to:70", "--json").out)["differences"]
    told = [one[key] for key in ("n", "never", "neither", "verdict")]
    assert told == [3, 1, 0, "no test; wins 1.5 of 4"], "not of three"
    latex = call("tables", "sweep", "--metric", "rounds_to:70", "--best-except", "fedavg", "--format", "latex").out
    (caption,) = re.findall(r"\\caption\{.*\}", latex)
    assert "never: runs that do not reach the target, in no mean; their entries are not ranked; best base" in caption
    nobody = call("compare", "sweep", "--metric", "rounds_to:90").out
    row = r"\| fedsam .*\| 0 \(neither: 3\) \| - \(3 never\) +\| no test +\|"
    assert re.search(row, nobody), "pairs that nobody wins"
    assert "that beat" not in nobody
    assert "interval" not in nobody
    assert "sign-flip" not in nobody


def test_losses_have_the_digits_of_tables(store: Tracker, call: Call) -> None:
    """Three figures of 0.04: four digits. Gaps 0.001, 0.002, 0.003 have the half width 0.001 * 4.303 / sqrt(3). Of
    three seeds there is no bootstrap, which no note explains."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in range(3)]
    losses = (0.03, 0.03, 0.03, 0.031, 0.032, 0.033)
    write(store, cells, [[row | {"test_loss": loss} for row in history(80)] for loss in losses])
    out = call("compare", "sweep", "--metric", "test_loss").out
    assert re.search(r"fedsam .*\| 0.0320 +\| \+0.0020 +\| not told apart \| -0.0005 .. \+0.0045 \|", out)
    assert "bootstrap" not in out


def test_all_commands_round_a_mean_alike(store: Tracker, call: Call) -> None:
    """pandas has two means: 93.06500000000001 of a column, 93.065, whose double is below it, of a group."""
    seeds = [93.351, 93.004, 92.973, 92.629, 93.368]
    write(store, [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in range(5)], [*seeds, *seeds])
    assert call("tables", "sweep").out.count("93.07 ± 0.31") == 2
    assert call("compare", "sweep").out.count("| 93.07 |") == 2
    (figure,) = draw_methods(collect("sweep")).values()
    assert [text.get_text() for text in figure.axes[0].texts] == ["93.07", "93.07"]


@pytest.mark.parametrize(("metric", "means"), [("slowdown", [1, 0.35]), ("speedup", [1, 3.5])])
def test_ratios_of_rounds_are_taken_seed_by_seed(store: Tracker, metric: str, means: list[float]) -> None:
    """To 80 %: fedavg in rounds 2, 5 and 3; fedsam in 1, 1 and never. Slowdowns 1/2 and 1/5, mean 0.35; speed-ups 2 and
    5, mean 3.5. The ratio of the means would be 1/3.5. At α = 0.1 fedavg never gets there: fedsam's 1 is alone."""
    cells = [cell(a, 0.5, seed) for a in (FEDAVG, SMALL) for seed in (0, 1, 2)]
    cells += [cell(a, 0.1, 0) for a in (FEDAVG, SMALL)]
    curves = [(70, 80), (1, 2, 3, 4, 80), (1, 2, 80), (80,), (81,), (1, 2, 3), (1, 2), (80,)]
    write(store, cells, [history(*c) for c in curves])
    table = build(collect("sweep"), f"{metric}:80/fedavg")
    one, other = table.columns
    assert [table.entries[row, one].mean for row in table.rows] == means
    assert [dict(table.entries[row, one].others) for row in table.rows] == [{}, {"never": 1}]
    assert dict(table.entries["fedavg", other].others) == {"never": 1}
    assert dict(table.entries["fedsam", other].others) == {"without a counterpart": 1}
    never, unpaired = table.captioned  # all are tested in round 1
    assert never == "never: runs that do not reach the target, in no mean; their entries are not ranked"
    assert unpaired.startswith("without a counterpart: fedavg's run of that seed never reached the target, or has not")
    assert "at least 80 %: " in table.title


RUNS = 2000


def tolerance(rate: float, runs: int = RUNS) -> float:
    """Two standard errors of a simulated rate."""
    return float(2 * np.sqrt(rate * (1 - rate) / runs))


def test_student_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, s = 1, t(0.975, 2) = 4.302653, so 2 ± 4.302653 / sqrt(3)."""
    found = bound_mean([1, 2, 3])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-5)
    assert bound_mean([1.0]) is None
    assert bound_mean([0.3, 0.1 + 0.2]) is None
    # 1, 2, 3: t = 2 sqrt(3) = 3.4641 with 2 degrees of freedom: p = 1 - t / sqrt(t^2 + 2) = 0.074180.
    assert compute_p([1, 2, 3]) == pytest.approx(1 - np.sqrt(12 / 14), abs=1e-6)
    assert compute_p([0.3, 0.3, 0.3]) == 0.25  # no spread: the sign flips'
    assert compute_p([0.0, 0.0, 0.0]) == 1, "runs with the same bits"
    assert compute_p([1.0]) is None


def coverage_of_the_bootstrap(kind: str, n: int, runs: int) -> float:
    rng = np.random.default_rng(n)
    draws = rng.normal(size=(runs, n)) if kind == "normal" else rng.standard_t(5, (runs, n))
    bounds = np.array([statistics.bootstrap_percentiles(row, 0.95) for row in draws])
    return float(np.mean((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "heavy tails"])
def test_the_bootstrap_is_printed_from_where_it_covers(kind: str) -> None:
    """At least 92 % at BOOTSTRAP_SEEDS, for normal differences and for t's with 5 degrees of freedom; too few at five.
    The bound leaves two standard errors of the simulation."""
    assert coverage_of_the_bootstrap(kind, statistics.BOOTSTRAP_SEEDS, RUNS) >= 0.92 - tolerance(0.92)
    assert coverage_of_the_bootstrap(kind, 5, 500) < 0.9


def test_fewer_seeds_have_no_bootstrap_interval() -> None:
    values = np.random.default_rng(0).normal(size=statistics.BOOTSTRAP_SEEDS)
    assert statistics.bootstrap(values[:-1]) is None
    found = statistics.bootstrap(values)
    assert found == statistics.bootstrap(values)  # keyed draws
    assert found is not None
    assert found.low < values.mean() < found.high


def test_proportion_by_hand() -> None:
    """3 of 3: the lower bound is the p with p^3 = 0.025, 0.292402; of 0 of 3 the upper is 1 minus that."""
    assert statistics.bound_proportion(3, 3).low == pytest.approx(0.025 ** (1 / 3))
    assert statistics.bound_proportion(3, 3).high == 1
    assert statistics.bound_proportion(0, 3).high == pytest.approx(1 - 0.025 ** (1 / 3))
    assert statistics.bound_proportion(0, 3).low == 0


def test_sign_flips_by_hand() -> None:
    """1, 2, 3: of the 8 sums only +6 and -6 are as large as 6: 2/8. 1, 1, -1: sum 1, and all 8 have |sum| >= 1."""
    assert (flip_signs([1, 2, 3]), flip_signs([1, 1, -1])) == (0.25, 1)
    assert flip_signs([0.0, 0.0]) == 1
    assert flip_signs([]) is None
    assert flip_signs([1.0] * 30) == pytest.approx(2 / 2**30), "only the two sums of equal signs are as large"
    assert flip_signs([1.0] * 41) is None, "above 40 there is no p"


@pytest.mark.parametrize("n", [1, 2, 5, 9, 12])
def test_sign_flips_count_all_signs(n: int) -> None:
    """Against the plain enumeration."""
    values = np.random.default_rng(n).normal(0.5, 1, n).round(1)
    sums = [abs(np.dot(signs, values)) for signs in itertools.product((-1, 1), repeat=n)]
    assert flip_signs(values) == pytest.approx(np.mean([one >= abs(values.sum()) - 1e-9 for one in sums]))


def test_holm_by_hand() -> None:
    """0.01, 0.04, 0.03 sorted: 3 x 0.01 = 0.03, 2 x 0.03 = 0.06, then max(0.06, 0.04) = 0.06."""
    assert apply_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert (apply_holm([0.9, 0.8]), apply_holm([])) == ([1, 1], [])


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("methods", [2, 7])
def test_family_wise_error_under_the_null(seeds: int, methods: int) -> None:
    """No method differs from the reference, whose noise they share: a setting shows a difference in at most 5 %. Two
    standard errors of the simulation are allowed."""
    rng = np.random.default_rng(10 * seeds + methods)
    errors = 0
    for noise in rng.normal(size=(RUNS, methods + 1, seeds)):
        gaps = noise[1:] - noise[0]
        each = zip(gaps, ttest_1samp(gaps, 0.0, axis=1).pvalue, strict=True)
        family = [Difference(f"m{k}", "setting", tuple(gap), 0, 0.95, p) for k, (gap, p) in enumerate(each)]
        errors += any(one.judge(lower=False) != "not told apart" for one in adjust_p_values(family))
    assert errors / RUNS <= 0.05 + tolerance(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.8, 1.5, 3.0])
def test_power_is_what_a_simulation_shows(effect: float) -> None:
    """With the reported number of seeds POWER of the runs, or slightly more, find a difference of `effect` spreads."""
    needed = count_seeds(effect, 1.0, 0.05)
    assert needed is not None
    draws = np.random.default_rng(1).normal(effect, 1, (RUNS, needed))
    rate = np.mean([(compute_p(row) or 1) <= 0.05 for row in draws])
    assert rate >= POWER - tolerance(POWER)
    assert rate == pytest.approx(float(compute_power(effect, np.array([needed]), 0.05)[0]), abs=1.5 * tolerance(POWER))
    assert compute_power(effect, np.array([needed - 1]), 0.05)[0] < POWER


@pytest.mark.parametrize("level", [0.05, 0.005])
def test_power_of_no_difference_is_the_level(level: float) -> None:
    """Half of it on either side, whatever the number of seeds."""
    assert compute_power(0.0, np.array([2, 5, 30]), level) == pytest.approx(level)


def test_seeds_that_cannot_be_had() -> None:
    """Beyond 10^8 spreads the non-central t gives no number: no doubt is left with the fewest seeds."""
    assert count_seeds(0.0, 1.0, 0.05) is None
    assert count_seeds(0.001, 1.0, 0.05) is None
    assert (count_seeds(1000.0, 1.0, 0.05), count_seeds(1e10, 1.0, 0.05)) == (2, 2)
