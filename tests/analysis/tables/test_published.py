"""The papers' numbers as files, what the loader refuses, and which entries they belong to."""

import csv
import io
import math
import re
from typing import Any

import pytest

from fedray.algorithms import algorithm as parse_algorithm
from fedray.analysis.data.collect import collect
from fedray.analysis.tables.build import build, main
from fedray.analysis.tables.formats import to_csv, to_latex, to_markdown
from fedray.analysis.tables.published import find_numbers, list_tables, load, match_published
from fedray.cells.cell import Cell
from fedray.cells.metric import RATIOS, ROUNDS_TO
from fedray.common.errors import UserError
from fedray.tracking.tracker import Tracker
from tests.analysis.runs import Outcome, history, write

SECTIONS = ("algorithm", "data", "model", "partition", "clients")
COLUMNS = ("paper", "table", *SECTIONS, "average_over", "rounds", "method", "metric", "value", "std", "notes")
REQUIRED = ("paper", "table", "data", "model", "clients", "method", "metric")
PERCENT = ("test_accuracy", "train_accuracy", "personal_accuracy", "generic_accuracy")
METRICS = (*PERCENT, ROUNDS_TO, *RATIOS, "relative_flops", "seconds_per_round_with_evaluation")


def test_every_file_is_what_the_readme_promises() -> None:
    """28 tables, 2151 printed cells: no empty keys, text for numbers, metrics of another kind, or accuracies outside
    0..100.
    """
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
    for metric, value in {
        "personal_train_accuracy": 95.07,
        "personal_train_std": 0.94,
        "best_personal_accuracy": 84.38,
        "personal_std": 4.03,
    }.items():
        wanted = {"algorithm.name": ("fedavg",), "data.name": ("emnist",)}
        numbers = [one for one in find_numbers("fedsam/table1", metric) if wanted.items() <= one.config.items()]
        assert [one.value for one in numbers] == [value]
    assert all(one.value is not None and one.value > 0 for one in find_numbers("fedsol/table9", "personal_std"))
    with pytest.raises(UserError, match="fedgela/table2 prints"):
        find_numbers("fedgela/table2", "personal_std")


def run(
    algorithm: dict[str, Any],
    partition: dict[str, Any],
    seed: int = 0,
    data: str = "cifar10",
    model: str = "lenet",
    total: int = 100,
    per_round: float = 10,
    rounds: int = 800,
) -> dict[str, Any]:
    name = "-".join(map(str, [*algorithm.values(), *partition.values(), data, model, total, seed]))
    return {
        "hash": name,
        "label": name,
        "config": {
            "seed": seed,
            "data": {"name": data},
            "partition": partition,
            "model": {"name": model},
            "algorithm": parse_algorithm(algorithm).list_options(),
            "clients": {"total": total, "per_round": per_round},
            "training": {"rounds": rounds},
            "runtime": {},
        },
    }


U06 = {"name": "dirichlet_client", "alpha": 0.6}


def test_values_and_differences_beside_ours(store: Tracker, capsys: pytest.CaptureFixture[str]) -> None:
    """FedTOGA's table 1, LeNet, 100 clients, u = 0.6 prints 80.28 ± 0.14 for FedAvg: ours, the mean of 81 and 82, is
    1.22 above. CIFAR-100 becomes a column of its own, since nothing else would keep it apart. Digits have no partner.
    """
    cells = [run({"name": "fedavg"}, U06, seed) for seed in (0, 1)]
    cells += [run({"name": "fedavg"}, U06, 0, "cifar100"), run({"name": "fedavg"}, U06, 0, "digits", rounds=40)]
    write(store, cells, [81 + k for k in range(len(cells))], "fedtoga/table1")
    table = build(collect("fedtoga/table1"), paper="fedtoga/table1")
    assert table.columns == [
        "cifar10 dirichlet_client α=0.6",
        "cifar100 dirichlet_client α=0.6",
        "digits dirichlet_client α=0.6",
    ]
    text = to_markdown(table)
    assert "81.50 ± 0.71 [80.28 ± 0.14, +1.22]" in text
    assert "- without a printed value: fedavg, digits dirichlet_client α=0.6" in text
    assert "printed, but not in this table: fedavg (14), fedadam (16)" in text
    assert "rounds: 40, 800 here, 800 in the paper" in text
    assert r"[80.28 $\pm$ 0.14, +1.22]" in to_latex(table)
    row = next(csv.DictReader(io.StringIO(to_csv(table))))
    assert (row["published"], row["published_std"], row["difference"]) == ("80.28", "0.14", "1.22")
    main(["fedtoga/table1"], published=True)
    assert "[80.28" in capsys.readouterr().out


