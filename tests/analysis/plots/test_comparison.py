"""Comparisons of methods over settings, read back from their axes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedray.analysis.commands.figures import main
from fedray.analysis.comparison import compare
from fedray.analysis.data.collect import collect
from fedray.analysis.plots.comparison import draw_forests, draw_improvements, draw_profiles, draw_radar, draw_ranks
from fedray.analysis.plots.curves import draw_curves
from fedray.analysis.report import make_page
from fedray.analysis.statistics import rank_methods
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.axes import note
from tests.analysis.runs import FEDAVG, LARGE, SMALL, cell, history, write

LEADS = {0.1: 52.0, 0.5: 54.0, 1.0: 51.0}
"""Dirichlet α -> accuracy of fedsam's first seed; fedavg has 50."""


def test_comparisons_of_methods_over_settings(store: Tracker, tmp_path: Path) -> None:
    """At α = 0.1 fedsam's seeds have 52 and 55, fedavg's 50 and 51: the mean difference is (2 + 4) / 2 = 3. In a radar
    of losses 1, 5, 2 and 3, 4, 2 the smaller one is on the rim (1); equal ones are in the centre (0). Rounds of 0.5 s.
    """
    found = {(FEDAVG["name"], a): 50.0 for a in (0.1, 0.5, 1.0)} | {(SMALL["name"], a): v for a, v in LEADS.items()}
    cells = [cell(method, a, seed) for method in (FEDAVG, SMALL) for a in LEADS for seed in (0, 1)]
    values = [found[one["config"]["algorithm"]["name"], one["config"]["partition"]["alpha"]] for one in cells]
    seeds = [one["config"]["seed"] * (1 if one["config"]["algorithm"] == FEDAVG else 3) for one in cells]
    write(store, cells, [history(v - 10, v + s) for v, s in zip(values, seeds, strict=True)])
    for kind in ("differences", "ranks", "radar"):
        main("sweep", kind, out=tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    assert {f"sweep-{kind}.{end}" for kind in ("ranks", "radar") for end in ("png", "pdf")} < made
    assert len([name for name in made if name.startswith("sweep-differences-")]) == 6
    sweep = collect("sweep")
    (forest, *_) = draw_forests(compare(sweep, "fedavg", "final_test_accuracy")).values()
    assert forest.axes[0].lines[1].get_xdata() == pytest.approx([3.0])
    assert [text.get_text() for text in forest.legends[0].get_texts()] == ["p < 0.05 (Holm)", "not told apart"]
    sweep.cells["metrics.seconds_per_round"] = 0.5
    (figure,) = draw_curves(sweep, x="seconds").values()
    assert figure.axes[0].lines[0].get_xdata() == pytest.approx([0.5, 1.0])
    means = pd.DataFrame({"a": [1.0, 3.0], "b": [5.0, 4.0], "c": [2.0, 2.0]}, ["one", "two"])
    first, second = draw_radar(means, "loss", lower=True).axes[0].lines
    assert np.asarray(first.get_ydata()).tolist() == [1, 0, 0, 1]
    assert np.asarray(second.get_ydata()).tolist() == [0, 1, 0, 0]
    with pytest.raises(UserError, match="found 2 settings that all methods finished; allowed: 3 or more"):
        draw_radar(means[["a", "b"]], "loss", lower=True)


def test_ranks_say_what_friedman_finds(store: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three methods in the same order on two settings: 3 are needed, p = 3! / 3!^2 = 1/6, and one bar joins all.

    On four settings in the same order p = 1/216, and the first and the last are not joined.
    """
    cells = [cell(method, alpha, 0) for alpha in (0.1, 0.5) for method in (FEDAVG, SMALL, LARGE)]
    write(store, cells, [60, 70, 80] * 2)
    main("sweep", "ranks", out=tmp_path)
    said = (
        "3 methods on 2 settings can never be told apart by ranks: 3 settings are needed (Friedman's test: p = 0.167)"
    )
    assert capsys.readouterr().out.startswith(f"{said}\n")
    few = compare(collect("sweep"), "fedavg").ranks
    assert few is not None
    figure = draw_ranks(few)
    assert figure.axes[0].texts[-1].get_text().replace("\n", " ") == said
    bars = [line for line in figure.axes[0].lines if line.get_linewidth() == 2]
    assert [list(map(float, bar.get_xdata())) for bar in bars] == [pytest.approx([0.96, 3.04])]
    enough = rank_methods(pd.DataFrame([[3, 2, 1]] * 4, columns=["a", "b", "c"]), lower=False)
    assert enough is not None
    figure = draw_ranks(enough)
    assert figure.axes[0].texts[-1].get_text() == "Friedman's test: p = 0.005"
    bars = [line for line in figure.axes[0].lines if line.get_linewidth() == 2]
    assert [list(map(float, bar.get_xdata())) for bar in bars] == [
        pytest.approx([0.96, 2.04]),
        pytest.approx([1.96, 3.04]),
    ]


def test_improvement_and_profiles_of_few_seeds(store: Tracker, tmp_path: Path) -> None:
    """fedsam 61, 62 against fedavg 60, 61.5: of four pairs 61 loses to 61.5 only, 0.75; at α = 0.5 it wins all: 0.875.

    Above 61.2 are fedsam's 62, 71 and 72: 3 of 4. At α = 1 a run of fedsam diverged: the setting is left out.
    """
    cells = [cell(method, alpha, seed) for alpha in (0.1, 0.5, 1.0) for method in (FEDAVG, SMALL) for seed in (0, 1)]
    write(store, cells, [60, 61.5, 61, 62, 60, 60, 71, 72, 50, 50, 99, ("diverged", [])])
    sweep = collect("sweep")
    area = draw_improvements(compare(sweep, "fedavg")).axes[0]
    points = [line for line in area.lines if line.get_marker() == "o" and len(np.atleast_1d(line.get_xdata())) == 1]
    assert [float(np.atleast_1d(line.get_xdata())[0]) for line in points] == [0.875]
    assert [label.get_text() for label in area.get_yticklabels()] == ["fedsam"]
    (figure,) = draw_profiles(sweep).values()
    values, shares = np.asarray(figure.axes[0].lines[1].get_xydata()).T
    assert figure.axes[0].lines[1].get_label() == "fedsam"
    assert shares[np.searchsorted(values, 61.2)] == 0.75
    assert (shares[0], shares[-1]) == (1, 0)
    assert note(figure) == "4 runs each: 2 settings, 2 seeds\nno band: found 2 seeds, 10 are needed"
    assert not figure.axes[0].collections
    for kind in ("improvement", "profiles"):
        main("sweep", kind, out=tmp_path)
        assert {path.name for path in tmp_path.glob(f"*{kind}*")} == {f"sweep-{kind}.png", f"sweep-{kind}.pdf"}


def test_ten_seeds_have_bands_and_are_in_the_report(store: Tracker) -> None:
    """Of rounds to a target the smallest is best: fedsam reaches 50 % in round 1, fedavg in round 2 or, with seed 0,
    never. Below 1.5 rounds are all runs of fedsam and none of fedavg; below 2.5 are 18 of fedavg's 20."""
    cells = [cell(method, alpha, seed) for alpha in (0.1, 0.5) for method in (FEDAVG, SMALL) for seed in range(10)]
    slow = [history(1, 40 if one["config"]["seed"] == 0 else 60) for one in cells]
    own = [
        history(70, 70) if one["config"]["algorithm"] == SMALL else late for one, late in zip(cells, slow, strict=True)
    ]
    write(store, cells, own)
    (figure,) = draw_profiles(collect("sweep"), "rounds_to:50").values()
    area = figure.axes[0]
    assert area.get_ylabel() == "share of runs below"
    values, shares = np.asarray(area.lines[0].get_xydata()).T
    assert shares[np.searchsorted(values, 1.5)] == 0
    assert shares[-1] == 0.9
    assert note(figure).endswith("\nband: 95% stratified bootstrap")
    assert len(area.collections) == 2
    found = compare(collect("sweep"), "fedavg", "rounds_to:50").aggregates
    assert [(one.row, one.mean, one.improvement, one.bounds) for one in found] == [
        ("fedavg", 2.0, 0.5, found[0].bounds),
        ("fedsam", 1.0, 1.0, None),
    ]
    page = make_page(collect("sweep"), ["test_accuracy"])
    assert page.count('alt="Probability of improvement over fedavg"') == 1
    assert page.count('alt="Performance profiles"') == 1


def test_nothing_to_compare(store: Tracker) -> None:
    """One method has no rival; without a seed in common no setting is whole."""
    write(store, [cell(FEDAVG, 0.1, 0)], [70])
    with pytest.raises(UserError, match=r"--kind improvement: no setting has a value .* besides fedavg"):
        draw_improvements(compare(collect("sweep"), "fedavg"))
    write(store, [cell(FEDAVG, 0.1, 0), cell(SMALL, 0.1, 1)], [70, 70], "apart")
    with pytest.raises(UserError, match="--kind profiles: no setting has a value for every seed of every method"):
        draw_profiles(collect("apart"))
