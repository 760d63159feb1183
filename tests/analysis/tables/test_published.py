"""The papers' numbers as files, what the loader refuses, which entries they belong to; and every number that a paper
prints matches a cell of a shipped sweep."""

import csv
import io
import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd
import pytest

from fedray.algorithms import ALGORITHMS
from fedray.algorithms import algorithm as parse_algorithm
from fedray.analysis.data.axes import find_columns, label_cells
from fedray.analysis.data.collect import SweepTable, collect, list_expected
from fedray.analysis.tables import published
from fedray.analysis.tables.build import build, drop_keys
from fedray.analysis.tables.formats import to_csv, to_latex, to_markdown
from fedray.analysis.tables.published import BEST, BEST_BASELINE, find_numbers, list_tables, load, match_numbers
from fedray.cells.cell import Cell
from fedray.cells.metric import RATIOS, ROUNDS_TO
from fedray.common.errors import UserError
from fedray.components.plugins import list_form_options
from fedray.datasets import DATASETS
from fedray.models import MODELS
from fedray.papers.variants import VARIANTS
from fedray.partitions import PARTITIONS
from fedray.sweep.document import get_sweeps_folder
from fedray.sweep.sweep import Sweep
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import write
from tests.conftest import Call
from tests.small import sections

SECTIONS = ("algorithm", "data", "model", "partition", "clients")
COLUMNS = ("paper", "table", *SECTIONS, "average_over", "rounds", "method", "metric", "value", "std", "notes")
REQUIRED = ("paper", "table", "data", "model", "clients", "method", "metric")
PERCENT = ("test_accuracy", "train_accuracy", "personal_accuracy", "generic_accuracy")
METRICS = (*PERCENT, ROUNDS_TO, *RATIOS, "relative_flops", "seconds_per_round_with_evaluation")


def test_every_file_is_what_the_readme_promises() -> None:
    """28 tables, 2151 printed cells: no empty keys, text for numbers, metrics of another kind; accuracies in 0..100."""
    assert len(list_tables()) == 28
    found = {name: load(name) for name in list_tables()}
    assert sum(map(len, found.values())) == 2151
    for name, path in list_tables().items():
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert {f"{row['paper']}/" + re.sub(r"(\d+)$", r"table\1", row["table"]) for row in rows} == {name}
        assert all(bool(row["partition"]) != bool(row["average_over"]) for row in rows), name
        assert any(one.value is not None for one in found[name]), name
        assert tuple(rows[0]) == COLUMNS, name
        assert all(row[key] for row in rows for key in REQUIRED), name
        assert all(math.isfinite(one.value or 0) and (one.std or 0) >= 0 for one in found[name]), name
        assert all(one.metric.plain in METRICS and not one.metric.prefix for one in found[name]), name
        accuracies = [one.value or 0 for one in found[name] if one.metric.plain.endswith("_accuracy")]
        assert all(0 <= value <= 100 for value in accuracies), name


def test_metrics_over_clients_are_the_printed_deviations() -> None:
    """FedSAM prints 95.07(0.94) for training and 84.38(4.03) for validation of FedAvg on EMNIST."""
    printed = {"personal_train_accuracy": 95.07, "personal_train_std": 0.94, "best_personal_accuracy": 84.38}
    for metric, value in (printed | {"personal_std": 4.03}).items():
        wanted = {"algorithm.name": ("fedavg",), "data.name": ("emnist",)}
        numbers = [one for one in find_numbers("fedsam/table1", metric) if wanted.items() <= one.config.items()]
        assert [one.value for one in numbers] == [value]
    assert all(one.value is not None and one.value > 0 for one in find_numbers("fedsol/table9", "personal_std"))
    with pytest.raises(UserError, match="fedgela/table2 prints"):
        find_numbers("fedgela/table2", "personal_std")


