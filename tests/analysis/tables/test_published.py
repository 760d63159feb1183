"""The papers' numbers as files, and what the loader refuses."""

import csv
import re
from pathlib import Path

import pytest

from fedray.analysis.tables.published import COLUMNS, find_numbers, has_printed, list_tables, load, read
from fedray.common.errors import UserError


def test_every_file_is_what_the_readme_promises() -> None:
    """28 tables, 2151 printed cells. `load` itself refuses empty keys, text for numbers, accuracies outside 0..100."""
    assert len(list_tables()) == 28
    found = {name: load(name) for name in list_tables()}
    assert sum(map(len, found.values())) == 2151
    for name, path in list_tables().items():
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert {f"{row['paper']}/" + re.sub(r"(\d+)$", r"table\1", row["table"]) for row in rows} == {name}
        assert all(bool(row["partition"]) != bool(row["average_over"]) for row in rows), name
        assert any(one.value is not None for one in found[name]), name


def test_numbers_looked_up_in_the_papers() -> None:
    wanted = {"algorithm.name": ("fedavg",), "data.name": ("cifar10",), "partition.alpha": (0.1,)}
    assert [one.value for one in load("fedsol/table2") if wanted.items() <= one.config.items()] == [56.13]
    never = [one for one in load("fedtoga/table8") if "800+" in one.notes]
    assert len(never) > 0
    assert all(one.value is None for one in never)


def test_version_1_of_fedsol_has_three_numbers_of_its_own() -> None:
    """v4's table 2 without MNIST, s = 3 and α = 0.3: 14 settings of 8 methods; three under s = 5 are v4's of s = 3."""
    wanted = ("data.name", "partition.name", "partition.alpha", "partition.shards", "algorithm.name")
    first, fourth = (
        {tuple(one.config.get(key) for key in wanted): one.value for one in load(f"fedsol/{table}")}
        for table in ("v1_table1", "table2")
    )
    assert len(load("fedsol/v1_table1")) == len(first) == len(first.keys() & fourth.keys()) == 14 * 8
    own = {(key[3], key[4], value) for key, value in first.items() if value != fourth[key]}
    assert own == {((5,), ("fedntd",), 70.47), ((5,), ("fedasam", "fedasam@forms"), 63.24), ((5,), ("fedsol",), 69.88)}


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("method", "", "x.csv, line 2: method is empty"),
        ("metric", "accuracy", "x.csv, line 2: metric is none of test_accuracy"),
        ("value", "93.0193.01", "x.csv, line 2: value is not a number: found 93.0193.01"),
        ("value", "100.5", "x.csv, line 2: value is not within 0..100: found 100.5"),
        ("value", "-1", "x.csv, line 2: value is not within 0..100"),
        ("partition", "dirichlet 0.1", "x.csv, line 2: partition: found '0.1'; OPTION=VALUE is required"),
        ("std", "-1", "x.csv, line 2: std is negative"),
    ],
)
def test_a_bad_line_is_named(column: str, value: str, message: str, tmp_path: Path) -> None:
    row = dict.fromkeys(COLUMNS, "1") | {"metric": "test_accuracy", "clients": "total=1", column: value}
    (tmp_path / "x.csv").write_text(f"{','.join(COLUMNS)}\n{','.join(row[name] for name in COLUMNS)}\n")
    with pytest.raises(UserError) as error:
        read(tmp_path / "x.csv")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedsoll/table2", "published paper: unknown name 'fedsoll'; did you mean 'fedsol'?"),
        ("fedsol/table7", "published table of fedsol: unknown name 'table7'; did you mean"),
        ("quickstart", "published paper: unknown name 'quickstart'; valid: fedgela, fedsam, fedsol, fedtoga"),
    ],
)
def test_unknown_tables_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


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
    assert not has_printed("fedgela/table2", "personal_std")