def test_the_table_of_a_sweep_of_which_only_the_smoke_version_was_run(
    store: Tracker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its smoke version is used, with a note; an existing version of its own comes first. Before: the printed table."""
    one = run({"name": "fedavg"}, U06)
    main(["fedtoga/table1"], published=True)
    assert "| - [80.28 ± 0.14] (3 missing) " in capsys.readouterr().out
    write(store, [one], [81], "fedtoga/table1-smoke")
    main(["fedtoga/table1"], published=True)
    printed = capsys.readouterr()
    assert "fedtoga/table1-smoke: test accuracy" in printed.out
    assert "[" not in printed.out, "which it is compared with only when told"
    assert "a smoke sweep, whose numbers cannot be compared with a paper's; --paper fedtoga/table1 " in printed.out
    assert "only its smoke version has been run" in printed.err
    main(["fedtoga/table1-smoke"], paper="fedtoga/table1")
    assert "[80.28" in capsys.readouterr().out
    write(store, [one], [81], "fedtoga/table1")
    main(["fedtoga/table1"])
    assert "smoke" not in (printed := capsys.readouterr()).out + printed.err


@pytest.mark.parametrize(
    ("table", "metric", "one", "value"),
    [
        (
            "fedsol/table2",
            "test_accuracy",
            run({"name": "fedavg"}, {"name": "dirichlet", "alpha": 0.1}, model="mcmahan_cnn", per_round=0.1),
            56.13,
        ),
        (
            "fedsol/table5",
            "best_test_accuracy",
            run({"name": "fedsol", "rho": 1.0}, {"name": "dirichlet", "alpha": 0.1}, model="mcmahan_cnn"),
            63.62,
        ),
        (
            "fedsol/table4",
            "test_accuracy",
            run(
                {"name": "fedsol", "proximal": {"name": "fedprox"}, "rho": 2.0},
                {"name": "dirichlet", "alpha": 0.1},
                model="mcmahan_cnn",
            ),
            63.93,
        ),
        ("fedtoga/table8", "rounds_to:80", run({"name": "fedsam", "rho": 0.01}, U06, model="resnet18"), 491),
        ("fedtoga/table8", "rounds_to:82", run({"name": "fedsam", "rho": 0.01}, U06, model="resnet18"), None),
        (
            "fedtoga/table10",
            "test_accuracy",
            run({"name": "fedtoga@forms", "dual_correction": False, "sam_correction": False}, U06),
            84.14,
        ),
        (
            "fedgela/table2",
            "personal_accuracy",
            run({"name": "fedavg"}, {"name": "dirichlet", "alpha": 10000.0}, 0, "svhn", "resnet18", 10, 1.0),
            93.01,
        ),
    ],
)
def test_names_of_ours_and_the_papers(table: str, metric: str, one: dict[str, Any], value: float | None) -> None:
    """Each expected number is in the file of that table; the deviation next to it is ignored."""
    found, _ = match_published(table, metric, {("row", "column"): [Cell(**one)]})
    assert list(found) == [("row", "column")]
    assert found["row", "column"].value == value


@pytest.mark.parametrize(
    "change",
    [
        {"total": 150},
        {"per_round": 5},
        {"data": "cifar100"},
        {"model": "resnet50"},
        {"partition": {"name": "dirichlet_client", "alpha": 0.06}},
        {"partition": {"name": "pathological", "classes": 5}},
        {"algorithm": {"name": "fedntd"}},
    ],
)
def test_whatever_differs_is_no_partner(change: dict[str, Any]) -> None:
    one = run(**{"algorithm": {"name": "fedavg"}, "partition": U06, "model": "resnet18"} | change)
    found, notes = match_published("fedtoga/table2", "test_accuracy", {("row", "column"): [Cell(**one)]})
    assert found == {}
    assert notes[0] == "without a printed value: row, column", "nothing is in brackets"


def test_doubts_are_passed_on() -> None:
    one = run({"name": "fedsol", "rho": 1.5}, {"name": "dirichlet", "alpha": 0.1}, model="mcmahan_cnn")
    found, notes = match_published("fedsol/table5", "test_accuracy", {("fedsol", "x"): [Cell(**one)]})
    assert {key: (number.value, number.std) for key, number in found.items()} == {("fedsol", "x"): (64.13, None)}
    assert any(note.startswith("fedsol, x: doubt: table 2 prints 64.13") for note in notes)


@pytest.mark.parametrize(
    ("table", "metric", "message"),
    [
        ("fedsoll/table2", "test_accuracy", "published paper: unknown name 'fedsoll'; did you mean 'fedsol'?"),
        (
            "fedtoga/table8",
            "test_loss",
            "--metric: fedtoga/table8 prints rounds_to:80, rounds_to:82, rounds_to:76, rounds_to:78; found 'test_loss'",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(table: str, metric: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        match_published(table, metric, {})


def test_averages_over_settings_and_the_best_baseline(store: Tracker) -> None:
    """FedGELA's table 8, SVHN, mean over six settings (10 and 50 clients): FedAvg's PA is 94.09 ± 0.15, the best
    baseline's 95.18. Ours, two settings of each number of clients: FedAvg (80 + 82 + 84 + 86) / 4 = 83, 11.09 below.
    The baselines are FedProx, 1 above FedAvg, and FedRS, 3 above at 50 clients and 1 below at 10: the best of each
    setting is (81 + 83 + 87 + 89) / 4 = 85, which neither has (84 and 84).
    """
    cells, outcomes = [], list[Outcome]()
    for k, (alpha, total) in enumerate(((0.5, 10), (0.1, 10), (0.5, 50), (0.2, 50))):
        for method, more in (("fedavg", 0), ("fedprox", 1), ("fedrs", 3 if total == 50 else -1)):
            one = run({"name": method}, {"name": "dirichlet", "alpha": alpha}, 0, "svhn", "resnet18", total, 10, 50)
            cells.append(one)
            outcomes.append([row | {"personal_accuracy": 80.0 + 2 * k + more} for row in history(80 + 2 * k + more)])
    write(store, cells, outcomes, "fedgela/table8")
    table = build(
        collect("fedgela/table8"),
        "personal_accuracy",
        average_over="partition,clients.total",
        best_except="fedavg",
        paper="fedgela/table8",
    )
    (column,) = table.columns
    assert [table.entries[row, column].mean for row in table.rows] == [83, 84, 84, 85]
    printed = [table.entries[row, column].printed for row in ("fedavg", "best baseline")]
    assert [number and (number.value, number.std) for number in printed] == [(94.09, 0.15), (95.18, 0.19)]
    assert f"averaged over partition,clients.total, seed by seed: 4 settings ({column})" in table.notes


def test_a_number_that_several_rows_share_stands_beside_none() -> None:
    """FedSAM's table 2 does not say its ρ; FedSOL's v1 does not say which radius, and its row names both."""

    def entry(algorithm: dict[str, object]) -> Cell:
        config = {
            "algorithm": algorithm,
            "data": {"name": "cifar10"},
            "model": {"name": "resnet18"},
            "partition": {"name": "dirichlet_client", "alpha": 0.6},
            "clients": {"total": 100, "per_round": 20},
        }
        return Cell(hash="h", label="l", config=config)

    rows = {(f"fedsam ρ={rho}", "0.6"): [entry({"name": "fedsam", "rho": rho})] for rho in (0.1, 0.5)}
    rows |= {("fedavg", "0.6"): [entry({"name": "fedavg"})]}
    printed, notes = match_published("fedsam/table2", "test_accuracy", rows)
    assert list(printed) == [("fedavg", "0.6")]
    assert "without a printed value: fedsam ρ=0.1, 0.6; fedsam ρ=0.5, 0.6" in notes
    del rows["fedsam ρ=0.1", "0.6"]
    assert len(match_published("fedsam/table2", "test_accuracy", rows)[0]) == 2