def run(
    algorithm: dict[str, Any], partition: dict[str, Any], seed: int = 0, data: str = "cifar10", model: str = "lenet",
    total: int = 100, per_round: float = 10, rounds: int = 800,
) -> dict[str, Any]:  # fmt: skip
    name = "-".join(map(str, [*algorithm.values(), *partition.values(), data, model, total, seed]))
    method, clients = parse_algorithm(algorithm).list_options(), {"total": total, "per_round": per_round}
    config = sections(method, clients, {"name": model}, partition, data={"name": data}, runtime={})
    return {"hash": name, "label": name, "config": config | {"seed": seed, "training": {"rounds": rounds}}}


U06 = {"name": "dirichlet_client", "alpha": 0.6}


def test_values_and_differences_beside_ours(store: Tracker, call: Call) -> None:
    """FedTOGA's table 1, LeNet, 100 clients, u = 0.6 prints 80.28 ± 0.14 for FedAvg: ours, the mean of 81 and 82, is
    1.22 above. CIFAR-100 becomes a column of its own, as nothing else would keep it apart. Digits have no partner."""
    cells = [run({"name": "fedavg"}, U06, seed) for seed in (0, 1)]
    cells += [run({"name": "fedavg"}, U06, 0, "cifar100"), run({"name": "fedavg"}, U06, 0, "digits", rounds=40)]
    write(store, cells, [81 + k for k in range(len(cells))], "fedtoga/table1")
    table = build(collect("fedtoga/table1"), paper="fedtoga/table1")
    assert table.columns == [f"{data} dirichlet_client α=0.6" for data in ("cifar10", "cifar100", "digits")]
    text = to_markdown(table)
    assert "81.50 ± 0.71 [80.28 ± 0.14, +1.22]" in text
    assert "- without a printed value: fedavg, digits dirichlet_client α=0.6" in text
    assert "printed, but not in this table: fedavg (14), fedadam (16)" in text
    assert "rounds: 40, 800 here, 800 in the paper" in text
    assert r"[80.28 $\pm$ 0.14, +1.22]" in to_latex(table)
    row = next(csv.DictReader(io.StringIO(to_csv(table))))
    assert (row["published"], row["published_std"], row["difference"]) == ("80.28", "0.14", "1.22")
    assert "[80.28" in call("tables", "fedtoga/table1", "--published").out


def test_the_table_of_a_sweep_of_which_only_the_smoke_ran(store: Tracker, call: Call) -> None:
    """Its smoke version is used, with a note; an existing version of its own comes first. Before: the printed table."""
    one = run({"name": "fedavg"}, U06)
    assert "| - [80.28 ± 0.14] (3 missing) " in call("tables", "fedtoga/table1", "--published").out
    write(store, [one], [81], "fedtoga/table1-smoke")
    printed = call("tables", "fedtoga/table1", "--published")
    assert "fedtoga/table1-smoke: test accuracy" in printed.out
    assert "[" not in printed.out, "which it is compared with only when told"
    assert "a smoke sweep, whose numbers cannot be compared with a paper's; --paper fedtoga/table1 " in printed.out
    assert "only its smoke version has been run" in printed.err
    assert "[80.28" in call("tables", "fedtoga/table1-smoke", "--paper", "fedtoga/table1").out
    write(store, [one], [81], "fedtoga/table1")
    assert "smoke" not in (printed := call("tables", "fedtoga/table1")).out + printed.err


OTHERS: list[dict[str, Any]] = [{"total": 150}, {"data": "cifar100"}, {"algorithm": {"name": "fedntd"}}]


@pytest.mark.parametrize("change", [*OTHERS, {"partition": {"name": "dirichlet_client", "alpha": 0.06}}])
def test_whatever_differs_is_no_partner(change: dict[str, Any]) -> None:
    one = run(**{"algorithm": {"name": "fedavg"}, "partition": U06, "model": "resnet18"} | change)
    found, notes = published.match_published("fedtoga/table2", "test_accuracy", {("row", "column"): [Cell(**one)]})
    assert found == {}
    assert notes[0] == "without a printed value: row, column", "nothing is in brackets"


