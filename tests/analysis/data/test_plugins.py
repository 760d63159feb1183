"""A plug-in's letters, titles and better direction reach tables and figures, and no class is imported for them."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import Field

from fedray.analysis.comparison import _describe_wins, compare, format_report
from fedray.analysis.data.axes import find_symbol, label_cells, title_axes
from fedray.analysis.data.collect import collect
from fedray.analysis.data.metrics import is_smaller_better, make_title
from fedray.analysis.plots.curves import draw_curves
from fedray.analysis.tables.build import build
from fedray.analysis.tables.published import BEST
from fedray.cells.cell import PluginLabels
from fedray.partitions.base import Partition
from fedray.partitions.schemes import PxCy
from fedray.partitions.shards import Shards
from fedray.probes.probe import Probe
from fedray.sweep.plan import describe_plugins
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import FEDAVG, LARGE, SMALL, Outcome, cell, history, write
from tests.conftest import Call
from tests.small import config

HERE = __name__
ABSENT = "absent_from_here"


class Skewed(Partition):
    """Sample i belongs to client i mod N."""

    symbols = {"strength": "ψ"}
    strength: float = Field(ge=0)
    rho: float = 0.5

    def draw(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Shards:
        return Shards.from_owner(np.arange(len(labels)) % clients, clients)


class Effort(Probe):
    """Three metrics; in one less is better, in one nothing is."""

    name = "effort"
    metrics = {"effort": "effort of a client (J)", "lossless_*": "share kept, part", "angle_*": "angle, part"}
    lower_is_better = frozenset({"effort"})
    unranked = frozenset({"angle_*"})


def own(partition: str) -> dict[str, object]:
    """The record of a run's plug-ins, the two classes above, as the driver writes it."""
    skewed = {"name": f"{HERE}:Skewed", "strength": 2.0}
    run = config(model="mlp", partition=skewed, evaluation={"probes": [f"{HERE}:Effort", "drift"]})
    return dict(json.loads(json.dumps(asdict(describe_plugins(run))).replace(HERE, partition)))


def test_what_a_run_writes_down_of_its_plug_ins() -> None:
    assert own(HERE) == {
        "names": {f"{HERE}:Effort": "effort"},
        "symbols": {f"{HERE}:Skewed": {"strength": "ψ"}},
        "required": {f"{HERE}:Skewed": ["strength"]},
        "titles": {"effort": "effort of a client (J)", "lossless_*": "share kept, part", "angle_*": "angle, part"},
        "lower": ["effort"],
        "unranked": ["angle_*"],
    }


def test_letters_that_a_class_in_fedray_declares_reach_tables(monkeypatch: pytest.MonkeyPatch, store: Tracker) -> None:
    monkeypatch.setattr(PxCy, "symbols", {"classes": "c"})
    chosen = {"name": "pxcy", "classes": 2}
    one = cell(FEDAVG, 0.1, 0) | {"plugins": asdict(describe_plugins(config(partition=chosen)))}
    one["config"]["partition"] = chosen
    write(store, [one], [50])
    assert find_symbol("partition.classes", collect("sweep").cells) == "c"
    assert describe_plugins(config()) == PluginLabels()


@pytest.fixture
def stored(store: Tracker) -> Tracker:
    """FedAvg with effort 3, FedSAM with effort 1, of a module that this process cannot import."""
    cells, outcomes = [], list[Outcome]()
    for algorithm, effort in ((FEDAVG, 3.0), (SMALL, 1.0)):
        for seed in (0, 1):
            one = cell(algorithm, 0.1, seed)
            one["config"]["partition"] = {"name": f"{ABSENT}:Skewed", "strength": 2.0}
            cells.append(one | {"plugins": own(ABSENT)})
            measured = {"effort": effort, "lossless_a": 50.0, "angle_a": effort}
            outcomes.append([row | measured for row in history(10.0, 20.0)])
    write(store, cells, outcomes)
    return store


def test_tables_and_figures_show_them(stored: Tracker) -> None:
    """The required option is named though it has one value; the smallest effort is the best and called better."""
    sweep = collect("sweep")
    table = build(sweep, "effort")
    assert table.title == "sweep: effort of a client (J) of the last round"
    assert table.columns == [f"{ABSENT}:Skewed ψ=2"]
    assert find_symbol("partition.strength", sweep.cells) == "ψ"
    assert make_title("lossless_a", sweep.cells) == "share kept, part a of the last round"
    assert is_smaller_better("effort", sweep.cells)
    assert not is_smaller_better("lossless_a", sweep.cells), "its class says so, though its name contains `loss`"
    assert is_smaller_better("proximal_loss", sweep.cells)
    found = compare(sweep, "fedavg", "effort")
    assert found.lower
    assert "(Clopper and Pearson's interval): 2 of 2: " in _describe_wins(found)[0]
    (figure,) = draw_curves(sweep, "effort").values()
    assert figure.axes[0].get_ylabel() == "effort of a client (J)"


