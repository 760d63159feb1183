"""Every number that a paper prints has its place beside the cells of a shipped sweep."""

from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from analysis.claiming.decide import decide
from analysis.claiming.read import find, read
from analysis.claiming.runs import expected
from analysis.reading.axes import labels, separating
from analysis.reading.collect import SweepTable
from analysis.tables import averaged_over
from analysis.tabling.published import (
    _matches,
    _rows,
    _with_deviations,
    best_others,
    printed_values,
    tables,
)
from analysis.tabling.result_table import BEST
from fedray.sweep.file.shipped import folder, papers
from fedray.sweep.grid import Sweep

PA_GA = "best_personal_accuracy,best_generic_accuracy"
ACCURACY = "last10_test_accuracy"
SAM = "test_accuracy,train_accuracy,personal_accuracy,personal_std,personal_train_accuracy,personal_train_std"
SETTINGS = "partition,clients.total"
PRINTED = {
    "fedsam/table1": [("fedsam/table1", f"{SAM},rounds_to:80,rounds_to:50", "")],
    "fedsam/table2": [("fedsam/table2", f"{SAM},rounds_to:80", "")],
    "fedsam/table4": [("fedsam/table4", f"{SAM},rounds_to:80", "")],
    "fedsam/table5": [("fedsam/table5", f"{SAM},rounds_to:50", "")],
    **{f"fedsol/table{n}": [(f"fedsol/table{n}", ACCURACY, "")] for n in (1, 2, 3, 4, 10)},
    "fedsol/table5": [("fedsol/table5", f"{ACCURACY},relative_flops", "")],
    "fedsol/table9": [
        ("fedsol/table9", "personal_accuracy_e1,personal_std_e1,personal_accuracy_e5,personal_std_e5", "")
    ],
    **{f"fedgela/table{n}": [(f"fedgela/table{n}", PA_GA, "")] for n in (2, 3, 5, 6, 11)},
    "fedgela/table4": [("fedgela/table4", PA_GA, "partition")],
    "fedgela/table8": [("fedgela/table2", PA_GA, SETTINGS), ("fedgela/table3", PA_GA, "")],
    "fedgela/table9": [("fedgela/table9", "rounds_to:fedavg", "")],
    "fedgela/table10": [("fedgela/table10", PA_GA, SETTINGS)],
    **{f"fedtoga/table{n}": [(f"fedtoga/table{n}", ACCURACY, "")] for n in (1, 2, 7, 10)},
    "fedtoga/table3": [("fedtoga/table3", "rounds_to:80,rounds_to:82", "")],
    "fedtoga/table8": [("fedtoga/table8", "rounds_to:80,rounds_to:82,rounds_to:76,rounds_to:78", "")],
    "fedtoga/table9": [("fedtoga/table9", "seconds_per_round_with_evaluation", "")],
}
"""Published table -> sweeps, metrics and `--over` of the commands of docs/papers.md."""
RATIOS = ("speedup", "wall_clock_ratio")
"""Of rounds that are printed beside them; `--to` computes ours."""


@cache
def one_seed(name: str) -> SweepTable:
    """The cells of a shipped sweep with seed 0: the printed numbers have none."""
    table = expected(Sweep.load(folder() / f"{name}.yaml"))
    return replace(table, cells=table.cells[table.cells["seed"] == "0"].astype(object))  # quicker than text of Arrow


def entries(table: SweepTable, over: str) -> dict[tuple[str, str], pd.DataFrame]:
    """The cells of each entry, the best baseline's (any of them, FedProx) included."""
    cells = table.cells.assign(_row=labels(table.cells, "algorithm"))
    columns = separating(cells, cells["_row"])
    cells = pd.concat([cells, cells[cells["_row"] == "fedprox"].assign(_row=BEST)])
    cells = cells.assign(_column=averaged_over(cells, columns, over) if over else labels(cells, columns))
    return {(str(row), str(column)): group for (row, column), group in cells.groupby(["_row", "_column"])}


@pytest.mark.parametrize("name", list(tables()))
def test_every_printed_number_stands_beside_one_of_ours(name: str) -> None:
    """All commands together; without what a paper copies, and FedSOL's one cell for ρ = 0, which stands thrice."""
    rows = _with_deviations(name)
    wanted = rows[~rows["notes"].str.contains("version=old") & ~rows["metric"].isin(RATIOS)]
    found = set()
    for sweep, metrics, over in PRINTED[name]:
        groups = entries(one_seed(sweep), over)
        for metric in metrics.split(","):
            found |= set(_matches(_rows(name, metric), groups, bool(over), metric).values())
    left = wanted.loc[sorted(set(wanted.index) - found), ["dataset", "method", "metric", "value"]].to_numpy().tolist()
    repeated = [["cifar10", f"fedsol-{part}", "test_accuracy", 56.13] for part in ("body", "head")]
    assert left == (repeated if name == "fedsol/table5" else [])


@pytest.mark.parametrize(
    ("metric", "gaps"), [("personal_accuracy_e1", [1.8, 3.8, 1.6]), ("personal_accuracy", [0.8, 2.2, 0.2])]
)
def test_the_best_other_is_fine_tuned_as_long(metric: str, gaps: list[float]) -> None:
    """FedSOL's table 9: 87.5, 92.5, 88.1 after 1 epoch, the best of the others 85.7, 88.7, 86.5; after 5 (the most,
    which `personal_accuracy` is of) 90.5, 95.0, 91.6 and 89.7, 92.8, 91.4.
    """
    groups = entries(one_seed("fedsol/table9"), "")
    printed = printed_values("fedsol/table9", metric, groups)
    others = best_others("fedsol/table9", metric, groups, averaged=False, lower=False)
    ours = [key for key in groups if key[0] == "fedsol"]
    found = {key[1].split()[0]: printed[key] - others[key] for key in ours}
    assert [found[data] for data in ("cifar10", "svhn", "tissuemnist")] == pytest.approx(gaps)


@pytest.mark.slow
@pytest.mark.parametrize("paper", papers())
def test_a_claim_that_its_own_table_contradicts_says_so(paper: str) -> None:
    """The source of such a claim has the words `prints otherwise`, and of no other one."""
    for claim in read(find(paper)).claims:
        found = decide(claim, one_seed(claim.sweep)).whole
        gaps = [pair.printed for pair in found.pairs if pair.printed is not None]
        against = any(gap <= claim.by if claim.relation == "better" else abs(gap) > claim.by for gap in gaps)
        assert against == ("prints otherwise" in claim.source), f"{claim.name}: {found.printed}"