def test_a_doubt_is_told_once_with_its_entries() -> None:
    """FedCM's four entries share a doubt, so the row's name stands for them; one of them has another doubt as well."""
    groups = {
        ("fedcm", f"{split['classes']}, {total}"): [Cell(**run({"name": "fedcm"}, split, total=total))]
        for split in [{"name": "pathological", "classes": 6}, {"name": "pathological", "classes": 3}]
        for total in (100, 200)
    }
    found, notes = published.match_published("fedtoga/table1", "test_accuracy", groups)
    assert found.keys() == groups.keys()
    assert [note for note in notes if "doubt" in note] == [
        "fedcm, 6, 100: doubt: below the c=3 value, 76.64 with 200 clients",
        "fedcm: doubt: the eight stds are the same with 100 and 200 clients",
    ]


def test_a_number_that_several_rows_share_stands_beside_none() -> None:
    """FedSAM's table 2 does not say its ρ; FedSOL's v1 does not say which radius, and its row names both."""

    def entry(algorithm: dict[str, object]) -> Cell:
        return Cell(**run(algorithm, U06, model="resnet18", per_round=20))

    rows = {(f"fedsam ρ={rho}", "0.6"): [entry({"name": "fedsam", "rho": rho})] for rho in (0.1, 0.5)}
    rows |= {("fedavg", "0.6"): [entry({"name": "fedavg"})]}
    printed, notes = published.match_published("fedsam/table2", "test_accuracy", rows)
    assert list(printed) == [("fedavg", "0.6")]
    assert "without a printed value: fedsam ρ=0.1, 0.6; fedsam ρ=0.5, 0.6" in notes
    del rows["fedsam ρ=0.1", "0.6"]
    assert len(published.match_published("fedsam/table2", "test_accuracy", rows)[0]) == 2


PA_GA = "best_personal_accuracy,best_generic_accuracy"
ACCURACY = "last10_test_accuracy"
SAM = "test_accuracy,train_accuracy,personal_accuracy,personal_std,personal_train_accuracy,personal_train_std"
FINETUNED = "personal_accuracy_e1,personal_std_e1,personal_accuracy_e5,personal_std_e5"
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
    "fedsol/table9": [("fedsol/table9", FINETUNED, "")],
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
    wanted = [one for one in published.with_deviations(name) if one.config]
    found = []
    for sweep, metrics, over in PRINTED[name]:
        groups = entries(one_seed(sweep), over)
        for metric in metrics.split(","):
            found += match_numbers(name, metric, groups, bool(over)).values()
    assert [one for one in wanted if one not in found] == []


@pytest.mark.parametrize("metric", SAM.split(","))
def test_a_number_that_stands_beside_ours_is_not_told_as_missing(metric: str) -> None:
    """FedSAM's table 1 has FedAvg on three data sets; those over clients are derived from the printed ones."""
    ours = {key: cells for key, cells in entries(one_seed("fedsam/table1"), "").items() if key[0] == "fedavg"}
    for count in (1, 3):
        matches, notes = published.match_published("fedsam/table1", metric, dict([*ours.items()][:count]))
        (left,) = [note for note in notes if note.startswith("printed, but not in this table: ")]
        assert (len(matches), "fedavg (2)" in left, "fedavg (" in left) == (count, count == 1, count == 1)


def test_numbers_without_a_counterpart_are_copies_and_repetitions() -> None:
    """FedTOGA's table 7 prints 85 numbers of earlier papers; FedSOL's table 5 prints its one cell for ρ = 0 in three
    rows, one of which is FedAvg's here."""
    alone = {name: [one for one in load(name) if not one.config] for name in list_tables()}
    assert {name: len(found) for name, found in alone.items() if found} == {"fedtoga/table7": 85, "fedsol/table5": 2}
    assert all("version=old" in one.notes for one in alone["fedtoga/table7"])
    assert {one.method: one.value for one in alone["fedsol/table5"]} == {"fedsol-body": 56.13, "fedsol-head": 56.13}


@pytest.mark.parametrize("name", list(list_tables()))
def test_published_configurations_are_those_of_the_registries(name: str) -> None:
    """Each key names an option of the component that its row chooses, and each value is one that it takes; a row of
    runs of 0.2, too, names the present method last, and options that it has no more at their defaults, or null."""
    for one in load(name):
        for section, registry in REGISTRIES.items():
            options = {k.partition(".")[2]: values for k, values in one.config.items() if k.startswith(f"{section}.")}
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