def test_of_an_unranked_metric_no_entry_is_the_best(stored: Tracker, tmp_path: Path, call: Call) -> None:
    """Angles 3 and 1 are shown, neither bold nor underlined; what needs a best one is refused in one line."""
    out = call("tables", "sweep", "--metric", "angle_a,last10_angle_a").out
    assert re.search(r"^\| fedavg +\| 3\.00 ± 0\.00 +\| 3\.00 ± 0\.00 +\|$", out, re.MULTILINE)
    assert "bold" not in out
    folder = ("--out", str(tmp_path / "out"))
    differences = ("figures", "sweep", *folder, "--kind", "differences")
    for refused in (("compare", "sweep"), ("tables", "sweep", "--best-except", "fedavg"), differences):
        code, _, err = call(*refused, "--metric", "angle_a")
        assert (code, err.count("\n")) == (2, 1), refused
        said = "fedray: --metric: found 'angle_a', and no value of it is the best"
        assert err.startswith(said), refused
    page = str(tmp_path / "page.html")
    for shown in (("figures", "sweep", *folder, "--kind", "methods"), ("report", "sweep", "--out", page)):
        assert call(*shown, "--metric", "angle_a").code == 0


UNDECLARED = ("gloss_coverage", "backgrounds_seen")
"""Metrics that a plug-in measures and declares nowhere; `loss` and `rounds` are among their letters."""


@pytest.mark.parametrize("metric", UNDECLARED)
def test_undeclared_metrics_are_best_if_largest(metric: str, store: Tracker, call: Call) -> None:
    """FedAvg 3, FedSAM 1 with every seed: FedAvg is bold, and the table says once why; its deviation is as always."""
    measured = [(algorithm, seed, value) for algorithm, value in ((FEDAVG, 3.0), (SMALL, 1.0)) for seed in (0, 1)]
    outcomes: list[Outcome] = [[row | {metric: v, f"{metric}_std": v} for row in history(10.0)] for *_, v in measured]
    write(store, [cell(algorithm, 0.1, seed) for algorithm, seed, _ in measured], outcomes)
    said = f"- {metric}: no probe says which values are better, so larger ones count as better"
    table = call("tables", "sweep", "--metric", f"{metric},last10_{metric}").out
    assert re.search(r"^\| fedavg +\| \*\*3\.00 ± 0\.00\*\* +\| \*\*3\.00 ± 0\.00\*\* ", table, re.MULTILINE)
    assert table.count(said) == 1
    assert not is_smaller_better(metric, collect("sweep").cells)
    table = call("tables", "sweep", "--metric", f"{metric}_std,test_accuracy,test_loss").out
    assert re.search(r"^\| fedavg +\| <u>3\.00 ± 0\.00</u> ", table, re.MULTILINE)
    assert "no probe says" not in table
    found = compare(collect("sweep"), "fedavg", metric)
    assert not found.lower
    assert ": 0 of 2: " in _describe_wins(found)[0]
    assert said in format_report(found)


def test_a_plug_ins_metric_is_averaged_over_rounds_whatever_its_name(store: Tracker) -> None:
    """It is measured in every evaluated round; personal models are tested in round 4 alone."""
    one = cell(FEDAVG, 0.1, 0)
    one["config"] |= {"training": {"rounds": 10}, "evaluation": {"every": 1, "personal": {"every": 10}}}
    write(store, [one], [[row | {"impersonal_share": 1.0, "personal_accuracy": 1.0} for row in history(*range(10))]])
    cells = collect("sweep").cells
    assert make_title("last10_personal_accuracy", cells).endswith(", round 10")
    assert make_title("last10_impersonal_share", cells).endswith(", mean of rounds 9 to 10")


NAMES = {"fedsam": "FedSAM", "fedavg": "FedSAM ρ=0.1", "dirichlet": "", "partition.alpha": "Dirichlet α"}
NAMES |= {"dirichlet α=0.5": "mild"}


def test_a_sweep_gives_methods_settings_and_axes_names(store: Tracker) -> None:
    """FedAvg is given the name of a row of FedSAM, so both keep their labels, too; the dotted key names the axis."""
    cells = [cell(method, alpha, 0) | {"names": NAMES} for method in (FEDAVG, SMALL, LARGE) for alpha in (0.1, 0.5)]
    write(store, cells, [10.0 * k for k in range(len(cells))])
    sweep = collect("sweep")
    table = build(sweep, reference="fedsam ρ=0.5", best_except="fedavg")
    shown = ["FedSAM ρ=0.1 (fedavg)", "FedSAM ρ=0.1 (fedsam ρ=0.1)", "FedSAM ρ=0.5"]
    assert (table.rows, table.columns, table.reference) == ([*shown, BEST], ["Dirichlet α=0.1", "mild"], shown[2])
    assert compare(sweep, "fedavg").to == build(sweep, f"rounds_to:{shown[0]}").rows[0] == shown[0]
    assert build(sweep, "rounds_to:fedavg").entries == build(sweep, f"rounds_to:{shown[0]}").entries
    assert title_axes(["partition.alpha", "algorithm.alpha"], sweep.cells) == ["Dirichlet α", "α"]
    nameless = [replace(spec, names={}, plugins=replace(spec.plugins, names={})) for spec in sweep.cells["spec"]]
    plain = sweep.cells.assign(spec=nameless)
    assert title_axes(["partition.alpha", "algorithm.alpha"], plain) == ["α (partition)", "α (algorithm)"]
    assert title_axes(["partition.alpha"], plain.assign(**{"algorithm.alpha": 0.1})) == ["α (partition)"]
    assert title_axes(["partition.alpha"], sweep.cells.assign(**{"algorithm.alpha": 0.1})) == ["Dirichlet α"]
    assert list(label_cells(plain, "algorithm").unique()) == ["fedavg", "fedsam ρ=0.1", "fedsam ρ=0.5"]
