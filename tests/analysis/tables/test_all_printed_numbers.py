"""Every number that a paper prints matches a cell of a shipped sweep."""

from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from fedray.algorithms import ALGORITHMS
from fedray.analysis.data.axes import find_columns, label_cells
from fedray.analysis.data.collect import SweepTable, list_expected
from fedray.analysis.tables.build import drop_keys
from fedray.analysis.tables.published import (
    BEST,
    BEST_BASELINE,
    list_tables,
    load,
    match_numbers,
    with_deviations,
)
from fedray.cells.cell import Cell
from fedray.components.plugins import list_form_options
from fedray.datasets import DATASETS
from fedray.models import MODELS
from fedray.papers.variants import VARIANTS
from fedray.partitions import PARTITIONS
from fedray.sweep.document import get_sweeps_folder
from fedray.sweep.sweep import Sweep

PA_GA = "best_personal_accuracy,best_generic_accuracy"
ACCURACY = "last10_test_accuracy"
SAM = "test_accuracy,train_accuracy,personal_accuracy,personal_std,personal_train_accuracy,personal_train_std"
SETTINGS = "partition,clients.total"
REGISTRIES = {"algorithm": {**ALGORITHMS, **VARIANTS}, "data": DATASETS, "model": MODELS, "partition": PARTITIONS}
PRINTED = {
    "fedsam/table1": [("fedsam/table1", f"{SAM},rounds_to:80,rounds_to:50", "")],
    "fedsam/table2": [("fedsam/table2", f"{SAM},rounds_to:80", "")],
    "fedsam/table4": [("fedsam/table4", f"{SAM},rounds_to:80", "")],
    "fedsam/table5": [("fedsam/table5", f"{SAM},rounds_to:50", "")],
    **{f"fedsol/table{n}": [(f"fedsol/table{n}", ACCURACY, "")] for n in (1, 2, 3, 4, 10)},
    "fedsol/v1_table1": [("fedsol/v1_table1", ACCURACY, ""), ("fedsol/table2", ACCURACY, "")],
    "fedsol/table5": [("fedsol/table5", f"{ACCURACY},relative_flops", "")],
    "fedsol/table9": [
        ("fedsol/table9", "personal_accuracy_e1,personal_std_e1,personal_accuracy_e5,personal_std_e5", "")
    ],
    **{f"fedgela/table{n}": [(f"fedgela/table{n}", PA_GA, "")] for n in (2, 3, 5, 6, 11)},
    "fedgela/table4": [("fedgela/table4", PA_GA, "partition")],
    "fedgela/table8": [("fedgela/table2", PA_GA, SETTINGS), ("fedgela/table3", PA_GA, "")],
    "fedgela/table9": [("fedgela/table9", "rounds_to:fedavg,speedup:fedavg/fedavg", "")],
    "fedgela/table10": [("fedgela/table10", PA_GA, SETTINGS)],
    **{f"fedtoga/table{n}": [(f"fedtoga/table{n}", ACCURACY, "")] for n in (1, 2, 7, 10)},
    "fedtoga/table3": [("fedtoga/table3", "rounds_to:80,slowdown:80/fedtoga,rounds_to:82,slowdown:82/fedtoga", "")],
    "fedtoga/table8": [("fedtoga/table8", "rounds_to:80,rounds_to:82,rounds_to:76,rounds_to:78", "")],
    "fedtoga/table9": [("fedtoga/table9", "seconds_per_round_with_evaluation", "")],
}
"""Published table -> sweeps, metrics and `--average-over` of the commands of docs/papers.md."""


@cache
def one_seed(name: str) -> SweepTable:
    """The cells of a shipped sweep with seed 0: the printed numbers have none."""
    table = list_expected(Sweep.load(get_sweeps_folder() / f"{name}.yaml"))
    return replace(table, cells=table.cells[table.cells["seed"] == 0])


def entries(table: SweepTable, over: str) -> dict[tuple[str, str], list[Cell]]:
    """The cells of each entry, the best baseline's (any of them, FedProx) included."""
    cells = table.cells.assign(_row=label_cells(table.cells, "algorithm"))
    columns = find_columns(cells, cells["_row"])
    cells = pd.concat([cells, cells[cells["_row"] == "fedprox"].assign(_row=BEST)])
    cells = cells.assign(_column=drop_keys(cells, columns, over) if over else label_cells(cells, columns))
    return {(str(row), str(column)): list(group["spec"]) for (row, column), group in cells.groupby(["_row", "_column"])}


@pytest.mark.parametrize("name", list(list_tables()))
def test_every_printed_number_stands_beside_one_of_ours(name: str) -> None:
    """All commands together, without the numbers that are declared as having no counterpart."""
    wanted = [one for one in with_deviations(name) if one.config]
    found = []
    for sweep, metrics, over in PRINTED[name]:
        groups = entries(one_seed(sweep), over)
        for metric in metrics.split(","):
            found += match_numbers(name, metric, groups, bool(over)).values()
    assert [one for one in wanted if one not in found] == []


def test_numbers_without_a_counterpart_are_copies_and_repetitions() -> None:
    """FedTOGA's table 7 prints 85 numbers of earlier papers; FedSOL's table 5 prints its one cell for ρ = 0 in three
    rows, one of which is FedAvg's here.
    """
    alone = {name: [one for one in load(name) if not one.config] for name in list_tables()}
    assert {name: len(found) for name, found in alone.items() if found} == {"fedtoga/table7": 85, "fedsol/table5": 2}
    assert all("version=old" in one.notes for one in alone["fedtoga/table7"])
    assert [(one.method, one.value) for one in alone["fedsol/table5"]] == [
        ("fedsol-body", 56.13),
        ("fedsol-head", 56.13),
    ]


@pytest.mark.parametrize("name", list(list_tables()))
def test_published_configurations_are_those_of_the_registries(name: str) -> None:
    """Each key names an option of the component that its row chooses, and each value is one that it takes; a row of
    runs of 0.2, too, names the present method last, and options that it has no more at their defaults, or null.
    """
    for one in load(name):
        for section, registry in REGISTRIES.items():
            options = {
                key.partition(".")[2]: values for key, values in one.config.items() if key.startswith(f"{section}.")
            }
            chosen = options.pop("name", ())
            if chosen in ((), (BEST_BASELINE,)):
                continue
            moved = list_form_options(chosen[-1]).items()
            assert all(set(options.pop(option, ())) <= {default, None} for option, default in moved)
            required = {option: 1 for option in registry[chosen[-1]].list_required()}
            for option, values in options.items():
                for value in values:
                    nested = {"name": value} if option.endswith(".name") else value
                    registry[chosen[-1]].parse(section, required | {option.removesuffix(".name"): nested})
